"""An algorithm that is saved, loaded into a fresh one and trained on equals one that went on."""

import pytest
import torch
from support.cases import CASES, EXPECTED_WARNINGS
from support.inside import assert_same, hidden_states, saved, through_a_file

pytestmark = [
    *EXPECTED_WARNINGS,
    pytest.mark.filterwarnings("ignore:save_buffer is True, which has no effect"),
]


def built(name):
    """Build a case whose checkpoints have all that it continues with."""
    return CASES[name].build(**({"save_buffer": True} if "distillation" in name else {}))


def train(name, algorithm, seed):
    torch.manual_seed(seed)
    CASES[name].fill(algorithm, seed)
    algorithm.update()


def running(algorithm):
    """Return what only the continuation of running episodes needs."""
    models = algorithm.stateful_models().items()
    states = {role: model.get_hidden_state() for role, model in models}
    return states, algorithm.running_state()


def go_on(algorithm, running):
    states, others = running
    for role, model in algorithm.stateful_models().items():
        model.reset(hidden_state=states[role])
    algorithm.resume(others)


@pytest.mark.parametrize("name", CASES)
def test_a_resumed_training_is_equal_to_the_bit(name):
    first = built(name)
    for seed in range(2):
        train(name, first, seed)
    resumed = built(name)
    resumed.load(through_a_file(first.save()), None, strict=True)
    go_on(resumed, running(first))
    for algorithm in (first, resumed):
        for seed in range(2, 4):
            train(name, algorithm, seed)
    assert_same(saved(resumed), saved(first))
    assert_same(hidden_states(resumed), hidden_states(first))

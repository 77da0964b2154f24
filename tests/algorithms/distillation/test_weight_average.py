"""Between updates and rollouts the student holds the average of its weights, whatever happens."""

import copy

import pytest
import torch
from support.helpers import make_distillation, make_model, parameters_of, train
from support.inside import assert_same, extension, networks_of_heads

from rsl_tbptt.algorithms import TbpttDistillation
from rsl_tbptt.algorithms.extensions.weight_average import DECAY

T, N = 6, 4
HEADS = {"velocity": {"target": "state"}}


@pytest.fixture(autouse=True)
def _float64(float64):
    pass


def make(student="mlp", **options):
    """Build an algorithm; by default labels and states do not depend on who acts."""
    torch.manual_seed(0)
    options = {"gradient_length": 3, "weight_average": True, **options}
    return make_distillation(TbpttDistillation, T, N, student=student, **options)


def update(algorithm, *seeds, **options):
    for seed in seeds:
        train(algorithm, seed, **options)


def newest_of(algorithm):
    """Return the newest weights of the student."""
    weights = extension(algorithm, "weight_average").newest
    return torch.cat([w.flatten() for name, w in weights.items() if name.startswith("student.")])


def state(algorithm):
    saved = algorithm.save()["rsl_tbptt"]
    heads = [network.state_dict() for network in networks_of_heads(algorithm)]
    return copy.deepcopy([algorithm.student.state_dict(), heads, saved["weight_average"]])


@pytest.mark.parametrize("student", ["mlp", "lstm", "cnn-gru"])
def test_the_average_by_its_definition_and_the_training_of_one_without(student):
    averaging, plain = make(student), make(student, weight_average=False)
    newest = []
    for seed in range(4):
        for algorithm in (averaging, plain):
            update(algorithm, seed)
        newest.append(parameters_of(plain))
        assert torch.equal(newest_of(averaging), newest[-1])
        assert_same(averaging.student.get_hidden_state(), plain.student.get_hidden_state())
        average = newest[0]
        for t, weights in enumerate(newest[1:], start=2):
            average = average + (DECAY + 1) / (t + DECAY) * (weights - average)
        torch.testing.assert_close(parameters_of(averaging), average, rtol=1e-12, atol=1e-12)
        checkpoint = averaging.save()["student_state_dict"]  # which rsl_rl and PPO load
        assert_same(checkpoint, averaging.student.state_dict())
    assert not torch.equal(parameters_of(averaging), newest[-1])


def test_heads_are_averaged_with_the_student():
    algorithm = make(auxiliary=HEADS)
    update(algorithm, 0, 1)
    head = torch.cat([p.flatten() for p in extension(algorithm, "auxiliary").parameters])
    weights = extension(algorithm, "weight_average").newest.items()
    newest = torch.cat([w.flatten() for n, w in weights if n.startswith("auxiliary/velocity.")])
    assert len(newest) == len(head)
    assert not torch.equal(newest, head)


def test_parameters_that_you_set_are_trained_on():
    algorithm, reference = make(), make()
    for each in (algorithm, reference):
        update(each, 0, 1)
    other = make_model("student", "mlp", N, seed=9)
    algorithm.student.load_state_dict(other.state_dict())
    kept = extension(reference, "weight_average")
    kept.newest = {f"student.{n}": p.detach().clone() for n, p in other.named_parameters()}
    for each in (algorithm, reference):
        update(each, 2)
    assert torch.equal(newest_of(algorithm), newest_of(reference))


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("look", ["save", "eval_mode"])
def test_a_rollout_that_breaks_off_leaves_the_average(look, steps):
    algorithm = make()
    update(algorithm, 0, 1)
    average = parameters_of(algorithm)

    process = algorithm.process_env_step

    def fail(*step):  # in the environment, after the student has acted
        if algorithm.storage.step + 1 == steps:
            raise KeyboardInterrupt
        process(*step)

    algorithm.process_env_step = fail
    with pytest.raises(KeyboardInterrupt):
        update(algorithm, 2)
    assert torch.equal(parameters_of(algorithm), newest_of(algorithm))
    getattr(algorithm, look)()
    assert torch.equal(parameters_of(algorithm), average)


def test_a_checkpoint_in_the_midst_of_a_rollout_changes_no_training():
    algorithm, reference = make(), make()
    for each in (algorithm, reference):
        update(each, 0, 1)
    update(algorithm, 2, on_step=lambda step, _: step == 3 and algorithm.save())
    update(reference, 2)
    assert_same(state(algorithm), state(reference))

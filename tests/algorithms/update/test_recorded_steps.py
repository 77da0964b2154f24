"""Recorded steps train to the same bits as steps that run as they are, with every option.

Without a GPU, the operations of a step are recorded and replayed on the tensors of the recording.
So a tensor that has moved, or a number that was frozen, changes the results here.
"""

import contextlib
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from support.cases import CASES, EXPECTED_WARNINGS, RECORDED
from support.helpers import roll_out
from support.inside import assert_same, everything, through_a_file
from support.operations_recording import OperationsRecording
from support.triton_on_cpu import triton_engine_on_cpu
from torch import distributed
from torch.utils._pytree import tree_leaves

from rsl_tbptt.algorithms import base, optimizers, replay
from rsl_tbptt.algorithms.imitation import Imitation
from rsl_tbptt.core.recording import Recorder

pytestmark = EXPECTED_WARNINGS

NUM_UPDATES = 5


@pytest.fixture(autouse=True)
def _operations_without_state(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)


class Counted(OperationsRecording):
    """A recording that counts the replays of all."""

    num_replays = 0

    def replay(self):
        Counted.num_replays += 1
        super().replay()


@dataclass
class Trained:
    """What a training has left."""

    state: Any
    metrics: list[dict[str, float]]
    num_replays: int
    places: list[list[int]]
    """Addresses after each update."""


def train(name, *, records, before=lambda trained, update: None, fill=None, **options):
    """Train a case, with recorded steps or without.

    ``before`` is called before each update, by number; ``fill`` replaces the case's.
    """
    case, metrics, places = CASES[name], [], []
    trained, Counted.num_replays = case.build(**{"scan_engine": "reference", **options}), 0
    if records:
        trained.recorder = Recorder("cpu", capture=Counted)
    for update in range(NUM_UPDATES):
        before(trained, update)
        (fill or case.fill)(trained, update)
        torch.manual_seed(update)
        metrics.append(trained.update())
        places.append(places_of(trained) if records else [])
    checkpoint = trained.save()
    checkpoint["rsl_tbptt"].pop("learning_rate", None)  # the config's
    saved = [x for x in tree_leaves(checkpoint) if isinstance(x, torch.Tensor | float | int)]
    return Trained((everything(trained), saved), metrics, Counted.num_replays, places)


def places_of(trained):
    """Return the addresses of all that a recorded step may read and write."""
    modules, optimizers = trained.transaction.modules, trained.transaction.optimizers
    tensors = [each for module in modules for each in (*module.parameters(), *module.buffers())]
    for optimizer in optimizers:
        tensors += [each for state in optimizer.state.values() for each in state.values()]
    for objective in trained.objectives:
        tensors += tree_leaves([objective.rollout, objective.states])
    tensors += [each.grad for each in trained.parameters]
    return [each.data_ptr() for each in tensors if each is not None]


def both(name, **arguments):
    """Train with steps that run as they are, then with recorded ones."""
    return tuple(train(name, records=records, **arguments) for records in (False, True))


def check_equal(name, **arguments):
    """Check that a training is equal to the bit with recorded steps; return both."""
    plain, recorded = both(name, **arguments)
    assert_same([recorded.metrics, recorded.state], [plain.metrics, plain.state])
    assert recorded.num_replays >= 1
    return plain, recorded


def are_equal(plain, recorded):
    """Return whether two trainings are equal to the bit."""
    try:
        assert_same([recorded.metrics, recorded.state], [plain.metrics, plain.state])
    except (AssertionError, KeyError):
        return False
    return True


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_steps_train_to_the_same_bits_and_no_tensor_moves(name):
    _, recorded = check_equal(name)
    _, *places = recorded.places
    if name != "ppo-fine-tuned":  # the actor's optimiser gets its state after the warm-up
        assert all(each == places[0] for each in places)


@pytest.mark.parametrize("name", ["ppo-per-mini-batch", "distillation-buffer"])
def test_recorded_steps_with_triton_engines_train_to_the_same_bits(name):
    with triton_engine_on_cpu():
        check_equal(name, scan_engine="triton")


@pytest.fixture
def one_of_several_ranks():
    """Let this process be a group that exchanges gradients."""
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield {"multi_gpu_cfg": {"global_rank": 0, "local_rank": 0, "world_size": 1}}
    distributed.destroy_process_group()


@pytest.mark.parametrize(
    "name", ["ppo-rnd-heads-window", "ppo-per-mini-batch", "distillation-buffer"]
)
def test_ranks_exchange_gradients_between_two_recordings(name, one_of_several_ranks):
    check_equal(name, **one_of_several_ranks)


@pytest.mark.parametrize("name", ["ppo-whole", "distillation-buffer"])
def test_an_undone_update_in_between(name):
    def fill(trained, seed):
        def spoil(step, obs, rewards=None):
            if (seed, step) == (3, 4):
                obs["policy"][:, 0] = torch.nan

        roll_out(trained, seed, on_step=spoil)

    with pytest.warns(UserWarning, match="observation group 'policy' of environments"):
        _, recorded = check_equal(name, fill=fill)
    assert recorded.metrics[3] == {"skipped_updates": 1.0}


def loading():
    """Return a function that loads an earlier checkpoint before the fourth update."""
    saved = {}

    def before(trained, update):
        if update == 1:
            saved.update(through_a_file(trained.save()))
        if update == 3:
            trained.load(saved, None, strict=True)

    return before


def setting(name, value, at=3):
    """Return a function that sets an attribute before an update."""
    return lambda trained, update: setattr(trained, name, value) if update == at else None


def freezing(trained, update):
    """Freeze the critic before the fourth update."""
    if update == 3:
        trained.critic.requires_grad_(False)


def decaying(trained, update):
    """Change a number of the optimiser's groups before the fourth update."""
    if update == 3:
        trained.optimizer.param_groups[0]["weight_decay"] = 0.5


BETWEEN_UPDATES = {
    "weight-decay": ("ppo-adamw", decaying),
    "loaded": ("ppo-heads-mlp", loading()),
    "loaded-buffer": ("distillation-buffer-heads-average", loading()),
    "frozen-critic": ("ppo-whole", freezing),
}
SETTINGS = {
    "clip_param": 0.01,
    "entropy_coef": 0.5,
    "gamma": 0.5,
    "lam": 0.5,
    "learning_rate": 2e-3,
    "max_grad_norm": 0.01,
}


@pytest.mark.parametrize("change", BETWEEN_UPDATES)
def test_a_change_between_two_updates_acts(change):
    name, before = BETWEEN_UPDATES[change]
    plain, _ = check_equal(name, before=before)
    assert not are_equal(plain, train(name, records=False))


@pytest.mark.parametrize(
    ("name", "option"),
    [
        *(("ppo-whole", option) for option in SETTINGS),
        *(("distillation-epochs", option) for option in ("learning_rate", "max_grad_norm")),
    ],
)
def test_an_attribute_of_rsl_rl_acts_from_the_next_update_on(name, option):
    value = SETTINGS[option]
    plain, _ = check_equal(name, before=setting(option, value))
    assert not are_equal(plain, train(name, records=False))
    at_once = train(name, records=False, before=setting(option, value, at=0))
    assert are_equal(at_once, train(name, records=False, **{option: value}))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("ppo-models-cnn", "a CNNModel encodes each frame once"),
        ("distillation-frames-buffer", "a CNNRNNModel encodes each frame once"),
        ("distillation-student-stepwise", "a OwnForward runs step by step"),
        ("ppo-rmsprop", "no fused kernel"),
        ("ppo-whole", "scan_engine is 'reference'"),
    ],
)
def test_a_step_that_is_not_recorded_says_why(monkeypatch, name, reason):
    engine = {"scan_engine": "auto"} if name == "ppo-rmsprop" else {}

    def recorder(device, refused):
        on_cuda = {"device": "cuda", "refused": refused}
        return Recorder(**on_cuda) if refused else Recorder(device, capture=Counted)

    monkeypatch.setattr(base, "Recorder", recorder)
    case, Counted.num_replays = CASES[name], 0
    trained = case.build(**engine)
    assert reason in trained.recorder.reason
    for update in range(3):
        case.fill(trained, update)
        trained.update()
    assert Counted.num_replays == 0


@pytest.fixture
def unfollowed(monkeypatch):
    """Return a function that lets recordings stay when tensors have moved."""
    return lambda: monkeypatch.setattr(Recorder, "follow", lambda *_: None)


def replacing_state(trained, update):
    """Replace the optimiser's state by a copy, as loading a checkpoint does."""
    if update == 3:
        for state in trained.optimizer.state.values():
            state.update({name: value.clone() for name, value in state.items()})


def replacing_buffer(trained, update):
    """Move the observations of a replay buffer."""
    if update == 3:
        buffer = trained.experience.buffer
        buffer.rollout = replace(buffer.rollout, obs=buffer.rollout.obs.apply(torch.sign))


@pytest.mark.parametrize(
    ("name", "moves"),
    [
        ("ppo-whole", None),
        ("ppo-whole", replacing_state),
        ("distillation-buffer", replacing_buffer),
    ],
)
def test_a_tensor_that_moves_is_seen(monkeypatch, unfollowed, name, moves):
    before, num_replays = {"before": moves} if moves else {}, train(name, records=True).num_replays
    if moves is None:
        monkeypatch.setattr(optimizers, "in_place", lambda models: contextlib.nullcontext())
    plain, recorded = both(name, **before)
    assert are_equal(plain, recorded)  # recorded anew, at the price of fewer replays
    assert recorded.num_replays < num_replays
    unfollowed()
    assert not are_equal(*both(name, **before))


def test_a_coefficient_or_a_rate_that_is_a_number_is_seen(monkeypatch):
    losses = Imitation.losses

    def with_number(imitation, policy, samples):
        for name, _, values in losses(imitation, policy, samples):
            yield name, imitation.coef, values

    monkeypatch.setattr(Imitation, "losses", with_number)
    assert not are_equal(*both("ppo-imitating"))
    monkeypatch.setattr(base, "step_at", lambda optimizer, rate: optimizer.step())
    assert not are_equal(*both("distillation-average-falling-rate"))


def test_autocast_around_an_update(monkeypatch):
    """Autocast keeps casts of weights until its outermost context ends; a step needs new ones."""
    name = "ppo-bfloat16"

    def within(trained, update):
        if update == 0:
            trained.update = torch.autocast("cpu", torch.bfloat16)(trained.update)

    _, recorded = check_equal(name, before=within)
    assert are_equal(train(name, records=False), recorded)
    monkeypatch.setattr(replay, "unchanged_weights", contextlib.nullcontext)
    assert not are_equal(*both(name, before=within))

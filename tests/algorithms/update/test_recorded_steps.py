"""Recorded steps train to the same bits as steps that run as they are, with every option.

Without a GPU, the operations of a step are recorded and replayed on the tensors of the recording.
So a tensor that has moved, or a number that was frozen, changes the results here.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from support import several_teachers
from support.auxiliary_reference import HEADS
from support.fine_tuning import make_fine_tuned
from support.helpers import (
    CHANGES,
    MEMORIES,
    absolute_error,
    make_distillation,
    make_model,
    make_ppo,
    rnd_cfg,
    roll_out,
)
from support.helpers import train as roll_out_and_update
from support.inside import assert_same, everything, through_a_file
from support.operations_recording import OperationsRecording
from support.symmetry_reference import symmetry_cfg
from torch import distributed
from torch.utils._pytree import tree_leaves

from rsl_tbptt.algorithms import (
    TbpttDistillation,
    TbpttPPO,
    algorithm,
    distillation,
    optimizers,
    replay,
)
from rsl_tbptt.algorithms.policy_losses import PolicyLoss
from rsl_tbptt.core.hidden_state import as_tensors
from rsl_tbptt.core.recording import Recorder

pytestmark = [
    pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value"),
    pytest.mark.filterwarnings("ignore:scan_engine is 'reference', which has no effect on a"),
]

T, N, NUM_UPDATES = 6, 8, 6
NORMALIZED = {"obs_normalization": True}


@pytest.fixture(autouse=True)
def _operations_without_state(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)


class Counted(OperationsRecording):
    """A recording that counts the replays of all."""

    num_replays = 0

    def replay(self):
        Counted.num_replays += 1
        super().replay()


@dataclass(frozen=True)
class Case:
    """A training of a few updates."""

    build: Callable[[], Any]
    fill: Callable[[Any, int], None]
    """Fills the storage, given a seed."""

    before: Callable[[Any, int], Any] = lambda algorithm, update: None
    """Is called before an update, by number; may return another algorithm to go on with."""

    changes: str = ""
    """A metric that differs between updates, as otherwise the case shows nothing."""


@dataclass
class Trained:
    """What a training has left."""

    state: Any
    metrics: list[dict[str, float]]
    num_replays: int
    places: list[list[int]]
    """Addresses after each update."""


def train(case, *, records):
    """Train, with recorded steps or without."""
    Counted.num_replays, metrics, places, before = 0, [], [], None
    for update in range(NUM_UPDATES):
        trained = before or case.build()
        trained = case.before(trained, update) or trained
        if records and trained is not before:
            trained.recorder = Recorder("cpu", capture=Counted)
        case.fill(trained, update)
        torch.manual_seed(update)
        metrics.append(trained.update())
        places.append(places_of(trained) if records else [])
        before = trained
    saved = [x for x in tree_leaves(trained.save()) if isinstance(x, torch.Tensor | float | int)]
    state = everything(trained), saved
    return Trained(state, metrics, Counted.num_replays, places)


def places_of(trained):
    """Return the addresses of all that a recorded step may read and write."""
    modules, optimizers = trained.transaction.modules, trained.transaction.optimizers
    tensors = [each for module in modules for each in (*module.parameters(), *module.buffers())]
    for optimizer in optimizers:
        tensors += [each for state in optimizer.state.values() for each in state.values()]
    if hasattr(trained, "_rollouts"):
        rollouts, states = trained._rollouts, trained._states
    else:
        rollouts, states = [trained._rollout], [trained._start_states]
    for rollout in rollouts:
        tensors += [*rollout.obs.values(), *rollout.labels.values(), rollout.episode_starts]
        tensors += [] if rollout.weights is None else [rollout.weights]
    return [each.data_ptr() for each in (*tensors, *(s for st in states for s in as_tensors(st)))]


def reinforcing(
    *models: Any, before: Any = Case.before, changes: Any = "", fill: Any = roll_out, **options: Any
):
    """Describe a training of PPO, by default of LSTMs."""
    models = models or ("lstm", "lstm")
    engine = {} if models == ("mlp", "mlp") else {"scan_engine": "reference"}
    rnd = options.pop("rnd", None)
    teacher = options.pop("teacher", None)
    shared = {"num_mini_batches": 2, "num_learning_epochs": 2, **engine}

    def build():
        extra = {} if rnd is None else {"rnd_cfg": rnd_cfg(**rnd)}
        built = make_ppo(TbpttPPO, T, N, *models, **{**shared, **options, **extra})
        if teacher is not None:
            built.set_teacher(make_model("teacher", teacher, N, seed=9))
            built.imitation.is_loaded = True
        return built

    return Case(build, fill, before, changes)


def distilling(before: Any = Case.before, **options: Any):
    """Describe a distillation, by default into an LSTM, with held-out environments."""
    engine = {} if options.get("student") == "mlp" else {"scan_engine": "reference"}
    shared = {"num_mini_batches": 2, "num_learning_epochs": 2, "gradient_length": 3, **engine}
    shared["held_out_envs"] = 2
    build = functools.partial(make_distillation, TbpttDistillation, T, N, **{**shared, **options})
    return Case(build, roll_out, before)


def imitating(**options):
    """Describe PPO with a teacher."""
    shared = {"teacher": "lstm", "teacher_cfg": {"class_name": "any"}, "teacher_coef": 0.8}
    return reinforcing(**{**shared, **options})


def rewarding(trained, seed):
    """Fill the storage with rewards whose returns rise, and fall in later rollouts."""
    offset = 20.0 if seed < 3 else -100.0
    roll_out(trained, seed, on_step=lambda step, obs, rewards: rewards.add_(offset))


def setting(name, value):
    """Return a function that sets an option before the fourth update."""
    return lambda trained, update: setattr(trained, name, value) if update == 3 else None


def freezing(trained, update):
    """Freeze the critic before the fourth update."""
    if update == 3:
        trained.critic.requires_grad_(False)


def loading(load_cfg=None):
    """Return a function that loads an earlier checkpoint before the fourth update."""
    saved = {}

    def before(trained, update):
        if update == 1:
            saved.update(through_a_file(trained.save()))
        if update == 3:
            trained.load(saved, load_cfg, strict=True)

    return before


PENALTY = {"policy_loss": "kl_penalty", "schedule": "fixed", "changes": "kl_coef"}
WINDOWS = {"minibatch_unit": "window", "gradient_length": 2}
BUFFER: dict[str, Any] = {"buffer_rollouts": 2}

PPO_CASES = {
    "defaults": reinforcing(),
    "kl-penalty": reinforcing(**PENALTY, learning_rate=1e-2),
    "advantages-per-mini-batch": reinforcing(normalize_advantage_per_mini_batch=True),
    "episode-mean": reinforcing(loss_reduction="episode_mean", gradient_length=2),
    "single-windows": reinforcing(**WINDOWS),
    "burn-in": reinforcing(**WINDOWS, burn_in_length=3),
    "micro-batches": reinforcing(num_micro_batches=2, gradient_length=2),
    "mixed-precision": reinforcing(use_mixed_precision=True, gradient_length=2),
    "adamw": reinforcing(optimizer="adamw"),
    "single-steps": reinforcing("mlp", "mlp"),
    "single-steps-episode-mean": reinforcing("mlp", "mlp", loss_reduction="episode_mean"),
    "mlp-critic": reinforcing("lstm", "mlp", gradient_length=2),
    **{kind: reinforcing(kind, kind, gradient_length=2) for kind in MEMORIES},
    "two-layers": reinforcing(actor_kwargs={"rnn_num_layers": 2}),
    "obs-normalization": reinforcing(actor_kwargs=NORMALIZED),
    "teacher-linear-end": imitating(
        teacher_updates=3, teacher_coef_end=0.1, changes="teacher_coef"
    ),
    "teacher-exponential": imitating(
        teacher_updates=3,
        teacher_coef_end=0.05,
        teacher_schedule="exponential",
        changes="teacher_coef",
    ),
    "teacher-return": imitating(
        teacher_schedule="return",
        teacher_return=4.0,
        fill=rewarding,
        changes="teacher_coef",
    ),
    "teacher-nll": imitating(teacher_loss="nll", gradient_length=2),
    "heads": reinforcing(auxiliary=HEADS, gradient_length=3),
    "mirror-loss": reinforcing(symmetry_cfg=symmetry_cfg(augmentation=False), gradient_length=2),
    "symmetry-two-images": reinforcing(symmetry_cfg=symmetry_cfg(num_images=2), **WINDOWS),
    "rnd-normalized": reinforcing(
        rnd={"state_normalization": True, "reward_normalization": True}, gradient_length=2
    ),
    **{f"changed-{n}": reinforcing(before=setting(n, v)) for n, v in CHANGES.items()},
    "frozen-critic": reinforcing(before=freezing),
    "loaded-rnd": reinforcing(before=loading(), rnd={"state_normalization": True}),
    "critic-warm-up": Case(
        functools.partial(
            make_fine_tuned,
            scan_engine="reference",
            critic_warmup_iterations=2,
            num_learning_epochs=2,
            teacher_updates=4,
        ),
        roll_out,
        changes="teacher_coef",
    ),
}

DISTILLATION_CASES = {
    "defaults": distilling(),
    **{f"loss-{loss}": distilling(loss_type=loss) for loss in ("mse", "huber", "kl", "nll", "bce")},
    "loss-of-your-own": distilling(loss_type=absolute_error),
    "buffer": distilling(**BUFFER),
    "k1-longer": distilling(gradient_length=2, update_length=4),
    "tail-dropped": distilling(gradient_length=4, tail="drop"),
    "micro-batches": distilling(num_micro_batches=2),
    "mixed-precision": distilling(use_mixed_precision=True, **BUFFER),
    **{kind: distilling(student=kind) for kind in ("mlp", *MEMORIES)},
    "two-layers": distilling(student_kwargs={"rnn_num_layers": 2}),
    "obs-normalization": distilling(student_kwargs=NORMALIZED, **BUFFER),
    "augmentation-buffer": distilling(symmetry_cfg=symmetry_cfg(mirror_loss=False), **BUFFER),
    "average-buffer-heads": distilling(weight_average=True, **BUFFER, auxiliary=HEADS),
    "loaded-average": distilling(weight_average=True, before=loading(), student_kwargs=NORMALIZED),
    "heads-buffer": distilling(auxiliary=HEADS, **BUFFER),
    "heads-of-teacher-layers": distilling(auxiliary={"latent": {"target": "teacher:mlp.0"}}),
    "recurrent-teacher": distilling(teacher="lstm"),
    "labels-in-batches": distilling(batch_teacher_labels=True, loss_type="kl"),
    "dagger": distilling(teacher_action_share=0.5, teacher_action_updates=3),
    "falling-rate": distilling(learning_rate_updates=4),
    "loaded-buffer": distilling(before=loading(), save_buffer=True, **BUFFER),
    "loaded-student-alone": distilling(before=loading({"student": True}), **BUFFER),
}


def both(case):
    """Train with steps that run as they are, then with recorded ones."""
    return tuple(train(case, records=records) for records in (False, True))


def check_equal(case):
    """Check that a training is equal to the bit with recorded steps; return both."""
    plain, recorded = both(case)
    assert_same([recorded.metrics, recorded.state], [plain.metrics, plain.state])
    assert recorded.num_replays >= 4
    if case.changes:
        assert len({metrics.get(case.changes) for metrics in plain.metrics}) > 1
    return plain, recorded


@pytest.mark.parametrize("name", PPO_CASES)
def test_ppo_trains_to_the_same_bits(name):
    check_equal(PPO_CASES[name])


@pytest.mark.parametrize("name", DISTILLATION_CASES)
def test_distillation_trains_to_the_same_bits(name):
    check_equal(DISTILLATION_CASES[name])


@pytest.fixture
def one_of_several_ranks():
    """Let this process be a group that exchanges gradients."""
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield {"multi_gpu_cfg": {"global_rank": 0, "local_rank": 0, "world_size": 1}}
    distributed.destroy_process_group()


@pytest.mark.parametrize(
    "case",
    [
        partial(reinforcing, rnd={}),
        partial(reinforcing, normalize_advantage_per_mini_batch=True),
        partial(distilling, **BUFFER),
    ],
    ids=["ppo", "ppo-normalized", "distillation"],
)
def test_two_recordings_around_the_exchange_of_ranks(case, one_of_several_ranks):
    _, recorded = check_equal(case(**one_of_several_ranks))
    alone = train(case(), records=True)
    assert recorded.num_replays > 1.5 * alone.num_replays


@pytest.mark.parametrize("case", [reinforcing(), distilling(**BUFFER)], ids=["ppo", "distillation"])
def test_an_undone_update_in_between(case):
    def fill(trained, seed):
        def spoil(step, obs, rewards=None):
            if (seed, step) == (3, 4):
                obs["policy"][3, 0] = torch.nan  # one that trains

        case.fill(trained, seed, on_step=spoil)

    with pytest.warns(UserWarning, match="observation group 'policy' of environments"):
        _, recorded = check_equal(dataclasses.replace(case, fill=fill))
    assert recorded.metrics[3] == {"skipped_updates": 1.0}


@pytest.mark.parametrize(
    "case",
    [
        reinforcing(actor_kwargs=NORMALIZED, auxiliary=HEADS, rnd={"state_normalization": True}),
        reinforcing(**PENALTY, learning_rate=1e-2),
        distilling(student_kwargs=NORMALIZED, auxiliary=HEADS, save_buffer=True, **BUFFER),
    ],
    ids=["ppo", "kl-penalty", "distillation"],
)
def test_resumed_in_another_process(case):
    def resume(trained, update):
        if update != 3:
            return None
        other = case.build()
        other.load(through_a_file(trained.save()), None, strict=True)
        return other

    check_equal(dataclasses.replace(case, before=resume))


def test_distillation_of_several_teachers(tmp_path):
    config = several_teachers.save_teachers(tmp_path, ["walk", "trot", "hop"])
    options: dict[str, Any] = {"num_mini_batches": 2, "num_learning_epochs": 2}
    options["scan_engine"] = "reference"

    def fill(trained, seed):
        several_teachers.roll_out(trained, *several_teachers.random_rollout(seed, 3))

    check_equal(Case(lambda: several_teachers.make(config, **options, **BUFFER), fill))


def test_imitation_of_several_teachers(tmp_path):
    config = several_teachers.save_teachers(tmp_path, ["walk", "trot"])
    case = imitating(teacher=None, teacher_updates=4, changes="teacher_coef")

    def build():
        built = case.build()
        built.set_teacher(several_teachers.select(config, several_teachers.by_sign, N))
        return built

    check_equal(dataclasses.replace(case, build=build))


NOT_MOVING = [
    *(PPO_CASES[name] for name in ("defaults", "rnd-normalized", "heads", "burn-in")),
    *(PPO_CASES[name] for name in ("obs-normalization", "symmetry-two-images", "episode-mean")),
    *(DISTILLATION_CASES[name] for name in ("defaults", "obs-normalization", "weights-buffer")),
    *(
        DISTILLATION_CASES[name]
        for name in ("labels-in-batches", "heads-buffer", "augmentation-buffer")
    ),
]


@pytest.mark.parametrize("case", NOT_MOVING)
def test_no_tensor_of_a_step_moves_after_the_first_update(case):
    _, *places = train(case, records=True).places
    assert all(each == places[0] for each in places)


def reads(actions, labels):
    """Stand in for a loss that waits for the device."""
    return (actions - labels).square() * (2.0 if actions.sum().item() > 0 else 1.0)


def selects(actions, labels):
    """Stand in for a loss in which a number of elements depends on values."""
    error = (actions - labels).square()
    return torch.where(labels > 0, error[labels > 0].sum(), error)


@pytest.mark.parametrize("loss", [reads, selects])
def test_a_step_that_reads_on_the_host_is_refused(loss):
    with pytest.raises(AssertionError, match="waits for a tensor on the host"):
        train(distilling(loss_type=loss), records=True)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (reinforcing("cnn", "mlp").build, "a CNNModel encodes each frame once"),
        (distilling(student="cnn-gru").build, "a CNNRNNModel encodes each frame once"),
        (distilling(student="stepwise").build, "a OwnForward runs step by step"),
        (reinforcing("mlp", "mlp", optimizer="rmsprop").build, "no fused kernel"),
        (reinforcing().build, "scan_engine is 'reference'"),
    ],
)
def test_a_step_that_is_not_recorded_says_why(monkeypatch, build, reason):
    def recorder(device, refused):
        on_cuda = {"device": "cuda", "refused": refused}
        return Recorder(**on_cuda) if refused else Recorder(device, capture=Counted)

    monkeypatch.setattr(algorithm, "Recorder", recorder)
    trained = build()
    assert reason in trained.recorder.reason
    Counted.num_replays = 0
    roll_out_and_update(trained, *range(3))
    assert Counted.num_replays == 0


def are_equal(plain, recorded):
    """Return whether two trainings are equal to the bit."""
    try:
        assert_same([recorded.metrics, recorded.state], [plain.metrics, plain.state])
    except (AssertionError, KeyError):
        return False
    return True


@pytest.fixture
def unfollowed(monkeypatch):
    """Return a function that lets recordings stay when tensors have moved."""
    return lambda: monkeypatch.setattr(Recorder, "follow", lambda *_: None)


def replacing_state(trained, update):
    """Replace the optimiser's state by a copy, as loading a checkpoint does."""
    if update == 3:
        for state in trained.optimizer.state.values():
            state.update({name: value.clone() for name, value in state.items()})


@pytest.mark.parametrize("moves", ["normaliser", "optimiser"])
def test_a_tensor_that_moves_is_seen(monkeypatch, unfollowed, moves):
    if moves == "optimiser":
        case = reinforcing(before=replacing_state)
    else:
        case = PPO_CASES["obs-normalization"]
        monkeypatch.setattr(optimizers, "in_place", lambda models: contextlib.nullcontext())
    plain, recorded = both(case)
    assert are_equal(plain, recorded)  # recorded anew, at the price of fewer replays
    assert recorded.num_replays < train(reinforcing(), records=True).num_replays
    unfollowed()
    assert not are_equal(*both(case))


def test_a_coefficient_or_a_rate_that_is_a_number_is_seen(monkeypatch):
    def begin_update(loss, teacher_coef):
        loss._kl_coef, loss._teacher_coef = loss.kl_coef, teacher_coef

    monkeypatch.setattr(PolicyLoss, "begin_update", begin_update)
    for name in ("kl-penalty", "teacher-linear-end"):
        assert not are_equal(*both(PPO_CASES[name]))
    monkeypatch.setattr(distillation, "step_at", lambda optimizer, rate: optimizer.step())
    assert not are_equal(*both(DISTILLATION_CASES["falling-rate"]))


def test_autocast_around_an_update(monkeypatch):
    """Autocast keeps casts of weights until its outermost context ends; a step needs new ones."""
    case = PPO_CASES["mixed-precision"]

    def build():
        built = case.build()
        built.update = torch.autocast("cpu", torch.bfloat16)(built.update)
        return built

    around = dataclasses.replace(case, build=build)
    _, recorded = check_equal(around)
    assert are_equal(train(case, records=False), recorded)
    monkeypatch.setattr(replay, "unchanged_weights", contextlib.nullcontext)
    assert not are_equal(*both(around))

"""Recorded steps train to the same bits as steps that run as they are, with every option.

Without a GPU, the operations of a step are recorded and replayed on the tensors of the recording.
So a tensor that has moved, or a number that was frozen, changes the results here.
"""

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support import several_teachers
from support.auxiliary_reference import HEADS
from support.fine_tuning import make_fine_tuned
from support.helpers import (
    MEMORIES,
    STATE_DIM,
    absolute_error,
    make_distillation,
    make_model,
    make_ppo,
    roll_out,
    roll_out_ppo,
)
from support.inside import assert_same, everything, through_a_file
from support.operations_recording import OperationsRecording
from support.symmetry_reference import symmetry_cfg
from torch import nn
from torch.utils._pytree import tree_leaves

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO, algorithm, distillation, ppo
from rsl_tbptt.algorithms.algorithm import Algorithm
from rsl_tbptt.algorithms.health import FirstReplay
from rsl_tbptt.algorithms.policy_losses import PolicyLoss
from rsl_tbptt.core.hidden_state import as_tensors
from rsl_tbptt.core.recording import Recorder

pytestmark = [
    pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value"),
    pytest.mark.filterwarnings("ignore:An update met NaN or inf"),
]

T, N = 6, 8
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

    least_replays: int = 8
    """Steps, of 20, that are replayed at least."""


@dataclass
class Trained:
    """What a training has left."""

    algorithm: Any
    state: Any
    metrics: list[dict[str, float]]
    num_replays: int
    places: list[list[int]]
    """Addresses after each update."""


def train(case, *, records, num_updates=5):
    """Train, with recorded steps or without."""
    Counted.num_replays, metrics, places, before = 0, [], [], None
    for update in range(num_updates):
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
    return Trained(trained, state, metrics, Counted.num_replays, places)


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


def reinforcing(*models, before=Case.before, changes="", least_replays=8, fill=None, **options):
    """Describe a training of PPO, by default of LSTMs."""
    models = models or ("lstm", "lstm")
    engine = {} if "mlp" in models else {"scan_engine": "reference"}
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

    return Case(build, fill or roll_out_ppo, before, changes, least_replays)


def distilling(before=Case.before, changes="", least_replays=8, **options):
    """Describe a distillation, by default into an LSTM."""
    engine = {} if options.get("student") == "mlp" else {"scan_engine": "reference"}
    shared = {"num_mini_batches": 2, "num_learning_epochs": 2, "gradient_length": 3, **engine}
    build = functools.partial(make_distillation, TbpttDistillation, T, N, **{**shared, **options})
    return Case(build, roll_out, before, changes, least_replays)


def rnd_cfg(**options):
    """Return a new config of RND, since rsl_rl 5.0 removes entries."""
    return {
        "num_states": STATE_DIM,
        "obs_groups": {"rnd_state": ["state"], "actor": ["policy"], "critic": ["state"]},
        "num_outputs": 3,
        "predictor_hidden_dims": [8],
        "target_hidden_dims": [8],
        "weight": 0.5,
        "learning_rate": 1e-2,
        **options,
    }


def imitating(**options):
    """Describe PPO with a teacher."""
    shared = {"teacher": "lstm", "teacher_cfg": {"class_name": "any"}, "teacher_coef": 0.8}
    return reinforcing(**{**shared, **options})


def rewarding(trained, seed):
    """Fill the storage with rewards whose returns rise."""
    roll_out_ppo(trained, seed, on_step=lambda step, obs, rewards: rewards.add_(seed - 1.0))


def between(*changes):
    """Return a function that sets options, (number of the update, name, value) each."""

    def before(trained, update):
        for at, name, value in changes:
            if update == at:
                setattr(trained, name, value)

    return before


def weigh(transitions):
    """Give about half of all steps weight 0, and the others different weights."""
    return transitions.obs["state"][..., 0].relu()


def after(update, change):
    """Return a function that changes the algorithm once, before an update with this number."""
    return lambda trained, number: change(trained) if number == update else None


def loading():
    """Return a function that loads an earlier checkpoint before the fourth update."""
    saved = {}

    def before(trained, update):
        if update == 1:
            saved.update(through_a_file(trained.save()))
        if update == 3:
            trained.load(saved, None, strict=True)

    return before


def frozen(name):
    """Return a function that freezes a model."""
    return lambda trained: getattr(trained, name).requires_grad_(False) and None


SLICES = [
    {"loss": "mse", "actions": [0, 1], "name": "joint"},
    {"loss": "bce", "actions": [1, 2], "coef": 0.5, "name": "gripper"},
]
PENALTY = {"policy_loss": "kl_penalty", "schedule": "fixed", "changes": "kl_coef"}
WINDOWS = {"minibatch_unit": "window", "gradient_length": 2}
BUFFER = {"buffer_rollouts": 2}

PPO_CASES = {
    "defaults": reinforcing(),
    "dual-clip-and-clip-higher": reinforcing(dual_clip_param=3.0, clip_param_high=0.28),
    "kl-penalty": reinforcing(**PENALTY, learning_rate=1e-2),
    "fixed-rate": reinforcing(schedule="fixed"),
    "no-clipping": reinforcing(max_grad_norm=None, use_clipped_value_loss=False),
    "negative-entropy": reinforcing(entropy_coef=-0.02, value_loss_coef=0.5),
    "advantages-per-mini-batch": reinforcing(normalize_advantage_per_mini_batch=True),
    "episode-mean": reinforcing(loss_reduction="episode_mean", gradient_length=2),
    "windows-of-envs": reinforcing(gradient_length=2),
    "windows-with-a-shorter-one": reinforcing(gradient_length=4),
    "in-order": reinforcing(shuffle_envs=False),
    "single-windows": reinforcing(**WINDOWS),
    "burn-in": reinforcing(**WINDOWS, burn_in_length=3),
    "burn-in-episode-mean": reinforcing(
        **WINDOWS, burn_in_length=1, loss_reduction="episode_mean"
    ),
    "micro-batches": reinforcing(num_micro_batches=2, gradient_length=2),
    "mixed-precision": reinforcing(use_mixed_precision=True, gradient_length=2),
    "sgd": reinforcing(optimizer="sgd", learning_rate=1e-2),
    "adamw": reinforcing(optimizer="adamw"),
    "single-steps": reinforcing("mlp", "mlp"),
    "single-steps-episode-mean": reinforcing("mlp", "mlp", loss_reduction="episode_mean"),
    "mlp-critic": reinforcing("lstm", "mlp", gradient_length=2),
    **{kind: reinforcing(kind, kind, gradient_length=2) for kind in MEMORIES},
    "two-layers": reinforcing(actor_kwargs={"rnn_num_layers": 2}),
    "obs-normalization": reinforcing(actor_kwargs=NORMALIZED),
    "obs-normalization-single-steps": reinforcing("mlp", "mlp", actor_kwargs=NORMALIZED),
    "teacher-linear": imitating(teacher_updates=3, changes="teacher_coef", least_replays=6),
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
        least_replays=4,
    ),
    "teacher-mse": imitating(teacher_loss="mse", teacher="mlp"),
    "teacher-nll": imitating(teacher_loss="nll", gradient_length=2),
    "heads": reinforcing(auxiliary=HEADS, gradient_length=3),
    "heads-single-steps": reinforcing("mlp", "mlp", auxiliary=HEADS),
    "augmentation": reinforcing(symmetry_cfg=symmetry_cfg(mirror_loss=False)),
    "mirror-loss": reinforcing(symmetry_cfg=symmetry_cfg(augmentation=False), gradient_length=2),
    "symmetry-two-images": reinforcing(symmetry_cfg=symmetry_cfg(num_images=2), **WINDOWS),
    "symmetry-single-steps": reinforcing("mlp", "mlp", symmetry_cfg=symmetry_cfg()),
    "rnd": reinforcing(rnd={}),
    "rnd-normalized": reinforcing(
        rnd={"state_normalization": True, "reward_normalization": True}, gradient_length=2
    ),
    "rnd-single-steps": reinforcing("mlp", "mlp", rnd={"state_normalization": True}),
    "rate-set-by-you": reinforcing(
        schedule="fixed", before=between((2, "learning_rate", 5e-3), (4, "learning_rate", 2e-3))
    ),
    "adaptive-rate-set-by-you": reinforcing(before=between((3, "learning_rate", 5e-3))),
    **{
        f"changed-{name}": reinforcing(before=between((3, name, value)))
        for name, value in {
            "clip_param": 0.01,
            "clip_param_high": 0.5,
            "desired_kl": 1e-4,
            "dual_clip_param": 1.1,
            "entropy_coef": 0.5,
            "gamma": 0.5,
            "lam": 0.5,
            "max_grad_norm": 0.01,
            "num_learning_epochs": 3,
            "schedule": "fixed",
            "use_clipped_value_loss": False,
            "value_loss_coef": 0.1,
        }.items()
    },
    "frozen-critic": reinforcing(before=after(3, frozen("critic"))),
    "frozen-actor": reinforcing(before=after(3, frozen("actor"))),
    "loaded": reinforcing(before=loading(), actor_kwargs=NORMALIZED),
    "loaded-rnd": reinforcing(before=loading(), rnd={"state_normalization": True}),
    "critic-warm-up": Case(
        functools.partial(
            make_fine_tuned,
            scan_engine="reference",
            critic_warmup_iterations=2,
            num_learning_epochs=2,
            teacher_updates=4,
        ),
        roll_out_ppo,
        changes="teacher_coef",
    ),
}

DISTILLATION_CASES = {
    "defaults": distilling(),
    **{
        f"loss-{loss}": distilling(loss_type=loss) for loss in ("mse", "huber", "kl", "nll", "bce")
    },
    "loss-slices": distilling(loss_type=SLICES),
    "loss-of-your-own": distilling(loss_type=absolute_error),
    "buffer": distilling(**BUFFER),
    "buffer-double-share": distilling(**BUFFER, buffer_share=2.0, least_replays=6),
    "buffer-of-an-mlp": distilling(**BUFFER, student="mlp"),
    "one-mini-batch": distilling(num_mini_batches=1, num_learning_epochs=1, least_replays=5),
    "k1-longer": distilling(gradient_length=2, update_length=4),
    "k1-shorter": distilling(gradient_length=4, update_length=2),
    "tail-dropped": distilling(gradient_length=4, tail="drop"),
    "sum": distilling(loss_reduction="sum", max_grad_norm=None),
    "micro-batches": distilling(num_micro_batches=2),
    "mixed-precision": distilling(use_mixed_precision=True, **BUFFER),
    "sgd": distilling(optimizer="sgd", learning_rate=1e-2),
    "adamw": distilling(optimizer="adamw"),
    **{kind: distilling(student=kind) for kind in ("mlp", *MEMORIES)},
    "two-layers": distilling(student_kwargs={"rnn_num_layers": 2}),
    "obs-normalization": distilling(student_kwargs=NORMALIZED, **BUFFER),
    "weights": distilling(imitation_weight=weigh),
    "weights-buffer": distilling(imitation_weight=weigh, **BUFFER, loss_type=SLICES),
    "augmentation": distilling(symmetry_cfg=symmetry_cfg(mirror_loss=False)),
    "augmentation-buffer": distilling(symmetry_cfg=symmetry_cfg(mirror_loss=False), **BUFFER),
    "heads": distilling(auxiliary=HEADS),
    "heads-buffer": distilling(auxiliary=HEADS, **BUFFER),
    "heads-of-teacher-layers": distilling(auxiliary={"latent": {"target": "teacher:mlp.0"}}),
    "recurrent-teacher": distilling(teacher="lstm"),
    "labels-in-batches": distilling(batch_teacher_labels=True, loss_type="kl"),
    "heads-of-teacher-layers-in-batches": distilling(
        batch_teacher_labels=True, auxiliary={"latent": {"target": "teacher:mlp.0"}}
    ),
    "dagger": distilling(teacher_action_share=0.5, teacher_action_updates=3),
    "falling-rate": distilling(learning_rate_updates=4),
    "rate-set-by-you": distilling(
        before=between((2, "learning_rate", 5e-3), (4, "learning_rate", 2e-3))
    ),
    "changed-max_grad_norm": distilling(before=between((3, "max_grad_norm", 0.01))),
    "loaded": distilling(before=loading(), student_kwargs=NORMALIZED),
    "loaded-buffer": distilling(before=loading(), save_buffer=True, **BUFFER, least_replays=4),
    "loaded-heads": distilling(before=loading(), auxiliary=HEADS),
}


def check_equal(case, **options):
    """Check that a training is equal to the bit with recorded steps; return both."""
    plain, recorded = (train(case, records=records, **options) for records in (False, True))
    assert_same(recorded.metrics, plain.metrics)
    assert_same(recorded.state, plain.state)
    assert recorded.num_replays >= case.least_replays
    if case.changes:
        assert len({metrics.get(case.changes) for metrics in plain.metrics}) > 1
    return plain, recorded


@pytest.mark.parametrize("name", PPO_CASES)
def test_ppo_trains_to_the_same_bits(name):
    check_equal(PPO_CASES[name])


@pytest.mark.parametrize("name", DISTILLATION_CASES)
def test_distillation_trains_to_the_same_bits(name):
    check_equal(DISTILLATION_CASES[name])

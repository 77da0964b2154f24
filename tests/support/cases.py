"""Small trainings with every option, which all laws take: digest, recorded, undone, resumed, ...

A new option is one line in one of these tables. ``build`` makes an algorithm from fixed seeds,
``fill`` its next rollout::

    case = CASES["ppo-window"]
    algorithm = case.build()
    case.fill(algorithm, seed)
    algorithm.update()

With rsl_rl 3 the table has the algorithms of its policies.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from rsl_tbptt.compat import POLICY_ERA, rsl_rl_era

NUM_STEPS, NUM_ENVS = 7, 6

sys.path.append(str(Path(__file__).parents[2] / "examples" / "extensions"))
SMOOTH = {"class_name": "smoothness:Smoothness", "coef": 0.3, "noise_coef": 0.2}
MIRROR = {"class_name": "mirror:Mirror", "coef": 0.5, "function": "support.cases:turn_signs"}
GATING = {"class_name": "success_gating:SuccessGating", "other_weight": 0.3}
CONCURRENT = {"class_name": "concurrent_teacher:ConcurrentTeacher", "share": 0.5, "coef": 0.6}
SLICE = {"class_name": "action_slices:ActionSlice", "columns": [1], "loss": "bce", "coef": 0.4}

NORMALIZED: dict[str, Any] = {"obs_normalization": True}
BUFFER: dict[str, Any] = {"buffer_rollouts": 2, "save_buffer": True, "num_mini_batches": 2}
HEADS: dict[str, Any] = {
    "velocity": {"target": "state", "hidden_dims": [5], "coef": 0.7},
    "next": {"target": "policy", "loss": "huber", "coef": 1.3},
    "probe": {"target": "state", "loss": "bce", "detach": True, "hidden_dims": [4, 3]},
    "own": {"target": "policy", "loss": "support.helpers:absolute_error", "coef": 0.4},
}
NORMALIZED_RND: dict[str, Any] = {"state_normalization": True, "reward_normalization": True}
EXPECTED_WARNINGS = [
    pytest.mark.filterwarnings(f"ignore:{message}")
    for message in (
        "Time-outs are bootstrapped with the value",
        "scan_engine is 'reference', which has no effect on a",
        "gradient_length is 9, more than num_steps_per_env",
        "optimizer contains a parameter group with duplicate parameters",
    )
]
FOLDER = tempfile.TemporaryDirectory()
"""Of teachers' files, until this process ends."""


class Case(NamedTuple):
    """A training."""

    build: Callable[..., Any]
    """Makes the algorithm; options that it is given replace those of the case."""
    fill: Callable[..., None]
    """Fills the storage, given the algorithm, a seed, and possibly ``on_step`` of ``roll_out``."""
    num_updates: int = 2
    """Of its digest."""


def turn_signs(env: Any, obs: Any, actions: Any) -> Any:
    """Append a mirror image in which all signs are turned."""
    obs = None if obs is None else torch.cat((obs, obs.apply(torch.neg)))
    return obs, None if actions is None else torch.cat((actions, -actions))


def fill_with_held_frames(algorithm: Any, seed: int, on_step: Any = None) -> None:
    """Fill the storage with images that environments repeat for three steps."""
    from support.helpers import hold_frames, roll_out

    hold = hold_frames(3)

    def change(step: int, obs: Any, *rewards: torch.Tensor) -> None:
        hold(step, obs)
        if on_step is not None:
            on_step(step, obs, *rewards)

    roll_out(algorithm, seed, on_step=change)


def _distillation_cases() -> dict[str, Case]:
    from rsl_tbptt.algorithms import TbpttDistillation
    from support.helpers import MODELS, absolute_error, make_distillation, roll_out

    def case(fill: Callable[..., None] = roll_out, **options: Any) -> Case:
        student = options.get("student", "lstm")
        options = {"gradient_length": 3, "scan_engine": "reference", **options}
        if student in ("mlp", "cnn", "images", "stepwise"):
            del options["scan_engine"]
        normalized = {} if student == "images" else NORMALIZED
        options["student_kwargs"] = {**normalized, **options.get("student_kwargs", {})}

        def build(num_envs: int = NUM_ENVS, **others: Any) -> Any:
            chosen = {**options, **others}
            return make_distillation(TbpttDistillation, NUM_STEPS, num_envs, **chosen)

        return Case(build, fill)

    options = {
        **{f"student-{kind}": {"student": kind} for kind in (*MODELS, "sru", "stepwise")},
        **{f"teacher-{kind}": {"teacher": kind} for kind in MODELS},
        "two-layers": {"student_kwargs": {"rnn_num_layers": 2}},
        "accumulating": {"update_length": 6},
        "overlapping": {"gradient_length": 5, "update_length": 2},
        "whole": {"gradient_length": 9},
        "sum-drop": {"loss_reduction": "sum", "tail": "drop", "max_grad_norm": None},
        "chunks": {"num_micro_batches": 3},
        "epochs": {"num_learning_epochs": 3, "learning_rate": 3e-3},
        "huber": {"loss_type": "huber", "student": "gru"},
        "kl": {"loss_type": "kl"},
        "kl-gru-chunks": {"loss_type": "kl", "student": "gru", "num_micro_batches": 2},
        "nll": {"loss_type": "nll", "student": "mlp"},
        "bce-heads": {"loss_type": "bce", "auxiliary": HEADS, "num_micro_batches": 2},
        "function": {"loss_type": absolute_error},
        "adamw": {"optimizer": "adamw"},
        "sgd": {"optimizer": "sgd", "max_grad_norm": 0.1},
        "rmsprop": {"optimizer": "rmsprop"},
        "dagger": {"teacher_action_share": 0.5, "teacher_action_updates": 3},
        "dagger-lstm-held-out": {
            "teacher": "lstm",
            "teacher_action_share": 0.5,
            "held_out_envs": 2,
            **BUFFER,
        },
        "bfloat16": {"use_mixed_precision": True},
        "buffer": {**BUFFER, "num_learning_epochs": 2, "held_out_envs": 1},
        "buffer-heads-average": {
            **BUFFER,
            "auxiliary": HEADS,
            "weight_average": True,
            "student": "gru",
        },
        "average-falling-rate": {"weight_average": True, "learning_rate_updates": 4},
        "smooth-slice": {"extensions": [SMOOTH, SLICE], **BUFFER, "gradient_length": 2},
        "gating-mirror": {"extensions": [GATING, MIRROR], "num_micro_batches": 2},
        "frames-buffer": {"student": "cnn-gru", "fill": fill_with_held_frames, **BUFFER},
    }
    return {f"distillation-{name}": case(**chosen) for name, chosen in options.items()}


def _ppo_cases() -> dict[str, Case]:
    from rsl_tbptt.algorithms import TbpttPPO
    from support.fine_tuning import distilled, make_pulled
    from support.helpers import MODELS, make_ppo, rnd_cfg, roll_out
    from support.imitation import make_imitating, teacher_file

    def case(
        rnd: dict[str, Any] | None = None, fill: Callable[..., None] = roll_out, **options: Any
    ) -> Case:
        kinds = {options.get("actor", "lstm"), options.get("critic", "lstm")}
        memories = {kind for kind in kinds if kind.endswith(("lstm", "gru", "sru", "stepwise"))}
        defaults: dict[str, Any] = {"gradient_length": 3} if memories else {}
        if kinds == memories - {"stepwise"}:
            defaults["scan_engine"] = "reference"
        defaults |= {"num_mini_batches": 2, "num_learning_epochs": 2}
        if options.get("actor") != "images":
            defaults["actor_kwargs"] = NORMALIZED

        def build(num_envs: int = NUM_ENVS, **others: Any) -> Any:
            extra = {} if rnd is None else {"rnd_cfg": rnd_cfg(**NORMALIZED_RND | rnd)}
            chosen = {**defaults, **options, **extra, **others}
            return make_ppo(TbpttPPO, NUM_STEPS, num_envs, **chosen)

        return Case(build, fill)

    def fine_tuned(num_updates: int = 4, **options: Any) -> Case:
        def build(**others: Any) -> Any:
            algorithm = make_pulled(**{"gradient_length": 3, **options, **others})
            algorithm.load(distilled(teacher=options.get("teacher", "lstm")), None, strict=True)
            return algorithm

        return Case(build, roll_out, num_updates)

    def imitating(**options: Any) -> Case:
        def build(**others: Any) -> Any:
            path = teacher_file(Path(FOLDER.name), options.get("teacher", "lstm"))
            return make_imitating(path, **{"scan_engine": "reference", **options, **others})

        return Case(build, roll_out)

    def fill_with_final_observations(algorithm: Any, seed: int, **hooks: Any) -> None:
        process = algorithm.process_env_step

        def process_with_final(obs: Any, rewards: Any, dones: Any, extras: Any) -> None:
            process(obs, rewards, dones, {**extras, "final_obs": dict(obs.apply(torch.neg))})

        algorithm.process_env_step = process_with_final
        roll_out(algorithm, seed, **hooks)
        del algorithm.process_env_step

    window = {"minibatch_unit": "window", "gradient_length": 3}
    mlps = {"actor": "mlp", "critic": "mlp"}
    options = {
        **{f"models-{kind}": {"actor": kind, "critic": kind} for kind in (*MODELS, "sru")},
        "models-lstm-mlp": {"critic": "mlp"},
        "models-mlp-gru": {"actor": "mlp", "critic": "gru"},
        "models-shared": {"actor": "cnn", "critic": "sharing", "actor_kwargs": {}},
        "models-stepwise": {"actor": "stepwise", "num_mini_batches": 1, "num_learning_epochs": 1},
        "two-layers": {"actor_kwargs": {"rnn_num_layers": 2}},
        "whole": {"gradient_length": None},
        "window": window,
        "chunks": {"num_micro_batches": 3},
        "in-order": {"shuffle_envs": False},
        "fixed": {"schedule": "fixed", "max_grad_norm": None, "use_clipped_value_loss": False},
        "sgd": {"optimizer": "sgd", "max_grad_norm": 0.1},
        "adamw": {"optimizer": "adamw", "desired_kl": 0.05},
        "rmsprop": {"optimizer": "rmsprop"},
        "per-mini-batch": {"normalize_advantage_per_mini_batch": True, "value_loss_coef": 0.5},
        "returns": {"gamma": 0.9, "lam": 0.8, "clip_param": 0.1, "learning_rate": 3e-4},
        "bfloat16": {"use_mixed_precision": True},
        "rnd-lstm": {"rnd": {}},
        "rnd-mlp": {"rnd": {}, **mlps},
        "rnd-heads-window": {"rnd": {}, "auxiliary": HEADS, **window, "num_micro_batches": 2},
        "heads-mlp": {"auxiliary": HEADS, **mlps},
        "smooth-window": {"extensions": [SMOOTH], **window, "auxiliary": HEADS},
        "gating-mirror": {"extensions": [GATING, MIRROR], "actor": "gru"},
        "concurrent-window-mlp": {"extensions": [CONCURRENT], **window, "critic": "mlp"},
        "concurrent-chunks": {"extensions": [CONCURRENT, SMOOTH], "num_micro_batches": 2},
        "frames": {"actor": "cnn-lstm", "critic": "mlp", "fill": fill_with_held_frames},
        "final-observations": {
            "actor_kwargs": {},
            "num_learning_epochs": 5,
            "scan_engine": "auto",
            "fill": fill_with_final_observations,
        },
    }
    named = {f"ppo-{name}": case(**chosen) for name, chosen in options.items()}
    named["ppo-fine-tuned"] = fine_tuned(
        student_action_std=0.2, critic_warmup_iterations=1, teacher_updates=2
    )
    named["ppo-pulled-by-mlp"] = fine_tuned(2, teacher="mlp", **window)
    named["ppo-imitating"] = imitating(teacher_updates=3, teacher_coef_end=0.1)
    named["ppo-imitating-nll"] = imitating(teacher_loss="nll", gradient_length=2)
    named["ppo-imitating-mse-mlp"] = imitating(
        teacher_loss="mse", teacher="mlp", models=("gru", "gru"), auxiliary=HEADS
    )
    return named


def _cases() -> dict[str, Case]:
    if rsl_rl_era() == POLICY_ERA:
        from support import policy_era

        builds = policy_era.builds().items()
        return {name: Case(build, policy_era.roll_out) for name, build in builds}
    return {**_distillation_cases(), **_ppo_cases()}


CASES = _cases()
"""Name -> case, for the installed release of rsl_rl."""

_READS = {"cnn", "images", "shared", "frames", "stepwise", "rmsprop"}
"""Parts of the names of cases whose steps read on the host; with some of them, of their updates."""

RECORDED = [name for name in CASES if _READS.isdisjoint(name.split("-"))]
"""Cases whose steps are recorded, because they never wait for the device."""

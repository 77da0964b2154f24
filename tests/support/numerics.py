"""The exact results of small updates, recorded so that no refactoring changes them.

Every case builds an algorithm on fixed seeds in float64 with the reference engine, makes two
updates and reads parameters, buffers, optimisers and metrics, in two forms::

    bits         a digest of the exact numbers: equal before and after a change, on one machine
    projections  a few weighted sums: equal up to rounding on any machine, kept in numerics.json

``python tests/support/numerics.py`` prints both for the installed rsl_rl; ``--record`` writes the
projections of this release into the file.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import sys
import warnings
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path[:0] = map(str, Path(__file__).parents[1:3])  # of this checkout, the package included

RECORDED = Path(__file__).parents[1] / "numerics.json"
NUM_STEPS, NUM_ENVS = 7, 6
NUM_PROJECTIONS = 3
NEWER_NAMES = {"episode_start_rate": "done_rate", "teacher_kl_coef": "teacher_coef"}
"""Metrics that were renamed since they were recorded."""

Case = Callable[[], Any]
"""Builds an algorithm, trains it and returns it with the metrics of its last update."""


def with_signs_turned(env: Any, obs: Any, actions: Any) -> Any:
    """Append a mirror image in which all signs are turned, for ``symmetry_cfg``."""
    obs = None if obs is None else torch.cat((obs, obs.apply(torch.neg)))
    return obs, None if actions is None else torch.cat((actions, -actions))


def release() -> str:
    """Return the installed release of rsl_rl."""
    return version("rsl-rl-lib")


def cases() -> dict[str, Case]:
    """Return the cases of the installed release by name."""
    if release() == "3.1.2":
        return _cases_of_policies()
    return {**_distillation_cases(), **_ppo_cases()}


def run(case: Case) -> dict[str, Any]:
    """Run a case in float64, and return its numbers: tensors by kind, metrics by name."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            algorithm, metrics = case()
    finally:
        torch.set_default_dtype(torch.float32)
    modules, optimizers = _changed_by(algorithm)
    return {
        "parameters": [p.detach() for module in modules for p in module.parameters()],
        "buffers": [b for module in modules for b in module.buffers()],
        "optimizer": [t for optimizer in optimizers for t in _tensors_of(optimizer)],
        "metrics": metrics,
    }


def bits(numbers: dict[str, Any]) -> dict[str, str]:
    """Digest tensors exactly, metrics to ten digits because their order of summation may vary."""
    digests = {
        name: hashlib.sha256(
            b"".join(t.cpu().contiguous().numpy().tobytes() for t in tensors)
        ).hexdigest()[:16]
        for name, tensors in numbers.items()
        if name != "metrics"
    }
    named = {
        name: f"{value:.10g}"
        for name, value in sorted(numbers["metrics"].items())
        if name not in NEWER_NAMES.values()
    }
    return {**digests, "metrics": json.dumps(named)}


def projections(numbers: dict[str, Any]) -> dict[str, Any]:
    """Return weighted sums of each kind of tensor, and the metrics."""
    sums = {}
    for name, tensors in numbers.items():
        if name != "metrics":
            vector = torch.cat(
                [
                    torch.zeros(1, dtype=torch.float64),
                    *(t.flatten().double().cpu() for t in tensors),
                ]
            )
            places = torch.arange(len(vector), dtype=torch.float64)
            sums[name] = [
                float(vector @ torch.cos((1.0 + 0.618 * k) * places))
                for k in range(NUM_PROJECTIONS)
            ]
    return {**sums, "metrics": dict(sorted(numbers["metrics"].items()))}


def _changed_by(algorithm: Any) -> tuple[list[nn.Module], list[torch.optim.Optimizer]]:
    """Return the tensors that an update changes."""
    if hasattr(algorithm, "policy"):
        modules = [algorithm.policy]
    else:
        roles = ("student", "teacher", "actor", "critic")
        modules = [getattr(algorithm, role) for role in roles if hasattr(algorithm, role)]
    optimizers = [algorithm.optimizer]
    rnd = getattr(algorithm, "rnd", None)
    if rnd:
        modules.append(rnd)
        optimizers.append(getattr(rnd, "optimizer", None) or algorithm.rnd_optimizer)
    return modules, optimizers


def _tensors_of(optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    """Return the state of an optimiser and the learning rates, as tensors."""
    for entries in optimizer.state.values():
        yield from (torch.as_tensor(value).detach() for value in entries.values())
    for group in optimizer.param_groups:
        yield torch.tensor(group["lr"], dtype=torch.float64)


def _trained(algorithm: Any, roll_out: Callable[..., None], updates: int = 2) -> Any:
    for seed in range(updates):
        roll_out(algorithm, seed)
        metrics = algorithm.update()
    return algorithm, metrics


def _at_2(change: Callable[..., Any]) -> Callable[..., None]:
    """Return a function for ``roll_out`` that changes step 2."""
    return lambda step, *of_step: change(*of_step) if step == 2 else None


def _continued(algorithm: Any, other: Any) -> Any:
    """Train another algorithm from the checkpoint of the first."""
    from support.helpers import roll_out

    other.load(algorithm.save(), None, strict=True)
    return _trained(other, roll_out)


def _planned(algorithm: Any) -> Any:
    """Train, with a plan of memory after each rollout."""
    from support.helpers import make_obs, roll_out

    algorithm.act(make_obs(NUM_ENVS, torch.Generator().manual_seed(3)))
    algorithm.train_mode()

    def rolled_out_and_planned(*args: Any) -> None:
        roll_out(*args)
        algorithm.memory_plan()

    return _trained(algorithm, rolled_out_and_planned)


NORMALIZED: dict[str, Any] = {"obs_normalization": True}
LSTM_2 = {"rnn_num_layers": 2}
NORMALIZED_RND: dict[str, Any] = {"state_normalization": True, "reward_normalization": True}


def _distillation_cases() -> dict[str, Case]:
    from rsl_tbptt.algorithms import TbpttDistillation
    from support.helpers import (
        MODELS,
        absolute_error,
        make_distillation,
        roll_out,
    )

    def case(**options: Any) -> Case:
        options = {"gradient_length": 3, "scan_engine": "reference", **options}
        if options.get("student", "lstm") not in ("lstm", "gru"):
            options.pop("scan_engine")
        normalized = {} if options.get("student") == "images" else NORMALIZED
        normalized = {**normalized, **options.pop("student_kwargs", {})}

        def train() -> Any:
            algorithm = make_distillation(
                TbpttDistillation, NUM_STEPS, NUM_ENVS, student_kwargs=normalized, **options
            )
            return _trained(algorithm, roll_out)

        return train

    def plain(**options: Any) -> Any:
        return make_distillation(
            TbpttDistillation, NUM_STEPS, NUM_ENVS, gradient_length=3, **options
        )

    def skipped() -> Any:
        algorithm, _ = _trained(plain(scan_engine="reference"), roll_out, 1)
        roll_out(algorithm, 1, on_step=_at_2(lambda obs: obs["policy"][1].fill_(torch.nan)))
        algorithm.update()
        return _trained(algorithm, roll_out)

    def resumed() -> Any:
        algorithm, _ = case(num_learning_epochs=2)()
        return _continued(algorithm, plain(student_kwargs=NORMALIZED))

    options = {
        **{f"student-{kind}": {"student": kind} for kind in MODELS},
        **{f"teacher-{kind}": {"teacher": kind} for kind in MODELS},
        "two-layers": {"student_kwargs": LSTM_2},
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
        "function": {"loss_type": absolute_error},
        "adamw": {"optimizer": "adamw"},
        "sgd": {"optimizer": "sgd", "max_grad_norm": 0.1},
        "rmsprop": {"optimizer": "rmsprop"},
        "dagger": {"teacher_action_share": 0.5, "teacher_action_updates": 3},
        "batch-labels": {"batch_teacher_labels": True},
        "batch-labels-kl": {"batch_teacher_labels": True, "loss_type": "kl"},
        "bfloat16": {"use_mixed_precision": True},
        "budget": {"memory_budget_gb": 1.0},
    }
    named = {f"distillation-{name}": case(**chosen) for name, chosen in options.items()}
    named["distillation-skipped"] = skipped
    named["distillation-resumed"] = resumed
    named["distillation-planned"] = lambda: _planned(plain())
    return named


def _ppo_cases() -> dict[str, Case]:
    from rsl_tbptt.algorithms import TbpttPPO
    from support.fine_tuning import distilled, make_pulled
    from support.helpers import MODELS, make_ppo, rnd_cfg, roll_out

    def case(rnd: dict[str, Any] | None = None, **options: Any) -> Case:
        recurrent = {"lstm", "gru"} & {options.get("actor", "lstm"), options.get("critic", "lstm")}
        both = {options.get("actor", "lstm"), options.get("critic", "lstm")} <= {"lstm", "gru"}
        defaults: dict[str, Any] = {"gradient_length": 3} if recurrent else {}
        defaults |= {"scan_engine": "reference"} if both else {}
        defaults |= {"num_mini_batches": 2, "num_learning_epochs": 2}
        if options.get("actor") != "images":
            defaults["actor_kwargs"] = NORMALIZED

        def train() -> Any:
            extra = {} if rnd is None else {"rnd_cfg": rnd_cfg(**NORMALIZED_RND | rnd)}
            algorithm = make_ppo(TbpttPPO, NUM_STEPS, NUM_ENVS, **{**defaults, **options, **extra})
            return _trained(algorithm, roll_out)

        return train

    def symmetric() -> Any:
        from rsl_rl.extensions import resolve_symmetry_config

        cfg = {
            "data_augmentation_func": with_signs_turned,
            "use_data_augmentation": True,
            "use_mirror_loss": True,
            "mirror_loss_coeff": 0.7,
        }
        env: Any = None  # not needed by the function above
        cfg = resolve_symmetry_config({"symmetry_cfg": cfg}, env)["symmetry_cfg"]
        return case(actor="mlp", critic="mlp", symmetry_cfg=cfg)()

    def plain(**options: Any) -> Any:
        lengths: dict[str, Any] = {"gradient_length": 3, "num_mini_batches": 2}
        return make_ppo(TbpttPPO, NUM_STEPS, NUM_ENVS, **lengths, **options)

    def skipped() -> Any:
        algorithm, _ = case()()
        roll_out(algorithm, 5, on_step=_at_2(lambda obs, rewards: rewards[1].fill_(torch.inf)))
        algorithm.update()
        return _trained(algorithm, roll_out)

    def resumed() -> Any:
        algorithm, _ = case(**penalty)()
        return _continued(algorithm, plain(actor_kwargs=NORMALIZED, **penalty))

    def fine_tuned(updates: int = 4, **options: Any) -> Case:
        def train() -> Any:
            options.setdefault("gradient_length", 3)
            algorithm = make_pulled(**options)
            algorithm.load(distilled(teacher=options.get("teacher", "lstm")), None, strict=True)
            return _trained(algorithm, roll_out, updates)

        return train

    def with_final_observations() -> Any:
        algorithm = plain()
        process = algorithm.process_env_step

        def process_with_final(obs: Any, rewards: Any, dones: Any, extras: Any) -> None:
            process(obs, rewards, dones, {**extras, "final_obs": dict(obs.apply(torch.neg))})

        algorithm.process_env_step = process_with_final
        return _trained(algorithm, roll_out)

    window = {"minibatch_unit": "window", "gradient_length": 3}
    penalty: dict[str, Any] = {"policy_loss": "kl_penalty", "schedule": "fixed"}
    episodes = {"loss_reduction": "episode_mean", "value_loss_coef": 0.7}
    options = {
        **{f"models-{kind}": {"actor": kind, "critic": kind} for kind in MODELS},
        "models-lstm-mlp": {"critic": "mlp"},
        "models-mlp-gru": {"actor": "mlp", "critic": "gru"},
        "models-shared": {"actor": "cnn", "critic": "sharing", "actor_kwargs": {}},
        "two-layers": {"actor_kwargs": LSTM_2},
        "whole": {"gradient_length": None},
        "window": window,
        "window-burn-in": {**window, "burn_in_length": 2, "num_mini_batches": 3},
        "window-gru-episodes": {**window, **episodes, "actor": "gru", "critic": "gru"},
        "chunks": {"num_micro_batches": 3},
        "in-order": {"shuffle_envs": False},
        "episodes": episodes,
        "episodes-mlp": {**episodes, "actor": "mlp", "critic": "mlp"},
        "kl-penalty": penalty,
        "clip-high": {"clip_param_high": 0.28, "dual_clip_param": 3.0, "entropy_coef": -0.02},
        "fixed": {"schedule": "fixed", "max_grad_norm": None, "use_clipped_value_loss": False},
        "sgd": {"optimizer": "sgd", "max_grad_norm": 0.1},
        "adamw": {"optimizer": "adamw", "desired_kl": 0.05},
        "rmsprop": {"optimizer": "rmsprop"},
        "per-mini-batch": {"normalize_advantage_per_mini_batch": True, "value_loss_coef": 0.5},
        "returns": {"gamma": 0.9, "lam": 0.8, "clip_param": 0.1, "learning_rate": 3e-4},
        "bfloat16": {"use_mixed_precision": True},
        "budget": {"memory_budget_gb": 1.0},
    }
    named = {f"ppo-{name}": case(**chosen) for name, chosen in options.items()}
    for name, models in (("lstm", {}), ("mlp", {"actor": "mlp", "critic": "mlp"})):
        named[f"ppo-rnd-{name}"] = case(rnd={}, **models)
    named["ppo-symmetry"] = symmetric
    named["ppo-skipped"] = skipped
    named["ppo-resumed"] = resumed
    named["ppo-planned"] = lambda: _planned(plain())
    named["ppo-final-observations"] = with_final_observations
    named["ppo-fine-tuned"] = fine_tuned(
        student_action_std=0.2, critic_warmup_iterations=1, teacher_updates=2
    )
    named["ppo-pulled-by-mlp"] = fine_tuned(2, teacher="mlp", **window)
    return named


def _cases_of_policies() -> dict[str, Case]:
    """Return the cases of rsl_rl 3, whose algorithms take one policy."""
    from rsl_tbptt.integrations import rsl_rl_v3 as ours
    from support import policy_era

    def distillation(**options: Any) -> Case:
        options = {"gradient_length": 3, "student": "lstm", **options}

        def train() -> Any:
            algorithm = policy_era.make_distillation(
                ours.TbpttDistillation, NUM_STEPS, NUM_ENVS, **options
            )
            return _trained(algorithm, policy_era.roll_out)

        return train

    def ppo(**options: Any) -> Case:
        options = {"num_mini_batches": 2, "num_learning_epochs": 2, **options}
        if options.get("kind", "lstm") != "mlp":
            options = {"gradient_length": 3, "scan_engine": "reference", **options}

        def train() -> Any:
            algorithm = policy_era.make_ppo(ours.TbpttPPO, NUM_STEPS, NUM_ENVS, **options)
            return _trained(algorithm, policy_era.roll_out)

        return train

    student_options = {
        **{f"student-{kind}": {"student": kind} for kind in ("mlp", "lstm", "gru")},
        "sum-drop": {"loss_reduction": "sum", "tail": "drop"},
        "nll-chunks": {"loss_type": "nll", "num_micro_batches": 2},
        "batch-labels": {"batch_teacher_labels": True, "optimizer": "sgd"},
        "dagger": {"teacher_action_share": 0.5},
        "normalized": {"policy_kwargs": {"student_obs_normalization": True}},
    }
    ppo_options = {
        **{f"models-{kind}": {"kind": kind} for kind in ("mlp", "lstm", "gru")},
        "window": {"minibatch_unit": "window", "burn_in_length": 1},
        "kl-penalty": {"policy_loss": "kl_penalty", "schedule": "fixed"},
        "episodes": {"loss_reduction": "episode_mean", "value_loss_coef": 0.7},
        "clipped": {"max_grad_norm": 0.1, "optimizer": "sgd"},
        "normalized": {"policy_kwargs": {"actor_obs_normalization": True}},
        "log-std": {"policy_kwargs": {"noise_std_type": "log"}},
    }
    return {
        **{f"distillation-{name}": distillation(**o) for name, o in student_options.items()},
        **{f"ppo-{name}": ppo(**chosen) for name, chosen in ppo_options.items()},
    }


def main() -> None:
    """Print the numbers of the installed release, or record them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", action="store_true", help=f"write {RECORDED.name}")
    args = parser.parse_args()
    with contextlib.redirect_stdout(io.StringIO()):  # rsl_rl prints what it does
        numbers = {name: run(case) for name, case in cases().items()}
    if args.record:
        recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
        recorded[release()] = {name: projections(found) for name, found in numbers.items()}
        RECORDED.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
    print(json.dumps({name: bits(found) for name, found in numbers.items()}, indent=1))


if __name__ == "__main__":
    main()

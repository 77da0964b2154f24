"""Trainings of one or several ranks; the ranks' processes import this."""

from __future__ import annotations

import inspect
import itertools
import warnings
from pathlib import Path
from typing import Any

import torch
from rsl_rl.modules import normalization

from rsl_tbptt_tasks.memory import RecallEnv
from support.cut_recall import CutRecallEnv, gaussian
from support.safe_runs import make_runner, model_cfg

SHARES = {1: (7,), 3: (1, 4, 2)}
"""Environments of each rank."""

CASES = ("distillation", "ppo", "fine-tuning")
UPDATES, SAVED = 5, 2
"""Iterations of a run, and the one whose checkpoint other runs continue from."""

HEADS = {"cue": {"target": "privileged", "hidden_dims": [4]}}
# Before rsl_rl 5.5 each rank normalises by its own observations.
NORMALIZES = "all_reduce" in inspect.getsource(normalization)


def cut_runner(case: str, folder: Path, rank: int, num_ranks: int) -> Any:
    """Build the runner of this rank's share, with options that make all ranks agree."""
    first = sum(SHARES[num_ranks][:rank])
    env = CutRecallEnv(first, first + SHARES[num_ranks][rank])
    seen = {"obs_normalization": NORMALIZES}
    recurrent = model_cfg("RNNModel", distribution_cfg=gaussian(), **seen)
    mlp = model_cfg("MLPModel", distribution_cfg=gaussian())
    shared = {"num_mini_batches": 1, "num_learning_epochs": 2, "auxiliary": HEADS}
    if case == "distillation":
        # The whole buffer in each mini-batch, because a random part would depend on the ranks.
        memory = {"buffer_rollouts": 2 * UPDATES, "buffer_share": 100.0}
        models: dict[str, Any] = {"student": recurrent, "teacher": mlp}
        return make_runner(
            folder, case, algorithm={**shared, **memory}, env=env, save_interval=SAVED, **models
        )
    critic = model_cfg("MLPModel", **seen)
    del critic["distribution_cfg"]
    groups = {"actor": ["policy"], "critic": ["privileged"]}
    algorithm: dict[str, Any] = {**shared, "schedule": "adaptive", "desired_kl": 0.01}
    if case == "ppo":
        groups["rnd_state"] = ["privileged"]
        algorithm["rnd_cfg"] = {
            "weight": 5.0,
            "num_outputs": 3,
            "predictor_hidden_dims": [8],
            "target_hidden_dims": [8],
            "state_normalization": NORMALIZES,
            "reward_normalization": NORMALIZES,
        }
    else:
        groups["teacher"] = ["privileged"]
        algorithm |= {"critic_warmup_iterations": 1, "teacher_coef": 0.5, "teacher_updates": 9}
        algorithm["teacher_cfg"] = mlp
    return make_runner(
        folder,
        "ppo",
        algorithm=algorithm,
        env=env,
        save_interval=SAVED,
        obs_groups=groups,
        actor=recurrent,
        critic=critic,
    )


def numbers_of(runner: Any) -> dict[str, torch.Tensor]:
    """Return parameters, normalisers and optimisers of all networks, by name."""
    saved = runner.alg.save()
    return dict(_tensors("", {**saved, "rsl_tbptt": saved["rsl_tbptt"].get("auxiliary", {})}))


def _tensors(name: str, value: Any) -> list[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        return [(name, value.detach().clone())]
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [pair for key, each in items for pair in _tensors(f"{name}.{key}", each)]
    return []


def trained(runner: Any, iterations: int) -> dict[str, Any]:
    """Train; return the numbers, and the metrics of each update."""
    update, metrics = runner.alg.update, []

    def recorded() -> dict[str, float]:
        losses = update()
        metrics.append(runner.alg.metrics)
        return losses

    runner.alg.update = recorded
    runner.learn(iterations)
    return {"numbers": numbers_of(runner), "metrics": metrics}


def run_all(root: Path, num_ranks: int, rank: int) -> dict[str, Any]:
    """Train all cases; return the results of ``trained``."""
    results: dict[str, Any] = {}
    for case in CASES:
        runner = cut_runner(case, root / f"{case}_{num_ranks}", rank, num_ranks)
        if case == "fine-tuning":
            runner.load(str(root / f"distillation_{num_ranks}"))
        results[case] = trained(runner, UPDATES)
    return results


def resume_all(root: Path, num_ranks: int, rank: int, others: tuple[int, ...]) -> dict[str, Any]:
    """Continue from checkpoints of other numbers of ranks; return the same by case and number."""
    results: dict[str, Any] = {}
    for case, other in itertools.product(CASES, others):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            runner = cut_runner(case, root / f"{case}_{num_ranks}_from_{other}", rank, num_ranks)
            runner.load(str(root / f"{case}_{other}" / f"model_{SAVED}.pt"))
            done = runner.num_iterations
            ended = trained(runner, UPDATES - done)
        said = [str(w.message) for w in seen if "rank(s)" in str(w.message)]
        results[f"{case}_from_{other}"] = {**ended, "done": done, "said": said}
    return results


def resumed_and_whole(root: Path, rank: int) -> list[list[dict[str, Any]]]:
    """Train in one go and in two; return the numbers of both, for both algorithms."""
    pairs = []
    for kind in ("distillation", "ppo"):
        memory = {"buffer_rollouts": 2, "save_buffer": True, "teacher_action_share": 0.5}
        options = {"num_mini_batches": 2, **(memory if kind == "distillation" else {})}

        def runner(part: str, seed: int, kind: str = kind, options: dict = options) -> Any:
            env = RecallEnv(2 + rank, 3, seed=seed)
            made = make_runner(root / f"{kind}_{part}", kind, algorithm=dict(options), env=env)
            torch.manual_seed(seed)
            return made

        whole = trained(runner("whole", rank), 4)
        trained(runner("parts", rank), 2)
        resumed = runner("parts", rank + 7)
        resumed.load(str(root / f"{kind}_parts" / "latest"))
        pairs.append([whole["numbers"], trained(resumed, 2)["numbers"]])
    return pairs


def run_rank(rank: int, num_ranks: int, root: str, others: tuple[int, ...]) -> None:
    """Train as one rank, and save the results in ``ranks_<R>_<rank>.pt``.

    Args:
        rank: This rank.
        num_ranks: R.
        root: Folder of all runs.
        others: Numbers of ranks whose checkpoints exist to continue from.
    """
    torch.set_default_dtype(torch.float64)
    path = Path(root, f"ranks_{num_ranks}_{rank}.pt")
    results = torch.load(path) if path.exists() else run_all(path.parent, num_ranks, rank)
    results |= resume_all(path.parent, num_ranks, rank, others)
    if num_ranks > 1:
        torch.set_default_dtype(torch.float32)
        results["resumed"] = resumed_and_whole(path.parent, rank)
    torch.save(results, path)

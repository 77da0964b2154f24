"""Time of one update beside rsl_rl's, alternating in one process, after both proved equal."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace

import torch
from _benchmark_case import Case, Library, build, fill

SMALL = 32
"""Environments on which equality is checked."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Times of updates, in seconds, and rsl_rl's over ours in each pair."""

    ours: float
    """Median."""
    rsl_rl: float
    """Median."""
    ratio: float
    """Median of the pairs."""
    lowest_ratio: float
    highest_ratio: float


def measure_speed(case: Case, num_pairs: int) -> Speed:
    """Time updates of both libraries in turn, after one update of each to warm up.

    Args:
        case: What is measured.
        num_pairs: Updates of each library.

    Returns:
        Medians and spread.

    Raises:
        ValueError: If the libraries do not leave equal parameters on a small copy of the case.
    """
    check_equal(case)
    libraries: tuple[Library, Library] = ("rsl_tbptt", "rsl_rl")
    algorithms = {library: build(case, library) for library in libraries}
    seconds: dict[Library, list[float]] = {library: [] for library in libraries}
    for seed in range(num_pairs + 1):
        for library in libraries:
            fill(algorithms[library], case, seed)
            start = _now(case)
            algorithms[library].update()
            seconds[library].append(_now(case) - start)
    ours, theirs = (seconds[library][1:] for library in libraries)
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    return Speed(
        ours=statistics.median(ours),
        rsl_rl=statistics.median(theirs),
        ratio=statistics.median(ratios),
        lowest_ratio=min(ratios),
        highest_ratio=max(ratios),
    )


def check_equal(case: Case) -> None:
    """Check that one update of either library leaves equal parameters.

    With plain gradient descent, as Adam's first step hides the gradient's size, and in full
    precision; PPO with the whole rollout, as rsl_rl's cannot truncate.

    Raises:
        ValueError: If the parameters differ.
    """
    small = replace(case, num_envs=SMALL, use_mixed_precision=False)
    plain: dict[str, object] = {"optimizer": "sgd", "learning_rate": 1e-2, "max_grad_norm": 1.0}
    if case.algorithm == "ppo":
        small = replace(small, gradient_length=case.num_steps)
        plain["schedule"] = "fixed"
        as_rsl_rl = plain | {"shuffle_envs": False}
    else:
        as_rsl_rl = plain | {"loss_reduction": "sum", "tail": "drop"}
    vectors = []
    for library, options in (("rsl_tbptt", as_rsl_rl), ("rsl_rl", plain)):
        algorithm = build(small, library, **options)
        fill(algorithm, small, seed=0)
        algorithm.update()
        groups = algorithm.optimizer.param_groups
        vectors.append(torch.cat([p.detach().flatten() for g in groups for p in g["params"]]))
    difference = ((vectors[0] - vectors[1]).norm() / vectors[1].norm()).item()
    if not difference < 1e-5:
        raise ValueError(
            f"The parameters differ by {difference:.1e} from rsl_rl's after one update of {small},"
            " expected less than 1e-05: times of different computations are not compared."
        )


def _now(case: Case) -> float:
    if case.device != "cpu":
        torch.cuda.synchronize(case.device)
    return time.perf_counter()

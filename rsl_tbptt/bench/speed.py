"""Time of updates, alternating in one process, of libraries that proved equal before."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from rsl_tbptt.bench.case import Case, Library, build, fill

SMALL = 32
"""Environments, or a few less, on which equality is checked over all steps."""
SHORT = 4
"""Steps on which equality is checked with all environments."""
EPOCHS = 2
"""Epochs of each check, or fewer: a second one begins with the states and dones of the first."""
TOLERANCE = 1e-4
"""Of what the update changed: rounding in float32 reaches some 1e-5, another loss or state more."""
Contestant = tuple[Library, Case]
LIBRARIES: tuple[Library, Library] = ("rsl_tbptt", "rsl_rl")


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Seconds of what was timed in turn, first once ours, then once the other library's."""

    ours: list[float]
    theirs: list[float]

    @property
    def ratios(self) -> list[float]:
        """The other library's time over ours in each pair."""
        return [b / a for a, b in zip(self.ours, self.theirs, strict=True)]

    @property
    def ratio(self) -> float:
        """Median of the pairs."""
        return statistics.median(self.ratios)


def measure_speed(case: Case, num_pairs: int) -> Speed:
    """Time updates of both libraries in turn.

    Args:
        case: What is measured.
        num_pairs: Updates of each library.

    Returns:
        All times.

    Raises:
        ValueError: If there are no pairs, or the libraries do not leave equal parameters on small
            copies of the case.
    """
    if num_pairs < 1:
        raise ValueError(f"pairs is {num_pairs}, expected at least 1.")
    check_equal(case)
    ours, theirs = alternate([(library, case) for library in LIBRARIES], num_pairs)
    return Speed(ours=ours, theirs=theirs)


def alternate(contestants: Sequence[Contestant], num_updates: int) -> list[list[float]]:
    """Time updates of several algorithms in turn, after one update of each to warm up.

    Args:
        contestants: Libraries and cases, in the order of their turns.
        num_updates: Updates of each.

    Returns:
        Seconds of the updates of each.
    """
    algorithms = [build(case, library) for library, case in contestants]
    seconds: list[list[float]] = [[] for _ in contestants]
    for seed in range(num_updates + 1):
        for algorithm, (_, case), taken in zip(algorithms, contestants, seconds, strict=True):
            fill(algorithm, case, seed)
            taken.append(seconds_of(algorithm.update, case.device))
            restore_state(algorithm, case)
    return [taken[1:] for taken in seconds]


def alternate_in_own_process(
    contestants: Sequence[Contestant], num_updates: int
) -> list[list[float]]:
    """Do what :func:`alternate` does in a fresh process, as a training run has one.

    The allocator keeps what earlier cases needed, which spares later ones page faults.

    Args:
        contestants: Libraries and cases, in the order of their turns.
        num_updates: Updates of each.

    Returns:
        Seconds of the updates of each.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(alternate, contestants, num_updates).result()


def seconds_of(call: Callable[[], object], device: str) -> float:
    """Time a call; a GPU is synchronised before and after.

    Args:
        call: What is timed.
        device: Where it computes, ``cpu`` or ``cuda:<index>``.

    Returns:
        Seconds.
    """
    start = _now(device)
    call()
    return _now(device) - start


def _now(device: str) -> float:
    if device != "cpu":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def restore_state(algorithm: Any, case: Case) -> None:
    """Cast the hidden state back to float32 that rsl_rl's Distillation leaves in bfloat16.

    Its next rollout, which runs in float32, would otherwise stop with an error for an LSTM.
    """
    if case.algorithm == "distillation" and case.use_mixed_precision:
        state = algorithm.student.get_hidden_state()
        state = tuple(s.float() for s in state) if isinstance(state, tuple) else state.float()
        algorithm.student.reset(hidden_state=state)


def check_equal(case: Case) -> None:
    """Check that one update of either library leaves equal parameters.

    With few environments over all steps and with all environments over few steps. With plain
    gradient descent, as Adam's first step hides the gradient's size, and in full precision; PPO
    with the whole rollout, as rsl_rl's cannot truncate.

    Raises:
        ValueError: If the parameters differ.
    """
    for small in small_copies(case):
        difference = _difference(small)
        if not difference < TOLERANCE:
            raise ValueError(
                f"The parameters' change by one update differs by {difference:.1e} from rsl_rl's"
                f" for {small}, expected less than {TOLERANCE:.0e}: times of different computations"
                " are not compared."
            )


def small_copies(case: Case) -> Iterator[Case]:
    """Yield the cases on which equality is checked."""
    few_steps = min(SHORT, case.num_steps)
    # PPO's mini-batches need equal numbers of environments, two or more each.
    few_envs = min(case.batches * max(SMALL // case.batches, 2), case.num_envs)
    for num_envs, num_steps in ((few_envs, case.num_steps), (case.num_envs, few_steps)):
        whole = num_steps if case.algorithm == "ppo" else min(case.gradient_length, num_steps)
        yield replace(
            case,
            num_envs=num_envs,
            num_steps=num_steps,
            gradient_length=whole,
            num_learning_epochs=min(EPOCHS, case.num_learning_epochs),
            use_mixed_precision=False,
        )


@cache
def _difference(small: Case) -> float:
    """Return how much the libraries' changes of the parameters differ, as a share of the change."""
    plain: dict[str, object] = {"optimizer": "sgd", "learning_rate": 1e-2, "max_grad_norm": 1.0}
    if small.algorithm == "ppo":
        plain["schedule"] = "fixed"
        as_rsl_rl = plain | {"shuffle_envs": False}
    else:
        as_rsl_rl = plain | {"loss_reduction": "sum", "tail": "drop"}
    changes = []
    # By default cuDNN rounds the operands of an LSTM's products to TF32, which torch.mm does not.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for library, options in zip(LIBRARIES, (as_rsl_rl, plain), strict=True):
            algorithm = build(small, library, **options)
            before = _parameters(algorithm)
            fill(algorithm, small, seed=0)
            algorithm.update()
            changes.append(_parameters(algorithm) - before)
    return ((changes[0] - changes[1]).norm() / changes[1].norm()).item()


def _parameters(algorithm: Any) -> torch.Tensor:
    groups = algorithm.optimizer.param_groups
    return torch.cat([p.detach().flatten() for group in groups for p in group["params"]])

"""How memory and time of updates grow with the number of environments: lines through small cases.

Sizes that a machine could not measure, or not in sensible time, are told from those that it could.
Both are linear in the environments of a mini-batch, and ours beyond the number that the caches hold
in those of the mini-batch's parts: all sizes measured are cut into parts as the one asked for is.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from statistics import linear_regression

from rsl_tbptt.bench.case import Case, Library
from rsl_tbptt.bench.memory import Memory, measure_in_own_process, plan_in_own_process

NUM_SIZES = 3
FEWEST = 32
"""Environments of the smallest size."""
SHARE = 1 / 32
"""Of the case's environments: the smallest size on which rsl_rl is measured, which is slow."""
OUR_SHARE = 1 / 8
SECONDS = 120.0
"""That an update of rsl_rl's may take: it is run four times."""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """What one epoch takes with some numbers of environments."""

    num_envs: list[int]
    measured: list[Memory]

    def at(self, what: str, num_envs: int) -> float:
        """Return a value of :class:`Memory` on the line through those measured."""
        slope, start = linear_regression(self.num_envs, self._values(what))
        return start + slope * num_envs

    def most(self, what: str, value: float) -> int:
        """Return the largest number of environments with at most such a value on that line."""
        slope, start = linear_regression(self.num_envs, self._values(what))
        return int((value - start) / slope) if slope > 0 else sys.maxsize

    def _values(self, what: str) -> list[float]:
        return [getattr(memory, what) for memory in self.measured]


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A case, cut down to what rsl_rl can do here."""

    name: str
    wanted: Case
    case: Case
    by_memory: int
    """Environments that memory would hold, if there were no end of time."""
    growth: Growth
    """Of rsl_rl."""


@dataclass(frozen=True, kw_only=True)
class PlanCheck:
    """Our ``memory_plan()`` for a number of environments, beside a line through smaller ones."""

    name: str
    case: Case
    predicted: float
    """Peak of ``update()`` by the plan, in megabytes."""
    growth: Growth

    @property
    def extrapolated(self) -> float:
        """Peak of ``update()`` by the line, in megabytes."""
        return self.growth.at("update_peak", self.case.num_envs)

    @property
    def error(self) -> float:
        """How much more than that the plan says, as a share."""
        return self.predicted / self.extrapolated - 1


def measure_growth(case: Case, library: Library, unit: int) -> Growth:
    """Measure one epoch with one, two and three times so many environments."""
    sizes = [unit * (number + 1) for number in range(NUM_SIZES)]
    epoch = replace(case, num_learning_epochs=1)
    measured = [measure_in_own_process(replace(epoch, num_envs=n), library) for n in sizes]
    return Growth(num_envs=sizes, measured=measured)


def fit(name: str, case: Case, megabytes: float, seconds: float = SECONDS) -> Fit:
    """Find how many environments rsl_rl's process holds, and what of its update can be waited for.

    Args:
        name: Of the case.
        case: With as many environments as are wanted at most.
        megabytes: That its process may take beyond its imports.
        seconds: That its update may take on one thread. Where all epochs take longer, one is left,
            and where that does, fewer environments.

    Returns:
        The case, cut down to that.

    Raises:
        ValueError: If not even the smallest size is within the limits.
    """
    unit = _multiple(max(case.num_envs * SHARE, FEWEST), case.batches)
    growth = measure_growth(case, "rsl_rl", unit)
    by_memory = num_envs = min(case.num_envs, growth.most("process_peak", megabytes))
    num_epochs = case.num_learning_epochs
    if growth.at("seconds", num_envs) * num_epochs > seconds:
        num_envs, num_epochs = min(num_envs, growth.most("seconds", seconds)), 1
    num_envs, by_memory = (n // case.batches * case.batches for n in (num_envs, by_memory))
    if num_envs < 2 * case.batches:
        raise ValueError(
            f"The limits of {megabytes:g} MB and {seconds:g} s leave {num_envs} environments of"
            f" {name}, expected at least {2 * case.batches}: raise them."
        )
    cut = replace(case, num_envs=num_envs, num_learning_epochs=num_epochs)
    return Fit(name=name, wanted=case, case=cut, by_memory=by_memory, growth=growth)


def check_plan(name: str, case: Case) -> PlanCheck:
    """Compare our plan of a case with what smaller cases take.

    Args:
        name: Of the case.
        case: The case.

    Returns:
        Both.
    """
    plan = plan_in_own_process(case)
    unit = _multiple(max(case.num_envs * OUR_SHARE, FEWEST), case.batches)
    if plan.num_micro_batches > 1:
        unit = -(-plan.num_envs // plan.num_micro_batches) * case.batches
    growth = measure_growth(case, "rsl_tbptt", unit)
    return PlanCheck(name=name, case=case, predicted=plan.predicted, growth=growth)


def _multiple(num_envs: float, of: int) -> int:
    """Return the next multiple of the mini-batches, twice that at least."""
    return of * max(2, -(-int(num_envs) // of))

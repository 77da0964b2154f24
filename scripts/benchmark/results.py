"""What one run of the benchmark measured, and what follows from it."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rsl_tbptt.bench.growth import Fit, PlanCheck
from rsl_tbptt.bench.memory import Memory
from rsl_tbptt.bench.profile import StepsShare
from rsl_tbptt.bench.speed import Speed
from rsl_tbptt.files import write_json as write
from scripts.benchmark.rows import Row


@dataclass(frozen=True, kw_only=True)
class TimeResult:
    """Time beside rsl_rl's, or of ours beside that of ours in another case."""

    row: Row
    speed: Speed
    """Ours and rsl_rl's; of two cases first the other one's, then the row's."""
    flops: int
    """Operations of the matrix products."""
    products_seconds: float
    """What they would take alone, at the machine's highest rate."""

    @property
    def ratio(self) -> float:
        """The second time over the first, median of the pairs."""
        return self.speed.ratio

    @property
    def medians(self) -> tuple[float, float]:
        """Both times in seconds."""
        return median(self.speed.ours), median(self.speed.theirs)


@dataclass(frozen=True, kw_only=True)
class MemoryResult:
    """Memory beside rsl_rl's, or beside that of ours in another case."""

    row: Row
    ours: Memory
    other: Memory

    @property
    def ratio(self) -> float:
        """Our process's peak as a share of rsl_rl's; of ours in two cases that of the update."""
        peak = "update_peak" if self.row.beside else "process_peak"
        return getattr(self.ours, peak) / getattr(self.other, peak)


@dataclass(frozen=True)
class Results:
    """Everything that one run measured."""

    about: dict[str, Any]
    """When, how long, and on what."""
    rates: dict[str, dict[str, float]]
    """See :func:`product_rates`."""
    speed: list[TimeResult]
    cost: list[TimeResult]
    memory: list[MemoryResult]
    fits: list[Fit] = field(default_factory=list)
    """Of agents: how many of their environments rsl_rl holds here."""
    plans: list[PlanCheck] = field(default_factory=list)
    shares: list[StepsShare] = field(default_factory=list)


def write_json(results: Results, path: Path) -> None:
    """Write everything that was measured, every single time included."""
    values = asdict(results)
    for part in ("speed", "cost", "memory"):
        for written, result in zip(values[part], getattr(results, part), strict=True):
            written["ratio"] = result.ratio
            written["reached"] = result.row.reached(result.ratio)
    for written, plan in zip(values["plans"], results.plans, strict=True):
        written |= {"extrapolated": plan.extrapolated, "error": plan.error}
    write(path, values)

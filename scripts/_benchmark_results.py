"""What one run of the benchmark measured, and what follows from it."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from _benchmark_memory import Memory
from _benchmark_rows import DonesRow, MemoryRow, SpeedRow
from _benchmark_speed import Speed


@dataclass(frozen=True, kw_only=True)
class SpeedResult:
    """A measured row."""

    row: SpeedRow
    speed: Speed
    flops: int
    """Operations of the matrix products."""
    products_seconds: float
    """What they would take alone, at the machine's highest rate."""

    @property
    def ours(self) -> float:
        """Median, in seconds."""
        return statistics.median(self.speed.ours)

    @property
    def rsl_rl(self) -> float:
        """Median, in seconds."""
        return statistics.median(self.speed.rsl_rl)

    @property
    def products_share(self) -> float:
        """Share of our time that matrix products would take alone."""
        return self.products_seconds / self.ours

    @property
    def reached(self) -> bool | None:
        """Whether the target is reached, None without one."""
        return None if self.row.target is None else self.speed.ratio >= self.row.target


@dataclass(frozen=True, kw_only=True)
class DonesResult:
    """Our update without dones and with them, timed in turn. In seconds."""

    row: DonesRow
    without: list[float]
    with_dones: list[float]

    @property
    def ratio(self) -> float:
        """Median over the pairs of the time with dones over that without."""
        pairs = zip(self.without, self.with_dones, strict=True)
        return statistics.median(b / a for a, b in pairs)

    @property
    def reached(self) -> bool:
        """Whether the target is reached."""
        return self.ratio <= self.row.target


@dataclass(frozen=True, kw_only=True)
class MemoryResult:
    """A measured row."""

    row: MemoryRow
    ours: Memory
    rsl_rl: Memory

    @property
    def share(self) -> float:
        """Our process's peak over rsl_rl's."""
        return self.ours.process_peak / self.rsl_rl.process_peak

    @property
    def reached(self) -> bool | None:
        """Whether the target is reached, None without one."""
        return None if self.row.target is None else self.share <= self.row.target


@dataclass(frozen=True, kw_only=True)
class Results:
    """Everything that one run measured."""

    about: dict[str, Any]
    """When, how long, and on what."""
    rates: dict[str, dict[str, float]]
    """See :func:`product_rates`."""
    speed: list[SpeedResult]
    dones: list[DonesResult]
    memory: list[MemoryResult]


def write_json(results: Results, path: Path) -> None:
    """Write everything that was measured, every single time included."""
    derived = {
        "speed": [
            {"ratio": r.speed.ratio, "ratios": r.speed.ratios, "reached": r.reached}
            for r in results.speed
        ],
        "dones": [{"ratio": r.ratio, "reached": r.reached} for r in results.dones],
        "memory": [{"share": r.share, "reached": r.reached} for r in results.memory],
    }
    values = asdict(results)
    for part, rows in derived.items():
        for measured, further in zip(values[part], rows, strict=True):
            measured.update(further)
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")

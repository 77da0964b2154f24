"""Measure the rows of the benchmark, which YAML files list."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
import yaml

from rsl_tbptt.installation import machine, versions
from scripts.benchmark.case import Case, alternate, check_equal, milliseconds, spread
from scripts.benchmark.memory import in_own_process, measure_memory, with_exact_malloc
from scripts.templates import fill

Result = dict[str, Any]
TEMPLATE = Path(__file__).with_name("report.md.j2")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement."""

    name: str
    case: Case
    measure: Literal["speed", "cost", "memory"] = "speed"
    """Kind of measurement; rows.yaml explains each."""
    compared_with: dict[str, Any] = field(default_factory=dict)
    """The values that replace those of ``case``: for cost in the case to compare with, for memory
    in rsl_rl's."""
    pairs: int = 2
    """Updates of each library; few if one of them takes seconds."""
    target: float | None = None
    """For speed the ratio to reach; otherwise the ratio to stay below."""
    gpu_only: bool = False
    """Whether the row is left out on a CPU, where it takes minutes, unless it is named in full."""

    def __post_init__(self) -> None:
        """Check the number of updates.

        Raises:
            ValueError: If it is below 1.
        """
        if self.pairs < 1:
            raise ValueError(f"pairs is {self.pairs}, expected at least 1.")

    def result(self, ratio: float, **values: Any) -> Result:
        """Return a result of this row; ``reached`` is None without a target."""
        reached = None
        if self.target is not None:
            reached = ratio >= self.target if self.measure == "speed" else ratio <= self.target
        return asdict(self) | {"what": str(self.case), "ratio": ratio, "reached": reached} | values


def load_rows(name: str) -> list[Row]:
    """Read all rows of a file of this folder, each in all its variants."""
    data = yaml.safe_load(Path(__file__).with_name(f"{name}.yaml").read_text(encoding="utf-8"))
    rows = []
    for fields in data["rows"]:
        variants, case = fields.pop("variants", None), Case(**fields.pop("case"))
        row = Row(case=case, **fields)
        for variant in variants or ():
            of_case, of_row = data["variants"][variant]
            name, changed = f"{row.name}-{variant}", replace(case, **of_case)
            rows.append(replace(row, name=name, case=changed, **of_row))
        if not variants:
            rows.append(row)
    return rows


def select(rows: Sequence[Row], part: str, device: str) -> list[Row]:
    """Return the rows with ``part`` in their names, on a device.

    Raises:
        ValueError: If there are none.
    """
    rows = [row for row in rows if device != "cpu" or not row.gpu_only or row.name == part]
    kept = [replace(r, case=replace(r.case, device=device)) for r in rows if part in r.name]
    if not kept:
        raise ValueError(
            f"--rows is {part!r}, expected a part of one of {[r.name for r in rows]} on {device}."
        )
    return kept


def tiny(case: Case) -> Case:
    """Shrink a case so that it runs fast: for tests, not for measurements."""
    return replace(
        case,
        num_envs=max(case.num_envs // (32 * case.batches), 2) * case.batches,
        num_steps=case.num_steps // 8,
        gradient_length=max(case.gradient_length // 8, 1),
        rnn_hidden_dim=8,
    )


def measure(rows: Sequence[Row], device: str) -> dict[str, Any]:
    """Check that both libraries compute the same, then measure all rows.

    Returns:
        JSON values: the measurements, the machine and the versions.

    Raises:
        ValueError: If the libraries differ on a row.
    """
    start = time.monotonic()
    of_rsl_rl = cache(lambda case: with_exact_malloc(measure_memory, case, "rsl_rl"))
    for row in _each(rows, "equality", "speed"):
        check_equal(row.case)
    results = {
        "speed": [_time(row) for row in _each(rows, "time", "speed")],
        "cost": [_time(row) for row in _each(rows, "time", "cost")],
        "memory": [_memory(row, of_rsl_rl) for row in _each(rows, "memory", "memory")],
    }
    about = {
        "finished": time.strftime("%Y-%m-%d %H:%M"),
        "minutes": (time.monotonic() - start) / 60,
        "threads": torch.get_num_threads(),
        "machine": machine(device),
        "versions": versions(),
    }
    return {"about": about, **results}


def report(results: dict[str, Any]) -> str:
    """Return the measurements as Markdown."""
    judged = [r for kind in ("speed", "cost", "memory") for r in results[kind] if r["target"]]
    missed = [row["name"] for row in judged if not row["reached"]]
    return fill(TEMPLATE, **results, num_targets=len(judged), missed=missed, ms=milliseconds)


def _time(row: Row) -> Result:
    """Time a row in a separate process, like a training run."""
    library = "rsl_tbptt" if row.measure == "cost" else "rsl_rl"
    contestants = [("rsl_tbptt", replace(row.case, **row.compared_with)), (library, row.case)]
    ours, other = in_own_process(alternate, contestants, row.pairs)
    low, ratio, high = spread(ours, other)
    medians = {"ours": median(ours), "other": median(other)}
    return row.result(ratio, low=low, high=high, **medians, seconds=[ours, other])


def _memory(row: Row, of_rsl_rl: Callable[[Case], float]) -> Result:
    ours = with_exact_malloc(measure_memory, row.case, "rsl_tbptt")
    other = of_rsl_rl(replace(row.case, **row.compared_with))
    return row.result(ours / other, ours=ours, other=other)


def _each(rows: Sequence[Row], doing: str, kind: str) -> Iterator[Row]:
    """Yield the rows of a kind and print the progress to stderr."""
    chosen = [row for row in rows if row.measure == kind]
    for number, row in enumerate(chosen, start=1):
        print(f"{doing} {number}/{len(chosen)}: {row.name}", file=sys.stderr, flush=True)
        yield row

"""All rows of the benchmark in one run."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

from rsl_tbptt.bench.growth import check_plan, fit
from rsl_tbptt.bench.limit import product_rates, update_flops
from rsl_tbptt.bench.memory import measure_in_own_process
from rsl_tbptt.bench.profile import share_of_steps
from rsl_tbptt.bench.speed import (
    LIBRARIES,
    Contestant,
    Speed,
    alternate,
    alternate_in_own_process,
    check_equal,
)
from rsl_tbptt.bench.tables import SECONDS_PER_SHAPE
from rsl_tbptt.tools.doctor import machine, versions
from scripts.benchmark.results import MemoryResult, Results, TimeResult
from scripts.benchmark.rows import Row

Times = Callable[[list[Contestant], int], list[list[float]]]

PROCESSES = 2
"""That measure memory on a CPU at once, which time does not change; a GPU's is shared."""


def check_all(rows: Sequence[Row]) -> None:
    """Check that both libraries compute the same on every row that is timed.

    Raises:
        ValueError: If they do not.
    """
    for row in _each(rows, "equality", "speed", "agent"):
        check_equal(row.case)


def measure(
    rows: Sequence[Row], device: str, gigabytes: float, *, isolated: bool = True
) -> Results:
    """Measure all rows, which ``check_all`` has checked.

    Args:
        rows: The rows, on the device.
        device: The device.
        gigabytes: That rsl_rl's process may take of an agent.
        isolated: Whether each row is timed in a process of its own, as a training run has one.

    Returns:
        All that was measured.

    Raises:
        ValueError: If that leaves nothing of an agent.
    """
    start, times_of = time.monotonic(), alternate_in_own_process if isolated else alternate
    agents = list(_each(rows, "size", "agent"))
    fits = [fit(row.name, row.case, 1e3 * gigabytes) for row in agents]
    for row, fitting in zip(agents, fits, strict=True):
        cut = replace(row, case=fitting.case)
        rows = [*rows, replace(cut, measure="speed"), replace(cut, measure="memory")]
    rates = product_rates(device, SECONDS_PER_SHAPE)
    speed, cost = (
        [_measure_time(row, rates, times_of) for row in _each(rows, "time", kind)]
        for kind in ("speed", "cost")
    )
    with ThreadPoolExecutor(PROCESSES if device == "cpu" else 1) as pool:
        memory = list(pool.map(_measure_memory, _each(rows, "memory", "memory")))
    plans = [check_plan(row.name, row.case) for row in _each(rows, "plan", "agent", "plan")]
    on_cpu = rows if device == "cpu" else ()  # a GPU's steps do not wait for the profiler's CPU
    shares = [share_of_steps(row.case) for row in _each(on_cpu, "steps", "steps")]
    about = {
        "finished": time.strftime("%Y-%m-%d %H:%M"),
        "minutes": (time.monotonic() - start) / 60,
        "threads": torch.get_num_threads(),
        "machine": machine(device),
        "versions": versions(),
        "gigabytes": gigabytes,
    }
    return Results(about, rates, speed, cost, memory, fits, plans, shares)


def _measure_time(row: Row, rates: dict[str, dict[str, float]], times_of: Times) -> TimeResult:
    cases = (replace(row.case, **row.beside), row.case)
    libraries = ("rsl_tbptt", "rsl_tbptt") if row.beside else LIBRARIES
    ours, other = times_of([*zip(libraries, cases, strict=True)], row.pairs)
    flops = update_flops(row.case)
    products_seconds = flops / max(rates[row.case.precision].values())
    speed = Speed(ours=ours, theirs=other)
    return TimeResult(row=row, speed=speed, flops=flops, products_seconds=products_seconds)


def _measure_memory(row: Row) -> MemoryResult:
    ours, rsl_rl = LIBRARIES
    other = measure_in_own_process(replace(row.case, **row.beside), ours if row.beside else rsl_rl)
    return MemoryResult(row=row, ours=measure_in_own_process(row.case, ours), other=other)


def _each(rows: Sequence[Row], doing: str, *kinds: str) -> Iterator[Row]:
    """Yield the rows of some kinds and say on stderr how far the run is."""
    chosen = [row for row in rows if row.measure in kinds]
    for number, row in enumerate(chosen, start=1):
        print(f"{doing} {number}/{len(chosen)}: {row.name}", file=sys.stderr, flush=True)
        yield row

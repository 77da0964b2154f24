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
from rsl_tbptt.machine import machine, versions
from scripts.benchmark.results import CostResult, MemoryResult, Results, SpeedResult
from scripts.benchmark.rows import Row

Times = Callable[[list[Contestant], int], list[list[float]]]

PROCESSES = 2
"""That measure memory at once, which time does not change."""


def check_all(rows: Sequence[Row]) -> None:
    """Check that both libraries compute the same on every row that is timed.

    Raises:
        ValueError: If they do not.
    """
    for measure in ("speed", "agent"):
        for row in _each(rows, measure, "equality"):
            check_equal(row.case)


def measure(
    rows: Sequence[Row], device: str, gigabytes: float, seconds: float, *, isolated: bool = True
) -> Results:
    """Measure all rows, which ``check_all`` has checked.

    Args:
        rows: The rows, on the device.
        device: The device.
        gigabytes: That rsl_rl's process may take of an agent.
        seconds: That an update of it may take on one thread.
        isolated: Whether each row is timed in a process of its own, as a training run has one.

    Returns:
        All that was measured.

    Raises:
        ValueError: If the limits leave nothing of an agent.
    """
    start, times_of = time.monotonic(), alternate_in_own_process if isolated else alternate
    agents = list(_each(rows, "agent", "size"))
    fits = [fit(row.name, row.case, 1e3 * gigabytes, seconds) for row in agents]
    for row, fitting in zip(agents, fits, strict=True):
        cut = replace(row, case=fitting.case)
        rows = [*rows, replace(cut, measure="speed"), replace(cut, measure="memory")]
    rates = product_rates(device, SECONDS_PER_SHAPE)
    speed = [_measure_speed(row, rates, times_of) for row in _each(rows, "speed", "time")]
    cost = [_measure_cost(row, times_of) for row in _each(rows, "cost", "cost")]
    with ThreadPoolExecutor(PROCESSES) as pool:
        memory = list(pool.map(_measure_memory, _each(rows, "memory", "memory")))
    planned = (*agents, *_each(rows, "plan", "plan"))
    plans = [check_plan(row.name, row.case) for row in planned]
    shares = [share_of_steps(row.case) for row in _each(rows, "steps", "steps")]
    about = {
        "finished": time.strftime("%Y-%m-%d %H:%M"),
        "minutes": (time.monotonic() - start) / 60,
        "threads": torch.get_num_threads(),
        "machine": machine(device),
        "versions": versions(),
        "gigabytes": gigabytes,
        "seconds": seconds,
    }
    return Results(
        about=about,
        rates=rates,
        speed=speed,
        cost=cost,
        memory=memory,
        fits=fits,
        plans=plans,
        shares=shares,
    )


def _measure_speed(row: Row, rates: dict[str, dict[str, float]], times_of: Times) -> SpeedResult:
    flops = update_flops(row.case)
    ours, theirs = times_of([(library, row.case) for library in LIBRARIES], row.pairs)
    return SpeedResult(
        row=row,
        speed=Speed(ours=ours, theirs=theirs),
        flops=flops,
        products_seconds=flops / max(rates[row.case.precision].values()),
    )


def _measure_cost(row: Row, times_of: Times) -> CostResult:
    cases = (replace(row.case, **row.beside), row.case)
    without, times = times_of([("rsl_tbptt", case) for case in cases], row.pairs)
    return CostResult(row=row, without=without, times=times)


def _measure_memory(row: Row) -> MemoryResult:
    ours, rsl_rl = LIBRARIES
    other = measure_in_own_process(replace(row.case, **row.beside), ours if row.beside else rsl_rl)
    return MemoryResult(row=row, ours=measure_in_own_process(row.case, ours), other=other)


def _each(rows: Sequence[Row], measure: str, doing: str) -> Iterator[Row]:
    """Yield the rows of one kind and say on stderr how far the run is."""
    chosen = [row for row in rows if row.measure == measure]
    for number, row in enumerate(chosen, start=1):
        print(f"{doing} {number}/{len(chosen)}: {row.name}", file=sys.stderr, flush=True)
        yield row

"""All rows of the benchmark in one run."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace

import torch
from _benchmark_limit import product_rates, update_flops
from _benchmark_memory import measure_in_own_process
from _benchmark_results import DonesResult, MemoryResult, Results, SpeedResult
from _benchmark_rows import DonesRow, MemoryRow, Rows, SpeedRow
from _benchmark_speed import LIBRARIES, Contestant, Speed, alternate, check_equal
from _machine import machine, versions

Times = Callable[[list[Contestant], int], list[list[float]]]

SECONDS_PER_SHAPE = 0.1
"""Spent on the rate of each matrix product."""
PROCESSES = 2
"""That measure memory at once, which time does not change."""


def check_all(rows: Rows) -> None:
    """Check that both libraries compute the same on every row that is timed.

    Raises:
        ValueError: If they do not.
    """
    for number, row in enumerate(rows.speed, start=1):
        _progress("equality", number, len(rows.speed), row.name)
        check_equal(row.case)


def measure(rows: Rows, device: str, *, isolated: bool = True) -> Results:
    """Measure all rows, which ``check_all`` has checked.

    Args:
        rows: The rows, on the device.
        device: The device.
        isolated: Whether each row is timed in a process of its own, as a training run has one: the
            allocator keeps what earlier rows needed, which spares later ones page faults.

    Returns:
        All times and peaks.
    """
    start, times_of = time.monotonic(), _in_own_process if isolated else alternate
    rates = product_rates(device, SECONDS_PER_SHAPE)
    speed = [
        _measure_speed(row, rates, times_of, number, len(rows.speed))
        for number, row in enumerate(rows.speed, start=1)
    ]
    dones = [_measure_dones(row, times_of) for row in rows.dones]
    memory = _measure_memory(rows.memory)
    about = {
        "finished": time.strftime("%Y-%m-%d %H:%M"),
        "minutes": (time.monotonic() - start) / 60,
        "threads": torch.get_num_threads(),
        "machine": machine(device),
        "versions": versions(),
    }
    return Results(about=about, rates=rates, speed=speed, dones=dones, memory=memory)


def _in_own_process(contestants: list[Contestant], num_updates: int) -> list[list[float]]:
    """Call ``alternate`` in a fresh process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as process:
        return process.submit(alternate, contestants, num_updates).result()


def _measure_speed(
    row: SpeedRow, rates: dict[str, dict[str, float]], times_of: Times, number: int, total: int
) -> SpeedResult:
    _progress("time", number, total, row.name)
    flops = update_flops(row.case)
    ours, theirs = times_of([(library, row.case) for library in LIBRARIES], row.pairs)
    return SpeedResult(
        row=row,
        speed=Speed(ours=ours, rsl_rl=theirs),
        flops=flops,
        products_seconds=flops / max(rates[row.case.precision].values()),
    )


def _measure_dones(row: DonesRow, times_of: Times) -> DonesResult:
    without = replace(row.case, done_rate=0.0)
    times = times_of([("rsl_tbptt", without), ("rsl_tbptt", row.case)], row.pairs)
    return DonesResult(row=row, without=times[0], with_dones=times[1])


def _measure_memory(rows: list[MemoryRow]) -> list[MemoryResult]:
    _progress("memory", 1, 1, f"{len(rows)} rows, {PROCESSES} processes at once")
    jobs = [(row.case, library) for row in rows for library in LIBRARIES]
    with ThreadPoolExecutor(PROCESSES) as pool:
        peaks = list(pool.map(lambda job: measure_in_own_process(*job), jobs))
    return [
        MemoryResult(row=row, ours=ours, rsl_rl=theirs)
        for row, ours, theirs in zip(rows, peaks[::2], peaks[1::2], strict=True)
    ]


def _progress(what: str, number: int, total: int, name: str) -> None:
    print(f"{what} {number}/{total}: {name}", file=sys.stderr, flush=True)

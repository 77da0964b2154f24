"""Measure the memory of updates in separate processes, and how it grows with the environments."""

import ctypes
import multiprocessing
import os
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import linear_regression
from typing import Any
from unittest import mock

import torch

from rsl_tbptt.core.scan import free_buffers
from scripts.benchmark.case import Case, Library, build, fill, seconds_of

MEGABYTE = 1e6
SECONDS = 120.0
"""Time limit of an rsl_rl update that is timed, which runs four times."""

EXACT_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""With these settings, which glibc reads at the start of a process, freed larger tensors go back to
the system. The process's peak is then the update's."""


def in_own_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a fresh process, where earlier allocations neither count nor save time."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


def with_exact_malloc(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a fresh process that keeps no freed memory; see ``EXACT_MALLOC``."""
    with mock.patch.dict(os.environ, EXACT_MALLOC):
        return in_own_process(function, *arguments)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory of one update, in megabytes of 10^6 bytes."""

    process_peak: float
    """The most that models, storage, rollout and update take together, beyond the imports."""
    update_peak: float
    """The most that ``update()`` takes beyond models, optimiser and storage."""
    predicted: float | None
    """Prediction of ``update_peak`` by our ``memory_plan()`` after the first rollout."""
    seconds: float
    """Time of the second update, on one thread."""


def measure_memory(case: Case, library: Library) -> Memory:
    """Measure two updates after a rollout each, in a process of ``with_exact_malloc``.

    A small update runs beforehand, so that everything that torch loads late counts as imports.
    Buffers that the first update keeps for the next ones, such as copies to undo them, count as the
    update's.

    Raises:
        OSError: On a CPU without Linux, as only Linux reports a peak.
    """
    torch.set_num_threads(1)
    few = replace(case, num_envs=2 * case.batches)
    algorithm = build(few, library)
    fill(algorithm, few, seed=0)
    algorithm.update()
    del algorithm
    imports = _Peak(case.device)
    algorithm = build(case, library)
    fill(algorithm, case, seed=2)  # so that the next rollout starts from states, as usual
    predicted = algorithm.memory_plan().peak(1) / MEGABYTE if library == "rsl_tbptt" else None
    algorithm.storage.clear()
    watch, process_peak, update_peak, seconds = imports, 0, 0, 0.0
    before: int | None = None
    for seed in range(2):
        fill(algorithm, case, seed)
        process_peak, watch = max(process_peak, watch.highest()), _Peak(case.device)
        before = before or watch.start
        seconds = seconds_of(algorithm.update, case.device)
        update_peak = max(update_peak, watch.highest() - before)
        process_peak = max(process_peak, watch.highest())
    state = [value for of in algorithm.optimizer.state.values() for value in of.values()]
    moments = sum(value.nbytes for value in state if isinstance(value, torch.Tensor))
    return Memory(
        process_peak=(process_peak - imports.start) / MEGABYTE,
        update_peak=(update_peak - moments) / MEGABYTE,
        predicted=predicted,
        seconds=seconds,
    )


class _Peak:
    """Peak memory of this process on a device from now on, in bytes."""

    def __init__(self, device: str) -> None:
        """Begin to watch. On the CPU, give freed memory back to the system first."""
        self._device = device
        free_buffers()
        if device != "cpu":
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            self.start = torch.cuda.memory_allocated(device)
            return
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        self.start = self._status("VmRSS")

    def highest(self) -> int:
        """Return the most bytes that were in use since the last watch began."""
        if self._device != "cpu":
            return torch.cuda.max_memory_allocated(self._device)
        return self._status("VmHWM")

    @staticmethod
    def _status(name: str) -> int:
        found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
        assert found is not None
        return int(found[1]) * 1024


@dataclass(frozen=True, kw_only=True)
class Growth:
    """One epoch with one, two and three times a few environments, and the line through them.

    Time and memory are linear in the number of environments. For our library this holds only if all
    sizes are cut into micro-batches of one size.
    """

    num_envs: list[int]
    measured: list[Memory]

    def at(self, what: str, num_envs: int) -> float:
        """Return a value of :class:`Memory` on the line."""
        slope, start = self._line(what)
        return start + slope * num_envs

    def most(self, what: str, value: float) -> float:
        """Return the number of environments with such a value on the line."""
        slope, start = self._line(what)
        return (value - start) / slope if slope > 0 else float("inf")

    def _line(self, what: str) -> tuple[float, float]:
        values = [getattr(memory, what) for memory in self.measured]
        return linear_regression(self.num_envs, values)


def measure_growth(case: Case, library: Library, smallest: float) -> Growth:
    """Measure three sizes, from ``smallest`` environments rounded up to fill the mini-batches."""
    unit = case.batches * max(2, -(-int(max(smallest, 32)) // case.batches))
    epoch = replace(case, num_learning_epochs=1)
    sizes = [unit, 2 * unit, 3 * unit]
    cases = [replace(epoch, num_envs=num_envs) for num_envs in sizes]
    measured = [with_exact_malloc(measure_memory, case, library) for case in cases]
    return Growth(num_envs=sizes, measured=measured)


def fit(case: Case, megabytes: float, seconds: float = SECONDS) -> Case:
    """Cut a case down to what rsl_rl can do on this machine.

    Args:
        case: The case with all its environments.
        megabytes: Limit of rsl_rl's process beyond its imports.
        seconds: Limit of its update on one thread. If all epochs take longer, one epoch is kept. If
            that takes longer too, fewer environments are kept.

    Returns:
        The case with fewer environments or epochs.

    Raises:
        ValueError: If not even the smallest size is within the limits.
    """
    growth = measure_growth(case, "rsl_rl", case.num_envs / 32)
    num_envs = min(case.num_envs, growth.most("process_peak", megabytes))
    num_epochs = case.num_learning_epochs
    if growth.at("seconds", int(num_envs)) * num_epochs > seconds:
        num_envs, num_epochs = min(num_envs, growth.most("seconds", seconds)), 1
    num_envs = int(num_envs) // case.batches * case.batches
    if num_envs < 2 * case.batches:
        raise ValueError(
            f"The limits of {megabytes:g} MB and {seconds:g} s leave {num_envs} environments of"
            f" {case}, expected at least {2 * case.batches}: raise them."
        )
    return replace(case, num_envs=num_envs, num_learning_epochs=num_epochs)


def plan(case: Case) -> tuple[float, int]:
    """Ask our ``memory_plan()`` for the peak of ``update()`` in megabytes and its micro-batches."""
    torch.set_num_threads(1)
    algorithm = build(case, "rsl_tbptt")
    fill(algorithm, case, seed=0)
    plan = algorithm.memory_plan()
    return plan.peak(1) / MEGABYTE, plan.sizes.least_micro_batches


def check_plan(case: Case) -> tuple[float, float]:
    """Return the peak of ``update()`` in MB, by plan and by a line through smaller updates."""
    predicted, num_micro_batches = with_exact_malloc(plan, case)
    smallest = case.num_envs / (8 if num_micro_batches == 1 else num_micro_batches)
    growth = measure_growth(case, "rsl_tbptt", smallest)
    return predicted, growth.at("update_peak", case.num_envs)

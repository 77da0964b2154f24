"""Measure the memory of updates in separate processes."""

import ctypes
import multiprocessing
import os
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from rsl_tbptt.core.scan import free_buffers
from scripts.benchmark.case import Case, Library, build, fill

MEGABYTE = 1e6
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
    watch, process_peak, update_peak = imports, 0, 0
    before: int | None = None
    for seed in range(2):
        fill(algorithm, case, seed)
        process_peak, watch = max(process_peak, watch.highest()), _Peak(case.device)
        before = before or watch.start
        algorithm.update()
        update_peak = max(update_peak, watch.highest() - before)
        process_peak = max(process_peak, watch.highest())
    state = [value for of in algorithm.optimizer.state.values() for value in of.values()]
    moments = sum(value.nbytes for value in state if isinstance(value, torch.Tensor))
    return Memory(
        process_peak=(process_peak - imports.start) / MEGABYTE,
        update_peak=(update_peak - moments) / MEGABYTE,
        predicted=predicted,
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

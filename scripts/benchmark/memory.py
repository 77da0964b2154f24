"""Measure the memory of updates in separate processes."""

import ctypes
import multiprocessing
import os
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from rsl_tbptt.core.scan import free_buffers
from scripts.benchmark.case import Case, Library, build, fill

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


def measure_memory(case: Case, library: Library) -> float:
    """Measure two updates after a rollout each, in a process of ``with_exact_malloc``.

    The second update has a full replay buffer. A CPU counts its memory only once it is written to.
    A small update runs beforehand, so that everything that torch loads late counts as imports.

    Returns:
        The most that models, storage, rollout and update take together, beyond the imports, in
        megabytes of 10^6 bytes.

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
    for seed in range(2):
        fill(algorithm, case, seed)
        if seed:
            fill_buffer(algorithm)
        algorithm.update()
    return (imports.highest() - imports.start) / 1e6


def fill_buffer(algorithm: Any) -> None:
    """Put the stored rollout into the replay buffer, if there is one, until it keeps no more."""
    experience, before = getattr(algorithm, "experience", None), -1
    if experience is None or experience.buffer is None:
        return
    while experience.buffer.num_kept > before:
        before = experience.buffer.num_kept
        experience.take()
        experience.keep_newest(algorithm.storage.num_transitions_per_env)


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

"""Memory of one update, measured in a process of its own."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from _benchmark_case import Case, Library, build, fill
from tensordict import TensorDict

MEGABYTE = 1e6

# With these every larger tensor is given back to the system when it is freed: the process then
# holds what is in use, and its peak is that of the update.
EXACT_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory of one update, in megabytes of 10^6 bytes."""

    storage: float
    """The rollout storage."""
    update_peak: float
    """The most that ``update()`` takes beyond what is there before it."""


def measure_update_memory(case: Case, library: Library) -> Memory:
    """Measure the second update: the first one makes the optimiser's state."""
    algorithm = build(case, library)
    for seed in range(2):
        fill(algorithm, case, seed)
        peak = Peak(torch.device(case.device))
        algorithm.update()
        used = peak.bytes_beyond_start()
    storage = sum(
        tensor.numel() * tensor.element_size() for tensor in _tensors(vars(algorithm.storage))
    )
    return Memory(storage=storage / MEGABYTE, update_peak=used / MEGABYTE)


def _tensors(values: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors among an object's attributes."""
    found: list[torch.Tensor] = []
    for value in values.values():
        if isinstance(value, TensorDict):
            found += list(value.values())
        parts = value if isinstance(value, (tuple, list)) else (value,)
        found += [part for part in parts if isinstance(part, torch.Tensor)]
    return found


class Peak:
    """Peak memory of this process on a device from now on."""

    def __init__(self, device: torch.device) -> None:
        """Begin to watch. On the CPU, freed memory is given back to the system before."""
        self._cuda = device.type == "cuda"
        if self._cuda:
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            self._start = torch.cuda.memory_allocated(device)
            return
        if sys.platform != "linux":
            raise NotImplementedError(f"Peak memory on {sys.platform} is not known, only on Linux.")
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        self._start = _status_bytes("VmRSS")

    def bytes_beyond_start(self) -> int:
        """Return the peak since then, beyond what was in use then."""
        peak = torch.cuda.max_memory_allocated() if self._cuda else _status_bytes("VmHWM")
        return peak - self._start


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise NotImplementedError(f"/proc/self/status lacks {field}.")

"""Memory of one update, measured in a process of its own."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from _benchmark_case import Case, Library, build, fill
from tensordict import TensorDict

from rsl_tbptt.core.scan import free_buffers

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
    """The most that ``update()`` takes beyond models, optimiser and storage."""
    process_peak: float
    """The most that models, storage, rollout and update together take, beyond the imports."""
    predicted: float | None = None
    """What our ``memory_plan()`` expected of ``update_peak``, before the first rollout."""


def measure_in_own_process(case: Case, library: Library) -> Memory:
    """Measure a case in a fresh process of one thread, so that nothing but it is counted."""
    command = [sys.executable, __file__, library, json.dumps(asdict(case))]
    environment = os.environ | EXACT_MALLOC | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return Memory(**json.loads(result.stdout.splitlines()[-1]))


def measure_memory(case: Case, library: Library) -> Memory:
    """Measure two rollouts and updates.

    An update of few environments before loads what torch loads late, which counts as imports.
    """
    device = torch.device(case.device)
    few = replace(case, num_envs=case.num_mini_batches)
    algorithm = build(few, library)
    fill(algorithm, few, seed=0)
    algorithm.update()
    del algorithm
    free_buffers()
    imports = Peak(device)
    algorithm = build(case, library)
    predicted = algorithm.memory_plan().peak(1) / MEGABYTE if library == "rsl_tbptt" else None
    free_buffers()
    watch, before_updates, of_updates, of_process = imports, 0, 0, 0
    for seed in range(2):
        fill(algorithm, case, seed=seed)
        of_process, watch = max(of_process, watch.highest()), Peak(device)
        before_updates = before_updates or watch.start
        algorithm.update()
        of_updates = max(of_updates, watch.highest())
    storage = _bytes(_tensors(vars(algorithm.storage)))
    moments = _bytes(
        _tensors({str(k): tuple(v.values()) for k, v in algorithm.optimizer.state.items()})
    )
    return Memory(
        storage=storage / MEGABYTE,
        update_peak=(of_updates - before_updates - moments) / MEGABYTE,
        process_peak=(max(of_process, of_updates) - imports.start) / MEGABYTE,
        predicted=predicted,
    )


def _bytes(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


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
        self._device = device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            self.start = torch.cuda.memory_allocated(device)
            return
        if sys.platform != "linux":
            raise NotImplementedError(f"Peak memory on {sys.platform} is not known, only on Linux.")
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        self.start = _status_bytes("VmRSS")

    def highest(self) -> int:
        """Return the most that was in use since this or a later watch began."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        return _status_bytes("VmHWM")

    def bytes_beyond_start(self) -> int:
        """Return the peak since then, beyond what was in use then."""
        return self.highest() - self.start


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise NotImplementedError(f"/proc/self/status lacks {field}.")


if __name__ == "__main__":
    name, values = sys.argv[1:]
    print(json.dumps(asdict(measure_memory(Case(**json.loads(values)), cast("Library", name)))))

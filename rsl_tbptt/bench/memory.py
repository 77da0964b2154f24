"""Memory of one update, measured in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import psutil
import torch
from tensordict import TensorDict

from rsl_tbptt.bench.case import Case, Library, build, fill
from rsl_tbptt.bench.speed import seconds_of
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
    """What our ``memory_plan()`` expected of ``update_peak`` after the first rollout."""
    seconds: float = 0.0
    """What the second update took, on one thread."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What our ``memory_plan()`` says of a case."""

    predicted: float
    """As :class:`Memory`'s."""
    num_envs: int
    """Of the largest mini-batch."""
    num_micro_batches: int
    """Into which an update cuts it."""


def measure_in_own_process(case: Case, library: Library) -> Memory:
    """Measure a case in a fresh process of one thread, so that nothing but it is counted."""
    return Memory(**_in_own_process(library, case))


def plan_in_own_process(case: Case) -> Plan:
    """Ask for the plan of a case in a fresh process of one thread, as updates are measured."""
    return Plan(**_in_own_process("plan", case))


def _in_own_process(what: str, case: Case) -> dict[str, Any]:
    command = [sys.executable, "-m", __name__, what, json.dumps(asdict(case))]
    environment = os.environ | EXACT_MALLOC | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return json.loads(result.stdout.splitlines()[-1])


def plan(case: Case) -> Plan:
    """Build a case and ask for its plan."""
    algorithm = build(case, "rsl_tbptt")
    fill(algorithm, case, seed=0)
    plan = algorithm.memory_plan()
    return Plan(
        predicted=plan.peak(1) / MEGABYTE,
        num_envs=plan.sizes.num_envs,
        num_micro_batches=plan.sizes.least_micro_batches,
    )


def measure_memory(case: Case, library: Library) -> Memory:
    """Measure two updates after a rollout each.

    An update of few environments before loads what torch loads late, which counts as imports. What
    the first update keeps for the next ones, such as copies to undo them, counts as the update's.
    """
    device = torch.device(case.device)
    few = replace(case, num_envs=2 * case.batches)
    algorithm = build(few, library)
    fill(algorithm, few, seed=0)
    algorithm.update()
    del algorithm
    free_buffers()
    imports = Peak(device)
    algorithm = build(case, library)
    fill(algorithm, case, seed=2)  # the next one begins with states, as all but the first do
    predicted = algorithm.memory_plan().peak(1) / MEGABYTE if library == "rsl_tbptt" else None
    algorithm.storage.clear()
    watch, before, of_process, of_updates, seconds = imports, None, 0, 0, 0.0
    for seed in range(2):
        fill(algorithm, case, seed=seed)
        free_buffers()  # which are the update's, not the rollout's
        of_process, watch = max(of_process, watch.highest()), Peak(device)
        before = before or watch
        seconds = seconds_of(algorithm.update, case.device)
        of_updates = max(of_updates, watch.highest() - before.start)
        of_process = max(of_process, watch.highest())
    storage = _bytes(vars(algorithm.storage).values())
    moments = _bytes(
        value for state in algorithm.optimizer.state.values() for value in state.values()
    )
    return Memory(
        storage=storage / MEGABYTE,
        update_peak=(of_updates - moments) / MEGABYTE,
        process_peak=(of_process - imports.start) / MEGABYTE,
        predicted=predicted,
        seconds=seconds,
    )


def _bytes(values: Iterable[Any]) -> int:
    """Return the size of the tensors among the values, or among the parts of a value."""
    total = 0
    for value in values:
        inside = value.values() if isinstance(value, TensorDict) else value
        parts = inside if isinstance(value, (TensorDict, tuple, list)) else (value,)
        total += sum(part.nbytes for part in parts if isinstance(part, torch.Tensor))
    return total


class Peak:
    """Peak memory of this process on a device from now on."""

    def __init__(self, device: torch.device) -> None:
        """Begin to watch. On the CPU, freed memory is given back to the system before.

        Raises:
            OSError: On another system than Linux.
        """
        self._device = device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            self.start = torch.cuda.memory_allocated(device)
            return
        if sys.platform != "linux":
            raise OSError(f"The system is {sys.platform}, expected linux: others tell no peak.")
        psutil.heap_trim()
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        self.start = psutil.Process().memory_info().rss

    def highest(self) -> int:
        """Return the most bytes that were in use since this or a later watch began."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        # psutil does not know the peak, and getrusage()'s cannot be reset.
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        assert found is not None
        return int(found[1]) * 1024


if __name__ == "__main__":
    what, case = sys.argv[1], Case(**json.loads(sys.argv[2]))
    result = plan(case) if what == "plan" else measure_memory(case, cast("Library", what))
    print(json.dumps(asdict(result)))

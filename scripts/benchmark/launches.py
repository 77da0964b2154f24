"""Count on a CPU what an optimiser step launches on a GPU.

The Triton engine runs in Triton's interpreter. What is counted are operations of torch and kernels
of this package; torch has several kernels for some operations.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rsl_tbptt.algorithms import fused
from rsl_tbptt.core.recording import Recorder
from rsl_tbptt.core.scan import triton
from rsl_tbptt.core.scan.cells import Cell
from scripts.benchmark.case import Case, build, fill
from scripts.benchmark.interpreter import triton_engine_on_cpu

_FREE = ("empty", "new_empty", "_unsafe_view", "profiler")
"""Operations that launch nothing besides views, by the beginning of their names."""


class Launches(TorchDispatchMode):
    """Lists the operations of torch that launch work, and the Triton kernels, in order."""

    def __init__(self) -> None:
        """Begin with an empty list."""
        super().__init__()
        self.names: list[str] = []
        self._changes = contextlib.ExitStack()

    def __enter__(self) -> "Launches":
        """Count from now on."""
        for module in (triton, fused):
            counting = self._counting(module._kernel)
            self._changes.enter_context(patch.object(module, "_kernel", counting))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        """Stop counting."""
        super().__exit__(*error)
        self._changes.close()

    def _counting(self, kernel_of: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that returns a kernel, as another one does, and notes its launches."""

        def counting(*kernel: Cell | str | int) -> Callable[..., None]:
            launch = kernel_of(*kernel)
            parts = (part.name.lower() if isinstance(part, Cell) else part for part in kernel)
            name = "_".join(part for part in parts if isinstance(part, str))

            def count(*arguments: Any, **constants: Any) -> None:
                self.names.append(name)
                launch(*arguments, **constants)

            return count

        return counting

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Note the operation and run it."""
        name = operation.name().removeprefix("aten::").split(".")[0]
        is_view = any(r.alias_info and not r.alias_info.is_write for r in operation._schema.returns)
        result = operation(*args, **(kwargs or {}))
        is_empty = isinstance(result, torch.Tensor) and result.numel() == 0
        if not is_view and not is_empty and not name.startswith(_FREE):
            self.names.append(name)
        return result


PARTS = {
    "steps of the scan": ("lstm_forward", "lstm_backward"),
    "products of whole windows": ("addmm", "mm"),
    "gathers": ("index", "arange"),
    "ELU": ("elu",),
    "sums: biases, standard deviation, terms": ("sum",),
    "copies and buffers": ("cat", "stack", "copy_", "_foreach_copy_", "lstm_", "new_", "add"),
    "losses, normaliser and their gradients": ("",),
}
"""Parts of a step's gradients, by the beginnings of the names of launches; the first that fits."""
AFTER, OUTSIDE = "after the join: clip, rate, Adam", "outside recordings, an update"
UPDATES = 3
"""The first ones make states, gradients and the optimiser's state."""


class Counted(Recorder):
    """Runs the steps that would be recorded as they are, and notes which launches are theirs."""

    def __init__(self, launches: Launches) -> None:
        """Start without steps."""
        super().__init__("cpu", capture=contextlib.nullcontext)
        self._launches = launches
        self.steps: list[tuple[str, list[str]]] = []
        """Name of each function and what it has launched."""
        self.branches: dict[int, list[str]] = {}
        """What each branch of the last step has launched."""

    def __call__(self, function: Callable[..., Any], *tensors: Any, **fixed: Any) -> Any:
        """Run a step."""
        before = len(self._launches.names)
        result = function(*tensors, **fixed)
        self.steps.append((function.__name__, self._launches.names[before:]))
        return result

    @contextlib.contextmanager
    def stream(self, index: int) -> Iterator[None]:
        """Note what a branch launches."""
        before = len(self._launches.names)
        yield
        self.branches[index] = self._launches.names[before:]


def count(case: Case, **options: Any) -> dict[str, tuple[int, int]]:
    """Count the launches of an update's last optimiser step, by parts, and those outside of steps.

    The copies of arguments and results of a recording are not counted, two for each replay.

    Returns:
        The number of all launches, and of those in the longest chain: without other branches.
    """
    algorithm, launches = build(case, "rsl_tbptt", scan_engine="triton", **options), Launches()
    algorithm.recorder = counted = Counted(launches)
    with triton_engine_on_cpu():
        for seed in range(UPDATES):
            fill(algorithm, case, seed)
            counted.steps.clear()
            launches.names.clear()
            with launches:
                algorithm.update()
    of_steps, branches = dict(counted.steps), sorted(counted.branches.values(), key=len)
    everything = _by_part(of_steps["gradients"])
    others = _by_part([name for branch in branches[:-1] for name in branch])
    found = {part: (n, n - others[part]) for part, n in everything.items()}
    found[AFTER] = (len(of_steps["conclude"]), len(of_steps["conclude"]))
    of_a_step = [sum(numbers) for numbers in zip(*found.values(), strict=True)]
    outside = len(launches.names) - sum(len(launched) for _, launched in counted.steps)
    return {**found, "a step": (of_a_step[0], of_a_step[1]), OUTSIDE: (outside, outside)}


def _by_part(names: Sequence[str]) -> dict[str, int]:
    """Count launches by PARTS."""
    parts = [next(p for p, starts in PARTS.items() if name.startswith(starts)) for name in names]
    return {part: parts.count(part) for part in PARTS}

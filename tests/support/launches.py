"""Count on a CPU what an optimiser step launches on a GPU.

The Triton engine runs in Triton's interpreter. A GPU runs more kernels than are counted here: torch
has several for some operations.
"""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from rsl_tbptt.core.scan import triton
from rsl_tbptt.core.scan.cells import Cell

_FREE = ("empty", "new_empty", "_unsafe_view", "profiler")
"""Operations that launch nothing besides views, by the beginning of their names."""


class Launches(TorchDispatchMode):
    """Lists the operations of torch that launch work, and the Triton kernels, in order."""

    def __init__(self) -> None:
        """Begin with an empty list."""
        super().__init__()
        self.names: list[str] = []
        kernel_of = triton._kernel

        def counting(cell: Cell, name: str, *grid: int) -> Callable[..., None]:
            launch = kernel_of(cell, name, *grid)

            def count(*arguments: Any, **constants: Any) -> None:
                self.names.append(f"{cell.name.lower()}_{name}")
                with _disable_current_modes():  # Triton's interpreter works with torch, too
                    launch(*arguments, **constants)

            return count

        self._counting = patch.object(triton, "_kernel", counting)

    def __enter__(self) -> "Launches":
        """Count from now on."""
        self._counting.start()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        """Stop counting."""
        super().__exit__(*error)
        self._counting.stop()

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

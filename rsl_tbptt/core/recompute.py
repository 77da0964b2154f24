"""Apply a function to rows in parts, and recompute some of the parts for their gradient.

A convolution keeps many times its inputs for its backward pass. So it runs in parts without a
graph, and each part runs again when the gradient reaches it. This takes the memory of one part,
whatever the number of rows, and costs one more forward pass. If memory allows, the last parts keep
their graphs and are not recomputed; backward reaches and frees those first.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

Function = Callable[[torch.Tensor], torch.Tensor]
"""Maps rows, shape (R, ...), to rows, (R, F), each row independently."""

_AT_ONCE = {"cpu": 2**24}
_AT_ONCE_ELSEWHERE = 2**31
"""Size in bytes of one part's graph: on a CPU it is reused by caches and allocator, on accelerators
it keeps them busy."""

_KEPT = {"cpu": 2**28}
"""Bytes up to which the graphs of several parts are kept; other devices keep only one part's."""


def in_parts(function: Function, rows: torch.Tensor, bytes_per_row: int) -> torch.Tensor:
    """Apply a function to rows, in as many parts as memory requires.

    Args:
        function: The function. It must not draw random numbers.
        rows: Its argument. Shape: (R, ...).
        bytes_per_row: Bytes of its graph for a row, from :func:`graph_bytes_per_row`.

    Returns:
        Its value. Shape: (R, F). The gradient equals that of the function on all rows at once.
    """
    bytes_per_row = max(1, bytes_per_row)
    device = rows.device.type
    size = max(1, _AT_ONCE.get(device, _AT_ONCE_ELSEWHERE) // bytes_per_row)
    num_kept = _KEPT.get(device, 0) // bytes_per_row
    parts, num_again = rows.split(size), 0
    if torch.is_grad_enabled() and len(rows) > max(size, num_kept):
        num_again = -(-(len(rows) - num_kept) // size)
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    again: list[Any] = [checkpoint(function, part, **options) for part in parts[:num_again]]
    return torch.cat(again + [function(part) for part in parts[num_again:]])


def graph_bytes_per_row(function: Function, rows: torch.Tensor) -> int:
    """Measure the bytes that the graph of a function keeps for each row.

    Args:
        function: The function.
        rows: At least two rows. Shape: (R, ...).

    Returns:
        Bytes.
    """
    one, two = (_graph_bytes(function, rows[:number]) for number in (1, 2))
    return two - one  # cancels what both graphs keep of parameters


def _graph_bytes(function: Function, rows: torch.Tensor) -> int:
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage
        return tensor

    with torch.enable_grad(), saved_tensors_hooks(keep, lambda tensor: tensor):
        function(rows.clone())
    return sum(storage.nbytes() for storage in kept.values())

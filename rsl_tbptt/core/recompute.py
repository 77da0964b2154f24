"""A function of rows in parts, each computed again for its gradient.

What a convolution keeps for its backward pass outweighs its inputs many times over. Run in parts
without a graph, each run again when the gradient reaches it, it takes the memory of one part,
whatever the number of rows, for one more forward pass. Where there is memory for the graphs of all
parts, they are kept instead.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

Function = Callable[[torch.Tensor], torch.Tensor]
"""Maps rows, shape (R, ...), to rows, (R, F), each for itself."""

_AT_ONCE = {"cpu": 2**24}
_AT_ONCE_ELSEWHERE = 2**31
"""Bytes of the graph of one part: on a CPU what its caches and allocator use again, on accelerators
what keeps them busy."""

_KEPT = {"cpu": 2**28}
"""Bytes of the graphs of all parts up to which none is run again; elsewhere those of one part."""


def in_parts(
    function: Function, rows: torch.Tensor, bytes_per_row: int, *, sparing: bool = False
) -> torch.Tensor:
    """Apply a function to rows, in as many parts as memory asks for.

    Args:
        function: The function, which draws no random numbers.
        rows: Its argument. Shape: (R, ...).
        bytes_per_row: What its graph takes for a row, from :func:`graph_bytes_per_row`.
        sparing: Whether several parts are run again even if the graphs of all would be small.

    Returns:
        Its value. Shape: (R, F). The gradient is that of the function on all rows at once.
    """
    at_once = _AT_ONCE.get(rows.device.type, _AT_ONCE_ELSEWHERE)
    part = max(1, at_once // max(1, bytes_per_row))
    kept = part if sparing else max(part, _KEPT.get(rows.device.type, 0) // max(1, bytes_per_row))
    once = len(rows) <= kept or not torch.is_grad_enabled()
    run: Function = function if once else partial(_run_again_for_its_gradient, function)
    return torch.cat([run(each) for each in rows.split(part)])


def graph_bytes_per_row(function: Function, rows: torch.Tensor) -> int:
    """Measure what the graph of a function keeps for each row.

    Args:
        function: The function.
        rows: Two rows at least. Shape: (R, ...).

    Returns:
        Bytes.
    """
    one, two = (_graph_bytes(function, rows[:number]) for number in (1, 2))
    return two - one  # what is kept of parameters is in both


def _run_again_for_its_gradient(function: Function, rows: torch.Tensor) -> torch.Tensor:
    value = checkpoint(function, rows, use_reentrant=False, preserve_rng_state=False)
    assert isinstance(value, torch.Tensor)
    return value


def _graph_bytes(function: Function, rows: torch.Tensor) -> int:
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage
        return tensor

    with torch.enable_grad(), saved_tensors_hooks(keep, lambda tensor: tensor):
        function(rows.clone())
    return sum(storage.nbytes() for storage in kept.values())

"""Matrix products and the tensors of steps for the passes of ``cells.py``.

Shapes: T steps, N environments, D inputs; G rows of a cell's gates.
"""

import torch

from rsl_tbptt.core.scan.layers import Tensors

_MM_TAKES_OUT_DTYPE = "dtype" in torch.ops.aten.mm.overloads()
"""Newer versions of torch do."""


def project(x_TND: torch.Tensor, w_ih: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the input projection of all steps, shape (T, N, G)."""
    of_x = product(x_TND.flatten(0, 1).to(dtype), w_ih.to(dtype).t(), x_TND.dtype)
    return of_x.unflatten(0, x_TND.shape[:2])


def product(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return ``a @ b`` in ``dtype``, without rounding to the operands' dtype where torch can.

    Shapes: ``a`` is (N, D), ``b`` (D, G), the product (N, G).
    """
    if a.dtype == dtype:
        return a @ b
    if a.is_cuda and dtype == torch.float32 and _MM_TAKES_OUT_DTYPE:
        return torch.mm(a, b, out_dtype=dtype)
    return (a @ b).to(dtype)


def by_kind(steps: list[Tensors]) -> Tensors:
    """Join the tensors of all steps into one tuple, those of one kind together."""
    return tuple(tensor for kind in zip(*steps, strict=True) for tensor in kind)


def by_step(kept: Tensors, num_steps: int) -> list[Tensors]:
    """Return the tensors of each kind, one for each step: the inverse of ``by_kind``."""
    return [kept[first : first + num_steps] for first in range(0, len(kept), num_steps)]

"""Weights as the steps of a scan multiply with them, prepared once for all windows that share them.

MKL brings the weights into the order of its kernels for every product, which takes up to half of a
product's time where rows are few. Where torch lets it do so once, the steps of a window share them,
and under :func:`unchanged_weights` the windows do, too.
"""

import functools
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

Prepared = TypeVar("Prepared")

StepProduct = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Maps a step's rows (N, K) and a buffer (N, G) to their product, in the buffer or a new tensor."""


@dataclass(frozen=True)
class _Kept:
    weights: tuple[torch.Tensor, ...]
    """Here so that they live, as they are found by their ids."""
    made: Any


_kept: dict[Hashable, _Kept] | None = None


@contextmanager
def unchanged_weights() -> Iterator[None]:
    """Keep what scans prepare of their weights, which nothing may change until the end."""
    global _kept
    outer, _kept = _kept, {}
    try:
        yield
    finally:
        _kept = outer


def prepare(
    make: Callable[..., Prepared], num_envs: int, dtype: torch.dtype, *weights: torch.Tensor
) -> Prepared:
    """Return what ``make`` makes of weights for N environments, or has made while they were kept.

    Args:
        make: Makes it of N, the dtype and the weights.
        num_envs: Environments of a step N. Micro-batches have two such sizes at most, in turns.
        dtype: Of the operands of products.
        *weights: The weights, of any shape. What is made of others than parameters is not kept.
    """
    if _kept is None or not all(isinstance(weight, nn.Parameter) for weight in weights):
        return make(num_envs, dtype, *weights)
    key = (make, num_envs, dtype, *map(id, weights))
    if key not in _kept:
        _kept[key] = _Kept(weights, make(num_envs, dtype, *weights))
    made: Prepared = _kept[key].made
    return made


def step_product(num_envs: int, dtype: torch.dtype, weights: torch.Tensor) -> StepProduct:
    """Return ``rows @ weights.t()`` for the N rows of each step.

    Args:
        num_envs: Environments of a step N.
        dtype: Of both factors and of the product.
        weights: The other factor, which must not change before the last step. Shape: (G, K).
    """
    weights = weights.to(dtype)
    if not (_packs() and dtype == torch.float32):
        factor = weights.t()
        return lambda rows, out: torch.mm(rows, factor, out=out)
    weights = weights.contiguous()
    packed = torch.ops.mkl._mkl_reorder_linear_weight(weights, num_envs)
    return lambda rows, _: torch.ops.mkl._mkl_linear(rows, packed, weights, None, num_envs)


def transposed_step_product(
    num_envs: int, dtype: torch.dtype, weights: torch.Tensor
) -> StepProduct:
    """Return ``rows @ weights``, shape (K, G), as :func:`step_product` does."""
    return step_product(num_envs, dtype, weights.t())


@functools.cache
def _packs() -> bool:
    """Return whether this torch has MKL's packed products, which its compiler uses, too."""
    names = ("_mkl_reorder_linear_weight", "_mkl_linear")
    return torch.backends.mkl.is_available() and all(hasattr(torch.ops.mkl, n) for n in names)

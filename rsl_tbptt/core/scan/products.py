"""Matrix products of scans: the fastest library of a CPU, and the precision on CUDA.

torch multiplies float32 matrices on x86 by MKL. Two things cost time there, and torch's own
compiler avoids them by the same private functions that this module calls if torch has them:

- MKL packs the weights into the order of its kernels for every product, which takes up to half of
  a product's time if there are few rows. Packed weights are kept.
- On processors of AMD, MKL's products run at less than half the speed of oneDNN's.

Float32 products of a scan on CUDA have the same precision as torch's own layers there. By default,
torch lets cuDNN, which runs ``nn.LSTM`` and ``nn.GRU``, round the operands of float32 products to
TF32, but not its own matrix products; both can be set.
"""

import functools
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

Tensors = tuple[torch.Tensor, ...]
Gradients = tuple[torch.Tensor | None, ...]

LayerScan = Callable[..., Tensors]
"""Maps the dtype of products' operands and the tensors of a layer to its outputs (T, N, H) and, if
the state has two tensors, the second one after step T-1 (N, H).

The tensors are inputs x (T, N, D), the one or two tensors of the state before step 0 (N, H), w_ih
(rows, D), w_hh (rows, H), b_ih and b_hh (rows,), in this order."""

ONCE = (
    "The backward pass of this scan overwrites its buffers, so it runs once and cannot itself be"
    " differentiated: instead of retain_graph=True run the forward pass again, instead of"
    " create_graph=True use the engine 'reference'."
)
"""Error of engines whose backward pass overwrites what the forward pass kept, if it runs twice."""

Prepared = TypeVar("Prepared")

StepProduct = tuple[Callable[..., torch.Tensor], tuple[Any, ...], bool]
"""A function of torch, its arguments after a step's rows (N, K), and whether it takes ``out``, a
buffer (N, G) for the product; otherwise it returns a new tensor."""

_MIN_OPERATIONS = 2**20
"""For smaller products the fixed cost of oneDNN's is too large."""


_NO_FUSION = (None, "none", [], "")
"""Arguments of oneDNN's product without a bias and a function after it."""


def multiply(
    left: torch.Tensor, right: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the product of two matrices, (M, K) and (K, G), of any strides.

    Args:
        left: The first matrix.
        right: The second matrix.
        out: Receives the product if given, in its own dtype. Shape: (M, G).
    """
    library = library_for(left.dtype, left.numel() * right.shape[1])
    if library == "oneDNN" and _is_in_one_piece(right):
        product = torch.ops.mkldnn._linear_pointwise(left, right.t(), *_NO_FUSION)
    elif out is None or out.dtype != left.dtype:
        product = left @ right
    else:
        return torch.mm(left, right, out=out)
    return product if out is None else out.copy_(product)


def multiply_columns(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return ``left.t() @ right``, (G, K), for rows (M, G) and (M, K): a gradient of weights."""
    library = library_for(left.dtype, left.numel() * right.shape[1])
    if library == "oneDNN" and _is_in_one_piece(left):
        # Faster than the other way round.
        return torch.ops.mkldnn._linear_pointwise(right.t(), left.t(), *_NO_FUSION).t()
    return left.t() @ right


def step_product(num_envs: int, dtype: torch.dtype, factor: torch.Tensor) -> StepProduct:
    """Return what multiplies the N rows of a step by ``factor``.

    Args:
        num_envs: Environments of a step N.
        dtype: Dtype of both factors and of the product.
        factor: The other factor, which must not change before the last step. Shape: (K, G).
    """
    factor = factor.to(dtype)
    library = library_for(dtype, num_envs * factor.numel())
    if library == "torch":
        return torch.mm, (factor,), True
    weights = factor.t().contiguous()
    if library == "oneDNN":
        reordered = torch.ops.mkldnn._reorder_linear_weight(weights, num_envs)
        return torch.ops.mkldnn._linear_pointwise, (reordered, *_NO_FUSION), False
    packed = torch.ops.mkl._mkl_reorder_linear_weight(weights, num_envs)
    return torch.ops.mkl._mkl_linear, (packed, weights, None, num_envs), False


def library_for(dtype: torch.dtype, operations: int) -> str:
    """Return the library of a product: "oneDNN", "MKL" with packed weights, or "torch" for its own.

    Args:
        dtype: Dtype of both factors.
        operations: Multiplications of the product.
    """
    if dtype != torch.float32:
        return "torch"
    if operations >= _MIN_OPERATIONS and _is_of_amd() and has("oneDNN"):
        return "oneDNN"
    return "MKL" if has("MKL") else "torch"


def _is_in_one_piece(matrix: torch.Tensor) -> bool:
    """Return whether no other columns lie between those of ``matrix``.

    oneDNN has no fast product for others: it takes a thousand times as long.
    """
    return matrix.is_contiguous() or matrix.t().is_contiguous()


@functools.cache
def has(library: str) -> bool:
    """Return whether this torch has the functions of "MKL" or "oneDNN" that are called here."""
    if library == "MKL":
        backend, functions = torch.backends.mkl, torch.ops.mkl
        names = ("_mkl_reorder_linear_weight", "_mkl_linear")
    else:
        backend, functions = torch.backends.mkldnn, torch.ops.mkldnn
        names = ("_reorder_linear_weight", "_linear_pointwise")
    return backend.is_available() and all(hasattr(functions, name) for name in names)


@functools.cache
def _is_of_amd() -> bool:
    described = Path("/proc/cpuinfo")
    return described.exists() and "AuthenticAMD" in described.read_text(encoding="utf-8")


_kept = ContextVar[dict[Hashable, tuple[Any, ...]] | None]("_kept", default=None)
"""Prepared values by key, stored with the weights to keep these alive: the key has their ids."""


@contextmanager
def unchanged_weights() -> Iterator[None]:
    """Keep what scans prepare from their weights; the weights must not change until the end.

    The steps of a window share packed weights; inside this context the windows share them, too.
    """
    outer = _kept.set({})
    torch.clear_autocast_cache()  # under your own autocast it has casts of the weights before
    try:
        yield
    finally:
        _kept.reset(outer)
        torch.clear_autocast_cache()


def prepare(
    make: Callable[..., Prepared], num_envs: int, dtype: torch.dtype, *weights: torch.Tensor
) -> Prepared:
    """Return ``make`` applied to weights for N environments, or the value kept from before.

    Args:
        make: Makes the value from N, the dtype and the weights.
        num_envs: Environments of a step N. Micro-batches have at most two sizes, in turns.
        dtype: Dtype of the operands of products.
        *weights: The weights, of any shape. The value is kept only if all are parameters.
    """
    kept = _kept.get()
    if kept is None or not all(isinstance(weight, nn.Parameter) for weight in weights):
        return make(num_envs, dtype, *weights)
    key = (make, num_envs, dtype, *map(id, weights))
    if key not in kept:
        kept[key] = weights, make(num_envs, dtype, *weights)
    made: Prepared = kept[key][1]
    return made


def operand_dtype_of(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the operands of products: autocast's on ``device``, or ``dtype``."""
    enabled = torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if enabled else dtype


def tf32_in_layers() -> bool:
    """Return whether torch's recurrent layers may use TF32 for float32 products on CUDA.

    Since torch 2.9 the new setting is read: it inherits, and the old one writes it, too. Reading
    the old one after the new one was written is an error.
    """
    cudnn = torch.backends.cudnn
    if not cudnn.enabled:  # then the layers use torch's matrix products
        return tf32_in_products()
    if (precision := getattr(cudnn.rnn, "fp32_precision", None)) is not None:
        return precision == "tf32"
    return bool(cudnn.allow_tf32)


def tf32_in_products() -> bool:
    """Return whether torch may use TF32 for float32 matrix products on CUDA."""
    precision = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    if precision is not None:
        return precision == "tf32"
    return torch.get_float32_matmul_precision() != "highest"


@contextmanager
def products_as_in_layers() -> Iterator[None]:
    """Give CUDA's float32 matrix products the precision of torch's recurrent layers meanwhile."""
    matmul, tf32 = torch.backends.cuda.matmul, tf32_in_layers()
    if tf32 == tf32_in_products():
        yield
    elif hasattr(matmul, "fp32_precision"):
        before = matmul.fp32_precision
        matmul.fp32_precision = "tf32" if tf32 else "ieee"
        try:
            yield
        finally:
            matmul.fp32_precision = "none"  # inherits, which shows whether it did before
            if matmul.fp32_precision != before:
                matmul.fp32_precision = before
    else:  # torch before 2.9
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)

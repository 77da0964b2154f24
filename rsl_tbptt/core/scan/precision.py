"""Float32 products of a scan on CUDA have the precision that torch's own layers have there.

torch lets cuDNN, which runs ``nn.LSTM`` and ``nn.GRU``, round the operands of float32 products to
TF32 unless told otherwise, and its own matrix products only if told so. An engine that multiplies
by itself follows cuDNN's switch, so that it is as fast and as precise as the layers it replaces.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch


def tf32_in_layers() -> bool:
    """Return whether torch's recurrent layers may use TF32 for float32 products on CUDA.

    Since torch 2.9 the new setting is read, which inherits and which the old one writes too; to
    read the old one after the new one was written is an error.
    """
    cudnn = torch.backends.cudnn
    if not cudnn.enabled:  # the layers are made of torch's matrix products then
        return _tf32_in_products()
    if (precision := getattr(cudnn.rnn, "fp32_precision", None)) is not None:
        return precision == "tf32"
    return bool(cudnn.allow_tf32)


def _tf32_in_products() -> bool:
    precision = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    if precision is not None:
        return precision == "tf32"
    return torch.get_float32_matmul_precision() != "highest"


@contextlib.contextmanager
def products_as_in_layers() -> Iterator[None]:
    """Give CUDA's float32 matrix products the precision of torch's recurrent layers meanwhile."""
    matmul, tf32 = torch.backends.cuda.matmul, tf32_in_layers()
    if tf32 == _tf32_in_products():
        yield
    elif hasattr(matmul, "fp32_precision"):
        before = matmul.fp32_precision
        matmul.fp32_precision = "tf32" if tf32 else "ieee"
        try:
            yield
        finally:
            matmul.fp32_precision = "none"  # inherits, and so tells whether it did before
            if matmul.fp32_precision != before:
                matmul.fp32_precision = before
    else:  # torch before 2.9
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


def as_in_layers(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run a pass of an autograd function, ``(ctx, tensor, ...)``, so if it is on CUDA.

    Not elsewhere: before torch 2.9 the switch is one for CUDA and CPU.
    """

    @functools.wraps(function)
    def run(ctx: Any, first: torch.Tensor, *rest: Any) -> Any:
        with products_as_in_layers() if first.is_cuda else contextlib.nullcontext():
            return function(ctx, first, *rest)

    return run

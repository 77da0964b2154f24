"""Layers one above the other, for the engines that scan one layer at a time.

Float32 products of a scan on CUDA have the precision that torch's own layers have there: torch lets
cuDNN, which runs ``nn.LSTM`` and ``nn.GRU``, round the operands of float32 products to TF32 unless
told otherwise, and its own matrix products only if told so.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from rsl_tbptt.core.hidden_state import HiddenState, as_tensors, from_tensors
from rsl_tbptt.core.scan.inputs import HeldInputs

Tensors = tuple[torch.Tensor, ...]

Scan = Callable[..., tuple[torch.Tensor, HiddenState]]
"""Maps layers, inputs, a state that is not None and episode starts to outputs and last state, as
``recurrent_scan`` does; cuts come last, if it takes them."""

LayerScan = Callable[..., tuple[torch.Tensor, Tensors]]
"""Maps inputs (T, N, D), the state's tensors (N, H), the weights (input and hidden weights, then
their biases), episode starts (T, N) and the operand dtype to outputs (T, N, H) and the state after
step T-1; cuts as in ``Scan``. Of an engine that knows ``HeldInputs`` it also takes ``added``, what
held inputs add to the products of inputs and weights, (T, N, 4H or 3H)."""

ONCE = (
    "The backward pass of this scan overwrites its buffers, so it runs once and cannot itself be"
    " differentiated: instead of retain_graph=True run the forward pass again, instead of"
    " create_graph=True use the engine 'reference'."
)
"""What an engine whose backward pass overwrites what the forward pass kept says to a second one."""


def layer_by_layer(layers: Mapping[str, LayerScan]) -> dict[str, Scan]:
    """Return the scans of whole stacks of layers, by the name of the cell as ``layers`` are."""
    return {
        name: functools.partial(scan_layers, scan_layer=scan_layer)
        for name, scan_layer in layers.items()
    }


def scan_layers(
    rnn: nn.RNNBase,
    inputs: torch.Tensor | HeldInputs,
    state: HiddenState,
    episode_starts: torch.Tensor,
    *cuts: tuple[int, ...],
    scan_layer: LayerScan,
) -> tuple[torch.Tensor, HiddenState]:
    """Run the layers one above the other.

    Inputs (T, N, D), other arguments and result: see ``recurrent_scan``. ``scan_layer`` is given
    the cuts if there is such an argument.
    Under autocast the operands of matrix products have its dtype; the state, the gates and the
    accumulation keep the dtype of the weights.
    """
    device, dtype = inputs.device.type, rnn.all_weights[0][0].dtype
    operand_dtype = operand_dtype_of(inputs.device, dtype)
    finals = []
    with torch.autocast(device, enabled=False):
        inputs, tensors = inputs.to(dtype), [tensor.to(dtype) for tensor in as_tensors(state)]
        for layer in range(rnn.num_layers):
            before = tuple(tensor[layer] for tensor in tensors)
            weights, added = _layer_weights(rnn, layer), {}
            if isinstance(inputs, HeldInputs):
                w_ih, added["added"] = inputs.multiplied(weights[0], operand_dtype)
                inputs, weights = inputs.own, (w_ih, *weights[1:])
            arguments = (weights, episode_starts, operand_dtype, *cuts)
            inputs, after = scan_layer(inputs, before, *arguments, **added)
            finals.append(after)
        last = [torch.stack(parts) for parts in zip(*finals, strict=True)]
    assert isinstance(inputs, torch.Tensor)
    return inputs, from_tensors(last)


def operand_dtype_of(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the operands of products: autocast's on ``device``, or ``dtype``."""
    enabled = torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if enabled else dtype


def _layer_weights(rnn: nn.RNNBase, layer: int) -> Tensors:
    """Return input and hidden weights and biases of a layer, with zeros for absent biases."""
    weights: list[torch.Tensor] = list(rnn.all_weights[layer])
    if not rnn.bias:
        weights += [weights[0].new_zeros(len(weights[0]))] * 2
    return tuple(weights)


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

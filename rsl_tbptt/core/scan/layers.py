"""Code that all engines share: stacked layers, weights, and the precision of products.

Float32 products of a scan on CUDA have the same precision as torch's own layers there. By default,
torch lets cuDNN, which runs ``nn.LSTM`` and ``nn.GRU``, round the operands of float32 products to
TF32, but not its own matrix products; both can be set.
"""

import contextlib
from collections.abc import Callable, Iterator

import torch

from rsl_tbptt.core.hidden_state import HiddenState, as_tensors, from_tensors
from rsl_tbptt.core.scan.cells import RecurrentLayers

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


def scan_layers(
    rnn: RecurrentLayers, inputs: torch.Tensor, state: HiddenState, scan_layer: LayerScan
) -> tuple[torch.Tensor, HiddenState]:
    """Run the stacked layers; inputs (T, N, D) and result as in ``recurrent_scan``.

    Under autocast the operands of matrix products have autocast's dtype. The state, the gates and
    the accumulation keep the dtype of the weights.
    """
    dtype = rnn.all_weights[0][0].dtype
    operand_dtype = operand_dtype_of(inputs.device, dtype)
    finals = []
    with torch.autocast(inputs.device.type, enabled=False):
        inputs, tensors = inputs.to(dtype), [tensor.to(dtype) for tensor in as_tensors(state)]
        for layer, weights in enumerate(rnn.all_weights):
            if not rnn.bias:
                weights = [*weights, *[weights[0].new_zeros(len(weights[0]))] * 2]
            before = [tensor[layer] for tensor in tensors]
            inputs, *last_cell = scan_layer(operand_dtype, inputs, *before, *weights)
            finals.append((inputs[-1], *last_cell))
        # All layers of the first tensor, then all of the second: one copy, without the outputs.
        last = torch.stack([tensor for layers in zip(*finals, strict=True) for tensor in layers])
        last = last.unflatten(0, (len(tensors), rnn.num_layers))
        return inputs, from_tensors([last[index] for index in range(len(tensors))])


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


@contextlib.contextmanager
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

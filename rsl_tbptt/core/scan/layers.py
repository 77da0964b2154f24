"""Layers one above the other, for the engines that scan one layer at a time."""

import functools
from collections.abc import Callable, Mapping

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

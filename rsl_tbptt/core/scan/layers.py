"""Layers one above the other, for the engines that scan one layer at a time."""

from collections.abc import Callable

import torch
from torch import nn

from rsl_tbptt.core.hidden_state import HiddenState, as_tensors

Tensors = tuple[torch.Tensor, ...]

LayerScan = Callable[
    [torch.Tensor, Tensors, Tensors, torch.Tensor, torch.dtype], tuple[torch.Tensor, Tensors]
]
"""Maps inputs (T, N, D), the state's tensors (N, H), the weights (input and hidden weights, then
their biases), episode starts (T, N) and the operand dtype to outputs (T, N, H) and the state after
step T-1."""


def scan_layers(
    rnn: nn.LSTM | nn.GRU,
    inputs: torch.Tensor,
    state: HiddenState,
    episode_starts: torch.Tensor,
    scan_layer: LayerScan,
) -> tuple[torch.Tensor, HiddenState]:
    """Run the layers one above the other. Other arguments and result: see ``recurrent_scan``.

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
            weights = _layer_weights(rnn, layer)
            inputs, after = scan_layer(inputs, before, weights, episode_starts, operand_dtype)
            finals.append(after)
        last = [torch.stack(parts) for parts in zip(*finals, strict=True)]
    return inputs, (last[0], last[1]) if isinstance(state, tuple) else last[0]


def operand_dtype_of(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the operands of products: autocast's on ``device``, or ``dtype``."""
    enabled = torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if enabled else dtype


def _layer_weights(rnn: nn.LSTM | nn.GRU, layer: int) -> Tensors:
    """Return input and hidden weights and biases of a layer, with zeros for absent biases."""
    weights: list[torch.Tensor] = list(rnn.all_weights[layer])
    if not rnn.bias:
        weights += [weights[0].new_zeros(len(weights[0]))] * 2
    return tuple(weights)

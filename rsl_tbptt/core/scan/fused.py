"""The fast engine: hand-written forward and backward passes over the whole window.

Per layer, the input projection of all steps is one matrix product before the time loop and the
weight gradients are one product each after it; inside the loop there is one product per step.
Episode starts are masks, so there is no padding, no host synchronisation, and the cost does not
depend on the done rate.
"""

import torch
from torch import nn

from rsl_tbptt.core.hidden_state import HiddenState, as_tensors
from rsl_tbptt.core.scan.gru import GruScan
from rsl_tbptt.core.scan.lstm import LstmScan


def scan(
    rnn: nn.LSTM | nn.GRU, inputs: torch.Tensor, state: HiddenState, episode_starts: torch.Tensor
) -> tuple[torch.Tensor, HiddenState]:
    """Run the layers one above the other. Arguments and result: see ``recurrent_scan``.

    Under autocast the operands of matrix products have its dtype; the state, the gates and the
    accumulation keep the dtype of the weights.
    """
    device, dtype = inputs.device.type, rnn.all_weights[0][0].dtype
    autocast = torch.is_autocast_enabled(device)
    operand_dtype = torch.get_autocast_dtype(device) if autocast else dtype
    with torch.autocast(device, enabled=False):
        if isinstance(rnn, nn.LSTM):
            return _scan_lstm(rnn, inputs.to(dtype), state, episode_starts, operand_dtype)
        return _scan_gru(rnn, inputs.to(dtype), state, episode_starts, operand_dtype)


def _scan_lstm(
    rnn: nn.LSTM,
    inputs: torch.Tensor,
    state: HiddenState,
    episode_starts: torch.Tensor,
    operand_dtype: torch.dtype,
) -> tuple[torch.Tensor, HiddenState]:
    hidden, cell = as_tensors(state)
    last_hidden, last_cell = [], []
    for layer in range(rnn.num_layers):
        w_ih, w_hh, b_ih, b_hh = _layer_weights(rnn, layer)
        inputs, layer_cell = LstmScan.apply(
            inputs,
            hidden[layer],
            cell[layer],
            w_ih,
            w_hh,
            b_ih + b_hh,
            episode_starts,
            operand_dtype,
        )
        last_hidden.append(inputs[-1])
        last_cell.append(layer_cell)
    return inputs, (torch.stack(last_hidden), torch.stack(last_cell))


def _scan_gru(
    rnn: nn.GRU,
    inputs: torch.Tensor,
    state: HiddenState,
    episode_starts: torch.Tensor,
    operand_dtype: torch.dtype,
) -> tuple[torch.Tensor, HiddenState]:
    (hidden,) = as_tensors(state)
    last_hidden = []
    for layer in range(rnn.num_layers):
        weights = _layer_weights(rnn, layer)
        inputs = GruScan.apply(inputs, hidden[layer], *weights, episode_starts, operand_dtype)
        last_hidden.append(inputs[-1])
    return inputs, torch.stack(last_hidden)


def _layer_weights(rnn: nn.LSTM | nn.GRU, layer: int) -> list[torch.Tensor]:
    """Return input and hidden weights and biases of a layer, with zeros for absent biases."""
    weights: list[torch.Tensor] = list(rnn.all_weights[layer])
    if not rnn.bias:
        weights += [weights[0].new_zeros(len(weights[0]))] * 2
    return weights

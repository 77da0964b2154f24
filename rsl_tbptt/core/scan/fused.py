"""Hand-written forward and backward passes over the whole window, of torch's operations alone.

Per layer there is one product per step forward and one backward, and the weight gradients are one
product over the window. Episode starts are lists of environments, read once per layer, which costs
nothing on a CPU and makes the host wait on a GPU. There is no padding, and the cost does not depend
on the done rate.
"""

import torch
from torch import nn

from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.scan.gru import GruScan
from rsl_tbptt.core.scan.layers import Tensors, scan_layers
from rsl_tbptt.core.scan.lstm import LstmScan


def scan(
    rnn: nn.LSTM | nn.GRU, inputs: torch.Tensor, state: HiddenState, episode_starts: torch.Tensor
) -> tuple[torch.Tensor, HiddenState]:
    """Run the layers one above the other. Arguments and result: see ``recurrent_scan``."""
    return scan_layers(rnn, inputs, state, episode_starts, scan_layer)


def scan_layer(
    inputs: torch.Tensor,
    state: Tensors,
    weights: Tensors,
    episode_starts: torch.Tensor,
    operand_dtype: torch.dtype,
) -> tuple[torch.Tensor, Tensors]:
    """Scan one layer; arguments and result as in ``LayerScan``."""
    if len(state) == 1:
        outputs = GruScan.apply(inputs, *state, *weights, episode_starts, operand_dtype)
        return outputs, (outputs[-1],)
    w_ih, w_hh, b_ih, b_hh = weights
    outputs, cell = LstmScan.apply(
        inputs, *state, w_ih, w_hh, b_ih + b_hh, episode_starts, operand_dtype
    )
    return outputs, (outputs[-1], cell)

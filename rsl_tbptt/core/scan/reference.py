"""The definition of correct: torch's own layers, one step at a time, state cleared in between."""

import torch
from torch import nn

from rsl_tbptt.core.hidden_state import HiddenState, clear


def scan(
    rnn: nn.RNNBase, inputs: torch.Tensor, state: HiddenState, episode_starts: torch.Tensor
) -> tuple[torch.Tensor, HiddenState]:
    """Run ``rnn`` step by step under autograd.

    Inputs (T, N, D), other arguments and result: see ``recurrent_scan``.
    """
    outputs = []
    for step_input, starts in zip(inputs, episode_starts, strict=True):
        output, state = rnn(step_input.unsqueeze(0), clear(state, starts))
        outputs.append(output)
    return torch.cat(outputs), state

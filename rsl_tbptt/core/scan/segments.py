"""torch's own layers, cuDNN on CUDA, over segments of steps in which no episode starts.

The window is cut at every step where any environment starts an episode, so the cost depends on how
many such steps there are: a window without one is a single call. The host has to read which.
"""

import itertools

import torch
from torch import nn

from rsl_tbptt.core.hidden_state import HiddenState, clear


def scan(
    rnn: nn.RNNBase, inputs: torch.Tensor, state: HiddenState, episode_starts: torch.Tensor
) -> tuple[torch.Tensor, HiddenState]:
    """Run ``rnn`` segment by segment under autograd.

    Inputs (T, N, D), other arguments and result: see ``recurrent_scan``.
    Under autocast the state has autocast's dtype as well: torch's layers keep it so.
    """
    cut = episode_starts.any(dim=1).tolist()
    bounds = [0, *(t for t in range(1, len(cut)) if cut[t]), len(cut)]
    outputs = []
    for first, stop in itertools.pairwise(bounds):
        if cut[first]:
            state = clear(state, episode_starts[first])
        output, state = rnn(inputs[first:stop], state)
        outputs.append(output)
    return torch.cat(outputs), state

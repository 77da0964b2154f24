"""The reference that defines correct: torch's own layers, step by step, with the state cleared."""

import torch

from rsl_tbptt.core.hidden_state import HiddenState, clear, detach
from rsl_tbptt.core.scan.cells import RecurrentLayers


def scan(
    rnn: RecurrentLayers,
    inputs: torch.Tensor,
    state: HiddenState,
    episode_starts: torch.Tensor,
    cuts: tuple[int, ...],
) -> tuple[torch.Tensor, HiddenState]:
    """Run ``rnn`` step by step under autograd; inputs (T, N, D), all as in ``recurrent_scan``."""
    outputs = []
    for t, (step_input, starts) in enumerate(zip(inputs, episode_starts, strict=True)):
        if t in cuts:
            state = detach(state)
        output, state = rnn(step_input.unsqueeze(0), clear(state, starts))
        outputs.append(output)
    return torch.cat(outputs), state

"""Generalised advantage estimation that never reaches over the end of an episode."""

import torch


def generalized_advantages(
    rewards: torch.Tensor,
    values: torch.Tensor,
    last_values: torch.Tensor,
    dones: torch.Tensor,
    gamma: float,
    lam: float,
) -> torch.Tensor:
    """Return the advantages of a rollout.

    Where an episode ends with step t, nothing after t enters the advantage of t or of any step
    before it; what the episode is worth beyond its end has to be in ``rewards`` already.

    Args:
        rewards: Rewards of steps 0 to T-1. Shape: (T, N).
        values: Value estimates before these steps. Shape: (T, N).
        last_values: Value estimates after step T-1. Shape: (N,).
        dones: Whether the episode ended with step t. Shape: (T, N), bool.
        gamma: Discount factor.
        lam: Weight of longer estimates: 0 is one step, 1 is the whole return.

    Returns:
        Advantages. Shape: (T, N).

    References:
        Schulman et al. (2016), "High-dimensional continuous control using generalized advantage
        estimation", equation 16.
    """
    next_values = torch.cat((values[1:], last_values.unsqueeze(0)))
    advantages = rewards + gamma * next_values.masked_fill(dones, 0.0) - values
    # Two small operations per step. Doubling, log2(T) operations on the whole rollout, is slower on
    # CPU from some hundred environments on.
    steps, ended = advantages.unbind(), dones.unbind()
    for t in reversed(range(len(steps) - 1)):
        steps[t].add_(steps[t + 1].masked_fill(ended[t], 0.0), alpha=gamma * lam)
    return advantages

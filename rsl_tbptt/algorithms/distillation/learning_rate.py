"""A learning rate that falls over the updates."""

from __future__ import annotations

import torch

LAST_SHARE = 0.03
"""Of the learning rate at the end: a training that is longer than was said goes on learning."""


def scheduled_rate(rate: float, num_updates: int, last_update: int) -> float:
    """Return the learning rate of an update.

    Args:
        rate: That of the first update.
        num_updates: The updates made so far.
        last_update: The number of updates over which it falls linearly, as if to 0.
    """
    return rate * max(LAST_SHARE, 1.0 - num_updates / last_update)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> float:
    """Let an optimiser, which auxiliary heads follow, step at a learning rate; return that."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    return rate

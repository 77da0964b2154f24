"""A learning rate that falls over the updates."""

from __future__ import annotations

LAST_SHARE = 0.03
"""Of the learning rate at the end: a training that is longer than was said goes on learning."""


def scheduled_rate(rate: float, num_updates: int, last_update: int) -> float:
    """Return the learning rate of an update.

    It follows from the number of updates, which checkpoints hold and which skips those that were
    undone. torch's LinearLR counts on its own, and would have to be saved and held in step.

    Args:
        rate: That of the first update.
        num_updates: The updates made so far.
        last_update: The number of updates over which it falls linearly, as if to 0.
    """
    return rate * max(LAST_SHARE, 1.0 - num_updates / last_update)

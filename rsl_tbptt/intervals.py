"""Means with confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

CONFIDENCE = 0.95


def confidence_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the mean of independent values.

    Student's t interval: with 100 values or more the mean is close enough to normal, however the
    values are distributed.

    Args:
        values: At least two.

    Returns:
        Lower and upper end.

    Raises:
        ValueError: If there are fewer than two values.
    """
    if len(values) < 2:
        raise ValueError(f"values has {len(values)} entries, expected at least 2.")
    mean = float(np.mean(values))
    error = float(np.std(values, ddof=1)) / np.sqrt(len(values))
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(values) - 1)) * error
    return mean - half, mean + half


def intervals_overlap(first: Sequence[float], second: Sequence[float]) -> bool:
    """Return whether two closed intervals share a point."""
    return first[0] <= second[1] and second[0] <= first[1]

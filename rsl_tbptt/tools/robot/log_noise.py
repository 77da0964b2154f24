"""Tell faults of a program on a robot from noise.

All functions take the values that a robot's program logged and those that a program computes from
the robot's sensors, which may have been read again for the log. Shapes: T steps, D numbers.
"""

import math

import numpy as np

EXPLAINS = 0.5
"""A fault is reported only if it reduces the differences that it concerns below this share."""
EVIDENCE = 20.0
"""Least log-likelihood ratio of a fault: below it, a few steps of noise could be the cause, as
hundreds of faults are tried."""
SPIKES = 0.02
"""Share of the steps at each end of a number's range that cannot decide about a fault."""


def is_more_than_noise(
    logged: np.ndarray,
    expected: np.ndarray,
    again: np.ndarray,
    tolerance: float,
    *,
    is_white: bool,
) -> np.ndarray:
    """Return which numbers differ by more than noise does, shape (D,), bool.

    Noise is not much larger than what changes in a step. White noise is about zero, too, and as
    often towards zero as away from it. Medians keep a few steps from deciding.

    Args:
        logged: Shape: (T, D).
        expected: Shape: (T, D).
        again: What the program computes if its sensors differ by what changes in a step.
            Shape: (T, D).
        tolerance: Differences up to this are rounding.
        is_white: Whether the noise of a step does not reach later steps through a memory.
    """
    difference, steps = logged - expected, np.diff(logged, axis=0, prepend=logged[:1])
    noise = np.maximum(size(steps), size(again - expected))
    is_larger = size(difference) > (2.0 if is_white else 3.0) * noise + tolerance
    if not is_white:
        return is_larger
    scatter, drift = size(_centred(difference)), np.abs(np.median(steps, axis=0))
    # A reading a moment later differs by the drift of an angle that grows all the time.
    is_shifted = np.abs(np.median(difference, axis=0)) > 2.0 * scatter + drift + tolerance
    grows = (_centred(difference) * _centred(expected) > 0).mean(axis=0)
    shrinks = (_centred(difference) * _centred(logged) < 0).mean(axis=0)
    is_scaled = np.maximum(grows, shrinks) > 0.5 + max(0.25, 2.5 / len(logged) ** 0.5)
    is_scaled &= scatter > 0.1 * size(_centred(logged)) + tolerance
    return is_larger | is_shifted | is_scaled


def size(values: np.ndarray) -> np.ndarray:
    """Return the median of the absolute values over time, (D,)."""
    return np.median(np.abs(values), axis=0)


def _centred(values: np.ndarray) -> np.ndarray:
    return values - np.median(values, axis=0)


def gain(logged: np.ndarray, one: np.ndarray, other: np.ndarray, tolerance: float) -> float:
    """Return how much better ``other`` fits than ``one``, as a log-likelihood, or 0 if unclear.

    Each number is compared at the steps where the two differ most: a memory that is not cleared
    shows only after the start of an episode.

    Args:
        logged: Shape: (T, D).
        one: What a program computes. Shape: (T, D).
        other: What another one computes. Shape: (T, D).
        tolerance: Differences up to this are rounding.
    """
    changed = np.abs(other - one).max(axis=0) > tolerance
    if not changed.any():
        return 0.0
    logged, one, other = (each[:, changed] for each in (logged, one, other))
    between = np.abs(other - one)
    most = between >= 0.5 * between.max(axis=0)
    gains = _misfit(logged, one, most, tolerance) - _misfit(logged, other, most, tolerance)
    if gains.mean() < -math.log(EXPLAINS) or (gains * most.sum(axis=0)).sum() < EVIDENCE:
        return 0.0
    at_all = np.ones_like(most)
    gains = _misfit(logged, one, at_all, tolerance) - _misfit(logged, other, at_all, tolerance)
    return float(gains.sum())


def _misfit(
    logged: np.ndarray, expected: np.ndarray, steps: np.ndarray, tolerance: float
) -> np.ndarray:
    """Return the logarithm of the differences' share of both readings' size, (D,).

    If only the logged reading's size counted, a program that makes the noise of the other one
    small would fit better than the right one.
    """
    squares = (np.square(logged - expected), np.square(logged) + np.square(expected))
    error, total = (np.sqrt(each.mean(axis=0, where=steps)) for each in squares)
    rounding = 0.01 * tolerance + 1e-12  # an explanation leaves far less than the tolerance
    return np.log((error + rounding) / (total + rounding))


def without_spikes(values: np.ndarray) -> np.ndarray:
    """Limit each number to the range that it has at nearly all steps."""
    outside = int(SPIKES * len(values))
    lowest, highest = np.sort(values, axis=0)[[outside, -1 - outside]]
    return np.clip(values, lowest, highest)

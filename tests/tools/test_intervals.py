"""Confidence intervals, against values worked by hand and against what they promise."""

import numpy as np
import pytest

from rsl_tbptt.intervals import confidence_interval, intervals_overlap


def test_interval_worked_by_hand():
    # mean 3, standard error sqrt(2.5 / 5), t(0.975; 4 degrees of freedom) = 2.7764
    low, high = confidence_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert low == pytest.approx(3 - 2.7764 * 0.70711, abs=1e-3)
    assert high == pytest.approx(3 + 2.7764 * 0.70711, abs=1e-3)


def test_equal_values_have_no_width():
    assert confidence_interval([2.0] * 100) == (2.0, 2.0)


def test_interval_covers_the_true_mean_as_often_as_it_says():
    samples = np.random.default_rng(0).exponential(size=(2000, 100))
    covered = [low <= 1.0 <= high for low, high in map(confidence_interval, samples)]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.025)  # skewed data lose about 1 %


def test_one_value_has_no_interval():
    with pytest.raises(ValueError, match="values has 1 entries, expected at least 2"):
        confidence_interval([1.0])


@pytest.mark.parametrize(
    ("first", "second", "overlap"),
    [
        ((0, 1), (2, 3), False),
        ((2, 3), (0, 1), False),
        ((0, 2), (1, 3), True),
        ((0, 3), (1, 2), True),
        ((0, 1), (1, 2), True),
        ((1, 2), (0, 1), True),
    ],
)
def test_overlap(first, second, overlap):
    assert intervals_overlap(first, second) is overlap

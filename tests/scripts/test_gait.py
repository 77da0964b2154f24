"""The measure of a gait's evenness, from joint angles of many robots."""

import pytest
import torch

from scripts.gait import differences

NAMES = ["rear_right_hip", "front_left_hip", "front_right_hip", "rear_left_hip"]


def test_a_gait_that_is_even_half_a_cycle_apart_has_no_asymmetry():
    phase = torch.linspace(0.0, 2 * torch.pi, 101)[:-1]
    left, right = 0.7 + 0.2 * phase.sin(), 0.7 - 0.2 * phase.sin()
    angles = torch.stack((right, left, right, left), dim=1)
    assert differences(angles, NAMES) == pytest.approx((0.0, 0.0), abs=1e-4)


def test_other_angles_and_other_deviations_count_by_pair():
    phase = torch.linspace(0.0, 2 * torch.pi, 101)[:-1]
    wave = phase.sin()
    angles = torch.stack((wave, 0.3 + wave, wave, 3 * wave), dim=1)
    apart, unlike = differences(angles, NAMES)
    assert apart == pytest.approx((0.3**2 / 2) ** 0.5, rel=1e-4)
    assert unlike == pytest.approx(50.0, rel=1e-4)  # 0 % in front, 100 % in the rear

"""The measure of a gait's evenness, from joint angles of many robots."""

import pytest
import torch

from scripts.gait import differences, summary
from scripts.pipeline.sweep import Sweep, Variant

NAMES = ["rear_right_hip", "front_left_hip", "front_right_hip", "rear_left_hip"]


def test_a_gait_that_is_even_half_a_cycle_apart_has_no_asymmetry():
    phase = torch.linspace(0.0, 2 * torch.pi, 101)[:-1]
    left, right = 0.7 + 0.2 * phase.sin(), 0.7 - 0.2 * phase.sin()
    angles = torch.stack((right, left, right, left), dim=1)
    assert differences(angles, NAMES) == pytest.approx((0.0, 0.0), abs=1e-4)


def test_the_summary_pairs_a_variant_with_its_model_by_seed():
    policies = {"scratch": Variant(), "mirrored": Variant(like="scratch")}
    sweep = Sweep(experiment="", seeds=[1, 2], policies=policies)
    rows = [["scratch", 1, 2.0, 0.02, 5.0], ["scratch", 2, None, 0.04, 9.0]]
    rows += [["mirrored", 1, 1.0, 0.01, 3.0], ["mirrored", 2, 1.5, 0.03, 7.0]]
    table = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in summary(rows, sweep).splitlines()[2:]
    ]
    assert table == [
        ["scratch", "-", "0.0300 (-0.0971 to 0.1571)", "7.0 (-18.4 to 32.4)"],
        ["mirrored", "1.25 (-1.93 to 4.43)", "0.0200 (-0.1071 to 0.1471)", "5.0 (-20.4 to 30.4)"],
        ["mirrored less scratch", "-", "-0.0100 (-0.0100 to -0.0100)", "-2.0 (-2.0 to -2.0)"],
    ]


def test_other_angles_and_other_deviations_count_by_pair():
    phase = torch.linspace(0.0, 2 * torch.pi, 101)[:-1]
    wave = phase.sin()
    angles = torch.stack((wave, 0.3 + wave, wave, 3 * wave), dim=1)
    apart, unlike = differences(angles, NAMES)
    assert apart == pytest.approx((0.3**2 / 2) ** 0.5, rel=1e-4)
    assert unlike == pytest.approx(50.0, rel=1e-4)  # 0 % in front, 100 % in the rear

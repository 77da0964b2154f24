"""PPO's losses, worked by hand."""

import pytest
import torch

from rsl_tbptt.core import losses

RATIOS = torch.tensor([0.5, 0.9, 1.0, 1.25, 2.0, 10.0])


def losses_of_ratios(advantage, clip):
    old = torch.full_like(RATIOS, -1.5)
    advantages = torch.full_like(RATIOS, advantage)
    return losses.clipped_surrogate(RATIOS.log() + old, old, advantages, clip).tolist()


def test_the_clip_bounds_each_side():
    gains = [-loss for loss in losses_of_ratios(1.0, 0.2)]
    assert gains == pytest.approx([0.5, 0.9, 1.0, 1.2, 1.2, 1.2])
    pains = losses_of_ratios(-2.0, 0.2)
    assert pains == pytest.approx([1.6, 1.8, 2.0, 2.5, 4.0, 20.0])


def test_the_value_error_is_the_larger_of_clipped_and_unclipped():
    values, returns = torch.tensor([1.0, 1.0, 0.1]), torch.tensor([1.0, -1.0, 1.0])
    old = torch.zeros(3)
    assert losses.value_error(values, returns, old, None).tolist() == pytest.approx([0, 4, 0.81])
    clipped = losses.value_error(values, returns, old, 0.2)
    assert clipped.tolist() == pytest.approx([0.8**2, 4, 0.81])

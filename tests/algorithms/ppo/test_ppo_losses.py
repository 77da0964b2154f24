"""PPO's policy losses: worked by hand, penalised by the KL divergence, and options that clash."""

import math
from typing import Any

import pytest
import torch
from support.helpers import make_ppo, roll_out, train

from rsl_tbptt.algorithms import TbpttPPO
from rsl_tbptt.core import losses

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")

PENALTY: dict[str, Any] = {"policy_loss": "kl_penalty", "schedule": "fixed"}
RATIOS = torch.tensor([0.5, 0.9, 1.0, 1.25, 2.0, 10.0])


def losses_of_ratios(advantage, *options):
    old = torch.full_like(RATIOS, -1.5)
    advantages = torch.full_like(RATIOS, advantage)
    return losses.clipped_surrogate(RATIOS.log() + old, old, advantages, *options).tolist()


def test_the_clip_bounds_each_side():
    gains = [-loss for loss in losses_of_ratios(1.0, 0.2, 0.3)]
    assert gains == pytest.approx([0.5, 0.9, 1.0, 1.25, 1.3, 1.3])
    pains = losses_of_ratios(-2.0, 0.2, 0.3)
    assert pains == pytest.approx([1.6, 1.8, 2.0, 2.5, 4.0, 20.0])


def test_the_plain_surrogate_is_not_clipped():
    log_prob, old = torch.tensor([0.0, math.log(3.0)]), torch.tensor([0.0, math.log(2.0)])
    loss = losses.surrogate(log_prob, old, torch.tensor([-1.0, 2.0]))
    assert loss.tolist() == pytest.approx([1, -2 * 1.5])


def test_the_value_error_is_the_larger_of_clipped_and_unclipped():
    values, returns = torch.tensor([1.0, 1.0, 0.1]), torch.tensor([1.0, -1.0, 1.0])
    old = torch.zeros(3)
    assert losses.value_error(values, returns, old, None).tolist() == pytest.approx([0, 4, 0.81])
    clipped = losses.value_error(values, returns, old, 0.2)
    assert clipped.tolist() == pytest.approx([0.8**2, 4, 0.81])


def rollout_with_kl(algorithm, kl):
    """Roll out, then shift the stored mean of the acting policy to a KL divergence of ``kl``."""
    roll_out(algorithm, 0)
    mean, std = algorithm.storage.distribution_params
    num_actions = mean.shape[-1]
    with torch.inference_mode():
        mean.add_(std * math.sqrt(2 * kl / num_actions))


@pytest.mark.parametrize(
    ("kl", "factor"), [(0.0066, 0.5), (0.0067, 1.0), (0.0149, 1.0), (0.0151, 2.0)]
)
def test_the_coefficient_follows_the_desired_kl(kl, factor):
    algorithm = make_ppo(
        TbpttPPO, 6, 4, **PENALTY, kl_penalty_coef=0.8, desired_kl=0.01, learning_rate=1e-12
    )
    for expected in (0.8, 0.8 * factor):
        rollout_with_kl(algorithm, kl)
        assert algorithm.update()["kl_coef"] == pytest.approx(expected)
    assert algorithm.learning_rate == 1e-12


def test_the_coefficient_follows_the_kl_of_the_last_epoch():
    algorithm = make_ppo(
        TbpttPPO, 6, 4, **PENALTY, desired_kl=1e-4, num_mini_batches=1, num_learning_epochs=3
    )
    train(algorithm, 0)  # its first epoch had the policy that acted
    assert algorithm.save()["rsl_tbptt"]["kl_penalty"]["kl_coef"] == 2.0

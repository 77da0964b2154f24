"""Weights of the samples of a mini-batch in PPO's loss, equal or by episode."""

import pytest
import torch
from support.helpers import make_ppo, numbered, roll_out
from support.inside import add_gradient
from support.tolerances import SAME_FLOAT32

from rsl_tbptt.algorithms import TbpttPPO
from rsl_tbptt.core import losses

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")


def weights_of_samples(algorithm, monkeypatch):
    """Return the weight of each sample, (T, N), for each mini-batch of an epoch."""
    storage, seen = algorithm.storage, {"clipped_surrogate": [], "value_error": []}
    index = numbered(*storage.rewards.shape[:2])
    for recorded in (storage.advantages, storage.values):  # the third argument of either loss
        recorded.copy_(index.unsqueeze(-1))

    def spy(name, function):
        def recording(*arguments):
            loss, numbers = function(*arguments), arguments[2].long().flatten()
            loss.register_hook(lambda gradient: seen[name].append((numbers, gradient.flatten())))
            return loss

        return recording

    for name in seen:
        monkeypatch.setattr(losses, name, spy(name, getattr(losses, name)))
    by_mini_batch = []
    for mini_batch in algorithm.batches.draw():
        add_gradient(algorithm, mini_batch)
        actor, critic = torch.zeros(index.numel()), torch.zeros(index.numel())
        for weights, calls in zip((actor, critic), seen.values(), strict=True):
            for numbers, gradient in calls:
                weights[numbers] += gradient
            calls.clear()
        assert torch.equal(actor, critic)
        by_mini_batch.append(actor.view(index.shape))
    return by_mini_batch


def episodes_of_one_three_and_four_steps(**options):
    algorithm = make_ppo(
        TbpttPPO, 4, 2, loss_reduction="episode_mean", shuffle_envs=False, **options
    )
    roll_out(algorithm, 0, done_rate=0.0)
    algorithm.storage.dones[0, 0] = 1
    algorithm.storage.dones[3, 1] = 1  # ends with the rollout: no extra piece
    return algorithm


def test_a_window_has_its_share_of_an_episodes_weight(monkeypatch):
    algorithm = episodes_of_one_three_and_four_steps(
        num_mini_batches=2, minibatch_unit="window", gradient_length=2
    )
    first, second = weights_of_samples(algorithm, monkeypatch)
    early = torch.tensor([[1, 1 / 3, 0, 0], [1 / 4, 1 / 4, 0, 0]])
    late = torch.tensor([[0, 0, 1 / 3, 1 / 3], [0, 0, 1 / 4, 1 / 4]])
    torch.testing.assert_close(first.T, early / early.sum(), **SAME_FLOAT32)
    torch.testing.assert_close(second.T, late / late.sum(), **SAME_FLOAT32)

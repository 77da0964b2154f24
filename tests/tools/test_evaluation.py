"""Evaluation: each environment counts for exactly its first episode."""

from typing import Any, cast

import pytest
import torch
from tensordict import TensorDict

from rsl_tbptt.tools.simulate.evaluate import (
    EpisodeFacts,
    run_first_episodes,
    summarise,
)

LENGTHS = [2, 5, 3]


class FakeEnv:
    """Three environments whose first episodes last 2, 5 and 3 steps; later ones last two.

    The reward of a first episode's step is 1, of any later step 1000.
    """

    num_envs = 3
    device = "cpu"
    max_episode_length = 5

    def __init__(self):
        self.steps = 0
        self.actions = []

    def step(self, actions):
        self.steps += 1
        self.actions.append(actions.clone())
        lengths = torch.tensor(LENGTHS)
        rewards = torch.where(self.steps <= lengths, 1.0, 1000.0)
        since = self.steps - lengths
        dones = ((since >= 0) & (since % 2 == 0)).long()
        return self.obs(), rewards, dones, {}

    def obs(self):
        return TensorDict({"policy": torch.zeros(3, 1)}, batch_size=[3])


class CountingPolicy:
    """Its action is the number of steps since its memory was cleared."""

    def __init__(self):
        self.count = torch.full((3,), 99.0)

    def reset(self, dones=None):
        cleared = torch.ones(3, dtype=torch.bool) if dones is None else dones.bool()
        self.count = torch.where(cleared, 0.0, self.count)

    def __call__(self, _obs):
        action = self.count.clone()
        self.count += 1
        return action


@pytest.fixture
def episodes():
    env, policy = FakeEnv(), cast("Any", CountingPolicy())
    return env, run_first_episodes(env, policy, env.obs(), max_steps=9)


def test_only_first_episodes_count(episodes):
    _, (returns, lengths, _) = episodes
    assert lengths.tolist() == LENGTHS
    assert returns.tolist() == [2.0, 5.0, 3.0]


def test_memory_is_cleared_at_the_start_and_where_an_episode_ends(episodes):
    env, _ = episodes
    assert torch.stack(env.actions).tolist() == [
        [0, 0, 0],
        [1, 1, 1],
        [0, 2, 2],
        [1, 3, 0],
        [0, 4, 1],
    ]


def facts_of(env):
    facts = EpisodeFacts(env)
    policy = cast("Any", CountingPolicy())
    returns, *_ = run_first_episodes(env, policy, env.obs(), max_steps=9, facts=facts)
    return facts.summary(3), returns


@pytest.mark.parametrize("told", [{}, {"time_outs": [0, 1, 0]}, {"success": [1, 1, 0]}])
def test_environments_without_managers_provide_ends_in_extras(told):
    env = FakeEnv()
    step = env.step
    env.step = lambda actions: (*step(actions)[:3], {k: torch.tensor(v) for k, v in told.items()})
    found, _ = facts_of(env)
    expected: Any = {}
    if "time_outs" in told:
        shares = {"time_out": pytest.approx(1 / 3), "termination": pytest.approx(2 / 3)}
        expected = {"ended_by": shares, "timed_out": pytest.approx(1 / 3)}
    if "success" in told:
        expected = {"success_rate": pytest.approx(2 / 3)}
    assert found == expected


def test_summary():
    summary = summarise(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4, 5, 6]), 0.5)
    assert summary["episodes"] == 3
    assert summary["mean_return"] == 2.0
    assert summary["mean_length"] == 5.0
    # t(0.975; 2 degrees of freedom) = 4.3027, standard error 1 / sqrt(3)
    half = 4.3027 * 0.57735
    assert summary["confidence_interval"] == pytest.approx([2 - half, 2 + half], abs=1e-3)

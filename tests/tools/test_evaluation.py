"""Evaluation: each environment counts for exactly its first episode."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from tensordict import TensorDict

from rsl_tbptt.algorithms.heads import WatchedHeads
from rsl_tbptt.tools import evaluate
from rsl_tbptt.tools.evaluate import run_first_episodes, summarise, watched

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


def test_a_policy_without_heads_acts_itself_whatever_it_is_made_of():
    start: Any = SimpleNamespace(policy=CountingPolicy(), auxiliary={})  # no latent to watch
    with watched(start) as acting:
        assert acting is start.policy


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


@pytest.mark.parametrize(("max_steps", "taken", "left"), [(9, 5, 0), (5, 5, 0), (4, 4, 1)])
def test_each_step_is_watched_before_it_is_taken(max_steps, taken, left):
    env, seen = FakeEnv(), []
    _, lengths, unfinished = run_first_episodes(
        env,
        cast("Any", CountingPolicy()),
        env.obs(),
        watch=lambda step, _obs: seen.append((step, env.steps)),
        max_steps=max_steps,
    )
    assert seen == [(step, step) for step in range(taken)]
    assert lengths.tolist() == [2, taken, 3]
    assert unfinished == left


class BlindHeads(WatchedHeads):
    """Heads whose target is NaN."""

    def __init__(self):
        self.reset = lambda dones=None: None

    def __call__(self, obs):
        return torch.zeros(3, 1)

    def summary(self):
        return {"velocity": {"rmse": float("nan"), "rmse_by_column": [float("nan")]}}


def test_an_error_of_a_head_that_is_not_finite_is_an_error_of_the_evaluation(monkeypatch):
    env = FakeEnv()
    platform = SimpleNamespace(step_seconds=lambda _: None)
    start = SimpleNamespace(env=env, obs=env.obs(), platform=platform)
    monkeypatch.setattr(evaluate, "started", lambda *_, **__: nullcontext(start))
    monkeypatch.setattr(evaluate, "watched", lambda _: nullcontext(BlindHeads()))
    with pytest.raises(ValueError, match="head 'velocity' is nan, expected a finite number"):
        evaluate.evaluate(Path("model_0.pt"))


def test_summary():
    summary = summarise(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4, 5, 6]), 0.5)
    assert summary["episodes"] == 3
    assert summary["mean_return"] == 2.0
    assert summary["mean_length"] == 5.0
    # t(0.975; 2 degrees of freedom) = 4.3027, standard error 1 / sqrt(3)
    half = 4.3027 * 0.57735
    assert summary["confidence_interval"] == pytest.approx([2 - half, 2 + half], abs=1e-3)


def test_equal_returns_have_an_interval_without_width():
    summary = summarise(torch.full((100,), 2.0), torch.full((100,), 4), None)
    assert summary["confidence_interval"] == [2.0, 2.0]

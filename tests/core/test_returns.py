"""Generalised advantages equal the definition and do not cross episodes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.tolerances import EXACT_FLOAT64

from rsl_tbptt.core.rollout import generalized_advantages

GAMMA, LAM = 0.9, 0.8


def make_case(num_steps, num_envs, done_rate, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (num_steps, num_envs)
    rewards = torch.randn(shape, dtype=torch.float64, generator=generator)
    values = torch.randn(shape, dtype=torch.float64, generator=generator)
    last_values = torch.randn(num_envs, dtype=torch.float64, generator=generator)
    return rewards, values, last_values, torch.rand(shape, generator=generator) < done_rate


def advantage_by_definition(rewards, values, last_values, dones, start, env):
    """Sum (gamma * lam)^l * delta_{start + l} up to the end of the episode (equation 16)."""
    total, weight = 0.0, 1.0
    for t in range(start, len(rewards)):
        following = last_values[env] if t + 1 == len(rewards) else values[t + 1, env]
        delta = rewards[t, env] - values[t, env]
        if not dones[t, env]:
            delta = delta + GAMMA * following
        total = total + weight * delta
        if dones[t, env]:
            break
        weight *= GAMMA * LAM
    return total


@given(
    num_steps=st.integers(1, 8),
    num_envs=st.integers(1, 3),
    done_rate=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 20),
)
def test_equals_the_definition(num_steps, num_envs, done_rate, seed):
    case = make_case(num_steps, num_envs, done_rate, seed)
    advantages = generalized_advantages(*case, GAMMA, LAM)
    for t in range(num_steps):
        for env in range(num_envs):
            expected = advantage_by_definition(*case, t, env)
            torch.testing.assert_close(advantages[t, env], expected, **EXACT_FLOAT64)


@pytest.mark.parametrize("poison", [100.0, float("nan"), float("inf")])
def test_advantages_do_not_cross_the_end_of_an_episode(poison):
    rewards, values, last_values, dones = make_case(8, 2, 0.0)
    dones[3, 0] = True
    expected = generalized_advantages(rewards, values, last_values, dones, GAMMA, LAM)
    rewards[4, 0], values[4, 0] = poison, poison
    advantages = generalized_advantages(rewards, values, last_values, dones, GAMMA, LAM)
    assert torch.equal(advantages[:4], expected[:4])
    assert torch.equal(advantages[:, 1], expected[:, 1])
    assert not torch.equal(advantages[4, 0], expected[4, 0])

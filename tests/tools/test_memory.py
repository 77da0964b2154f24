"""How far back a policy looks: policies whose memory is known exactly."""

import math

import pytest
import torch
from tensordict import TensorDict

from rsl_tbptt.tools.simulate.memory import describe, length_of, measure

T, N = 160, 32


class HandMade:
    """A policy whose state a function updates: ``state, action = step(state, obs)``."""

    def __init__(self, units, step):
        self.units, self.step = units, step
        self.state = torch.zeros(N, units)

    def reset(self, dones=None):
        where = torch.ones(N, dtype=torch.bool) if dones is None else dones != 0
        self.state = self.state.masked_fill(where[:, None], 0.0)

    def __call__(self, obs):
        self.state, action = self.step(self.state, obs)
        return action


def delay_line(steps, group="a"):
    """Return a policy whose action is the observation of some steps ago."""

    def step(state, obs):
        state = torch.cat((obs[group].float().view(N, 1), state[:, :-1]), dim=1)
        return state, state[:, -1:]

    return HandMade(steps + 1, step)


def rollout(episode=T, **groups):
    """Return observations, standard normal in "a", and episodes of some length."""
    generator = torch.Generator().manual_seed(1)
    obs = {"a": torch.randn(T, N, 1, generator=generator), **groups}
    starts = (torch.arange(T) % episode == 0)[:, None].expand(T, N)
    return TensorDict(obs, batch_size=[T, N]), starts


@pytest.mark.parametrize("steps", [1, 24])
def test_a_delay_line_looks_back_its_length(steps):
    found = measure(delay_line(steps), *rollout())
    assert length_of(found) == steps
    assert max(value for lag, value in enumerate(found["a"]) if lag != steps) == 0.0
    spread = math.sqrt((T - steps) / T)  # the first actions are 0
    assert found["a"][steps] == pytest.approx(math.sqrt(2) / spread, rel=0.15)


@pytest.mark.parametrize("keep", [0.5, 0.9])
def test_the_influence_of_an_exponential_filter_decays_by_its_factor(keep):
    def step(state, obs):
        state = keep * state + (1 - keep) * obs["a"]
        return state, state

    found = measure(HandMade(1, step), *rollout())
    influence = torch.tensor(found["a"])
    assert influence[1:20] / influence[:19] == pytest.approx(torch.full((19,), keep), rel=0.05)
    # In variances: an observation adds (1 - keep)^2, and the action has (1 - keep) / (1 + keep).
    first = math.sqrt(2 * (1 - keep) * (1 + keep))
    assert influence[0].item() == pytest.approx(first, rel=0.15)
    # Lag 1 counts as 1, so the last lag with a share of 0.1 is 1 + ln 0.1 / ln keep.
    assert length_of(found) == pytest.approx(1 + math.log(0.1) / math.log(keep), abs=1)


def test_groups_are_measured_apart_and_episodes_end_what_is_observed():
    pixels = torch.randint(0, 255, (T, N, 1), dtype=torch.uint8)
    found = measure(delay_line(3, "pixels"), *rollout(episode=20, pixels=pixels))
    assert max(found["a"]) == 0.0
    assert length_of(found) == length_of({"pixels": found["pixels"]}) == 3
    assert len(found["a"]) <= 20


def test_the_text_has_a_row_by_lag_and_one_sentence():
    table, sentence = describe({"a": [1.0, 0.5, 0.0], "b": [0.0]}, 0.02).split("\n\n")
    assert table.splitlines() == [
        "  lag        a        b",
        "    0    1.000    0.000",
        "    1    0.500         ",
        "    2    0.000         ",
    ]
    assert sentence.startswith("The policy looks back 1 steps (0.02 s): ")
    unused = describe(measure(delay_line(0), *rollout()), None)
    assert "\n\nThe memory is not used: " in unused


def test_what_cannot_be_measured_is_refused():
    obs, starts = rollout()
    with pytest.raises(ValueError, match=r"steps is 39, expected at least 40"):
        measure(delay_line(1), obs[:39], starts[:39])
    with pytest.raises(ValueError, match=r"num_envs is 1, expected at least 8"):
        measure(delay_line(1), obs[:, :1], starts[:, :1])
    broken = HandMade(1, lambda state, obs: (state, obs["a"] / 0.0))
    with pytest.raises(ValueError, match=r"An action is NaN or inf"):
        measure(broken, obs, starts)

"""What the memory holds: policies whose memory is known exactly, and the command."""

import math
import re
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from rsl_tbptt.tools.simulate.memory import measure
from rsl_tbptt.tools.simulate.memory_findings import judge_memory

T, N = 160, 32


class HandMade:
    """A policy whose state a function updates: ``state, action = step(state, obs)``."""

    def __init__(self, units, step, clears=True):
        self.units, self.step, self.clears = units, step, clears
        self.state = torch.zeros(N, units)

    def reset(self, dones=None):
        where = torch.ones(N, dtype=torch.bool) if dones is None else dones != 0
        if self.clears:
            self.state = self.state.masked_fill(where[:, None], 0.0)

    def __call__(self, obs):
        self.state, action = self.step(self.state, obs)
        return action

    def get_hidden_state(self):
        return self.state[None]


def delay_line(steps, group="a", **options):
    """Return a policy whose action is the observation of some steps ago."""

    def step(state, obs):
        state = torch.cat((obs[group], state[:, :-1]), dim=1)
        return state, state[:, -1:]

    return HandMade(steps + 1, step, **options)


def exponential_filter(keep):
    def step(state, obs):
        state = keep * state + (1 - keep) * obs["a"]
        return state, state

    return HandMade(1, step)


def rollout(episode=T, **groups):
    """Return observations, standard normal in "a", and episodes of some length."""
    generator = torch.Generator().manual_seed(1)
    obs = {"a": torch.randn(T, N, 1, generator=generator), **groups}
    starts = (torch.arange(T) % episode == 0)[:, None].expand(T, N)
    return TensorDict(obs, batch_size=[T, N]), starts


def measured(policy, *recorded, gradient_length=None):
    found = measure(policy, *(recorded or rollout()))
    known = {"checkpoint": "model_1.pt", "step_seconds": None, "gradient_length": gradient_length}
    return {**found, **known}


@pytest.mark.parametrize("steps", [1, 24])
def test_a_delay_line_looks_back_its_length(steps):
    found = measured(delay_line(steps))
    assert found["length"] == found["groups"]["a"]["length"] == steps
    others = [value for lag, value in enumerate(found["influence"]) if lag != steps]
    assert max(others) == 0.0
    spread = math.sqrt((T - steps) / T)  # the first actions are 0
    assert found["influence"][steps] == pytest.approx(math.sqrt(2) / spread, rel=0.15)
    assert found["groups"]["a"]["outlier"]["steps"] == steps
    assert found["groups"]["a"]["frozen"]["steps"] == steps
    assert found["missed_reset"]["steps"] == steps
    assert found["after_reset"] == 0.0
    assert judge_memory(found) == (f"model_1.pt: the policy looks back {steps} steps", [])


@pytest.mark.parametrize("keep", [0.5, 0.9])
def test_the_influence_of_an_exponential_filter_decays_by_its_factor(keep):
    found = measured(exponential_filter(keep))
    influence = torch.tensor(found["influence"])
    assert influence[1:20] / influence[:19] == pytest.approx(torch.full((19,), keep), rel=0.05)
    # In variances: an observation adds (1 - keep)^2, and the action has (1 - keep) / (1 + keep).
    first = math.sqrt(2 * (1 - keep) * (1 + keep))
    assert influence[0].item() == pytest.approx(first, rel=0.15)
    # Lag 1 counts as 1, so the last lag with a share of 0.1 is 1 + ln 0.1 / ln keep.
    assert found["length"] == pytest.approx(1 + math.log(0.1) / math.log(keep), abs=1)


@pytest.mark.parametrize("seed", range(2))
def test_a_cue_that_is_shown_in_one_step_of_50_is_not_missed(seed):
    obs, starts = rollout(episode=50)
    cue = torch.where(starts[..., None], obs["a"].sign(), 0.0)
    found = measure(delay_line(16), TensorDict({"a": cue}, batch_size=[T, N]), starts, seed)
    assert found["length"] == 16


def test_groups_have_their_own_length():
    def step(state, obs):
        state = torch.cat((obs["a"], state[:, :2], obs["b"][:, :1], state[:, 3:8]), dim=1)
        return state, state[:, 2:3] + state[:, 8:9] + 0.001 * obs["ignored"]

    generator = torch.Generator().manual_seed(2)
    b, ignored = (torch.randn(T, N, 2, generator=generator) for _ in range(2))
    found = measured(HandMade(9, step), *rollout(b=b, ignored=ignored[..., :1]))
    lengths = {name: group["length"] for name, group in found["groups"].items()}
    assert lengths == {"a": 2, "b": 5, "ignored": 0}
    assert found["length"] == 5


def test_images_keep_their_type():
    generator = torch.Generator().manual_seed(3)
    pixels = torch.randint(0, 255, (T, N, 1, 2, 2), generator=generator, dtype=torch.uint8)

    def step(state, obs):
        assert obs["pixels"].dtype == torch.uint8
        state = torch.cat((obs["pixels"].float().mean((1, 2, 3))[:, None], state[:, :3]), dim=1)
        return state, state[:, -1:]

    found = measured(HandMade(4, step), *rollout(pixels=pixels))
    assert found["groups"]["pixels"]["length"] == 3


def test_a_policy_without_memory_is_a_result_and_no_error():
    policy: Any = HandMade(1, lambda state, obs: (state, obs["a"]))
    policy.get_hidden_state = lambda: None
    found = measured(policy)
    assert found["length"] == found["missed_reset"]["steps"] == found["units"] == 0
    assert judge_memory(found) == ("model_1.pt has no memory", [])


def test_a_memory_that_ignores_its_input_is_not_used():
    def count(state, obs):
        return state + 1.0, obs["a"] + 0.0 * state

    found = measured(HandMade(3, count), gradient_length=24)
    looked_at, (finding,) = judge_memory(found)
    assert found["length"] == 0
    assert looked_at == "model_1.pt"
    assert finding.startswith("The memory is not used")
    assert "an MLP would do" in finding


def test_a_gradient_that_is_much_longer_or_too_short_is_named():
    def judged(gradient_length):
        return judge_memory(measured(delay_line(7), gradient_length=gradient_length))

    looks_back = "model_1.pt: the policy looks back 7 steps, and gradients flow back"
    assert judged(24) == (f"{looks_back} 24: fewer would do", [])
    assert judged(8) == (f"{looks_back} 8", [])
    looked_at, (finding,) = judged(7)
    assert looked_at == f"{looks_back} 7"
    assert finding.startswith("gradient_length is 7, expected more than the 7 steps")
    assert "Try 14" in finding


def test_a_state_that_survives_a_reset_is_named():
    recorded = rollout(episode=20)
    assert judge_memory(measured(delay_line(3), *recorded))[1] == []
    found = measured(delay_line(3, clears=False), *recorded)
    assert found["length"] == 3
    _, (finding,) = judge_memory(found)
    assert finding.startswith("The state survives a reset")


def latch(state, obs):
    """Look back 3 steps, and never forget a huge observation of the episode."""
    line = torch.cat((obs["a"], state[:, :3]), dim=1)
    seen = torch.maximum(state[:, 4:], (obs["a"].abs() > 20).float())
    return torch.cat((line, seen), dim=1), line[:, -1:].clamp(-5, 5) + 2.0 * seen


def test_a_poison_that_never_leaves_is_named():
    found = measured(HandMade(5, latch))
    assert found["length"] == 3
    _, (finding,) = judge_memory(found)
    assert re.match(r"An outlier in 'a' stays in the actions for (\d+) of \1 observed", finding)


def holds_the_start(state, obs):
    """Look back 3 steps, and less strongly at the mean of an episode's first 5."""
    line = torch.cat((obs["a"], state[:, :3]), dim=1)
    step, total = state[:, 4:5], state[:, 5:]
    total = total + torch.where(step < 5, obs["a"], 0.0)
    return torch.cat((line, step + 1, total), dim=1), 3 * line[:, -1:] + 0.2 * total


@pytest.mark.parametrize("episode", [T, 50])
def test_a_strong_short_use_does_not_hide_what_an_episode_starts_with(episode):
    recorded = rollout(episode=episode)
    found = measured(HandMade(6, holds_the_start), *recorded, gradient_length=24)
    tail = found["tail"]["steps"]
    assert found["length"] == 3
    assert episode - 5 <= tail == found["tail"]["observed"]
    assert found["groups"]["a"]["start_steps"] > 1  # one of them moves the action too little
    # No fault and no shorter windows: the task may show a thing once, and what stays is that.
    assert found["groups"]["a"]["outlier"]["steps"] >= 30
    looked_at = f"model_1.pt: the policy looks back mostly 3 steps, a tail to at least {tail} steps"
    assert judge_memory(found) == (f"{looked_at}, and gradients flow back 24", [])


def test_a_group_that_is_held_excuses_no_other():
    def step(state, obs):
        held, action = holds_the_start(state[:, :6], obs)
        poison = torch.maximum(state[:, 6:], (obs["b"].abs() > 20).float())
        return torch.cat((held, poison), dim=1), action + 3.0 * poison

    b = torch.randn(T, N, 1, generator=torch.Generator().manual_seed(2))
    _, (finding,) = judge_memory(measured(HandMade(7, step), *rollout(b=b)))
    assert finding.startswith("An outlier in 'b' stays")


def test_lags_of_too_few_environments_are_not_measured():
    obs, starts = rollout(episode=20)
    starts = torch.where(torch.arange(N) < 7, torch.arange(T)[:, None] == 0, starts)
    found = measured(HandMade(6, holds_the_start), obs, starts)
    assert 15 <= found["tail"]["steps"] == found["tail"]["observed"] < 20


def test_measuring_builds_no_graphs():
    gain = torch.nn.Parameter(torch.ones(()))
    states = []

    def step(state, obs):
        states.append(gain * obs["a"])
        return states[-1], states[-1]

    measured(HandMade(1, step))
    assert not any(state.requires_grad for state in states)


def test_episodes_end_what_can_be_observed():
    """A memory of the whole episode is no poison, even if an outlier stays until its end."""
    found = measured(HandMade(5, latch), *rollout(episode=8))
    assert found["groups"]["a"]["outlier"]["observed"] <= 7
    assert judge_memory(found)[1] == []


def test_units_that_move_together_count_as_one():
    def step(state, obs):
        return torch.cat((obs["a"], -obs["a"], 0.01 * obs["b"], obs["b"]), dim=1), obs["a"]

    b = torch.randn(T, N, 1, generator=torch.Generator().manual_seed(4)) * math.sqrt(2)
    found = measured(HandMade(4, step), *rollout(b=b))
    assert (found["units"], found["moving"]) == (4, 3)
    assert found["effective"] == pytest.approx(2, rel=0.05)  # variances 2 and 2 along two axes


def test_what_cannot_be_measured_is_refused():
    obs, starts = rollout()
    with pytest.raises(ValueError, match=r"steps is 39, expected at least 40"):
        measure(delay_line(1), obs[:39], starts[:39])
    with pytest.raises(ValueError, match=r"num_envs is 1, expected at least 8"):
        measure(delay_line(1), obs[:, :1], starts[:, :1])
    broken: Any = HandMade(1, lambda state, obs: (state, obs["a"] / 0.0))
    with pytest.raises(ValueError, match=r"An action is NaN or inf"):
        measure(broken, obs, starts)

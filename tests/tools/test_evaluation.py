"""Evaluation: each environment counts for exactly its first episode."""

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from support.helpers import make_model, make_obs
from tensordict import TensorDict

from rsl_tbptt.tools.simulate.evaluate import EpisodeFacts, run_first_episodes, summarise, unrest

LENGTHS = [2, 5, 3]
WAVES = [(2.0, 1.0), (10.0, 0.5)]
"""Frequencies in Hz and amplitudes."""


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
    """Its action is the square of the number of steps since its memory was cleared."""

    def __init__(self):
        self.count = torch.full((3,), 99.0)

    def reset(self, dones=None):
        cleared = torch.ones(3, dtype=torch.bool) if dones is None else dones.bool()
        self.count = torch.where(cleared, 0.0, self.count)

    def __call__(self, _obs):
        action = self.count.square().unsqueeze(-1)
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
    assert torch.stack(env.actions).squeeze(-1).tolist() == [
        [0, 0, 0],
        [1, 1, 1],
        [0, 4, 4],
        [1, 9, 0],
        [0, 16, 1],
    ]


def test_a_model_in_training_keeps_its_memory():
    env, model = FakeEnv(), make_model("actor", "gru", 8, seed=1)
    env.obs = lambda: make_obs(3)
    model(make_obs(8))
    before = model.get_hidden_state()
    run_first_episodes(env, model, env.obs(), max_steps=9)
    assert model.get_hidden_state() is before


class Managers(FakeEnv):
    """The same environment with managers like Isaac Lab's: two rewards and two terminations.

    Episodes of the second environment end by time, those of others by a fall.
    """

    step_dt = 0.5

    def __init__(self):
        super().__init__()
        ends = torch.zeros(2, 3, dtype=torch.bool)
        self.termination_manager = SimpleNamespace(
            active_terms=["time", "fall"],
            get_term=lambda name: ends[["time", "fall"].index(name)],
            get_term_cfg=lambda name: SimpleNamespace(time_out=name == "time"),
        )
        self.reward_manager = SimpleNamespace(
            active_terms=["alive", "effort"], _step_reward=torch.zeros(3, 2)
        )
        self.ends = ends

    def step(self, actions):
        obs, rewards, dones, _ = super().step(actions)
        is_second = torch.tensor([False, True, False])
        self.ends[0], self.ends[1] = dones.bool() & is_second, dones.bool() & ~is_second
        self.reward_manager._step_reward[:, 0] = 2.0 * rewards + 2.0
        self.reward_manager._step_reward[:, 1] = -2.0
        later = self.steps > torch.tensor(LENGTHS)  # of no first episode
        self.reward_manager._step_reward[later] = torch.nan
        return obs, rewards, dones, {}


def facts_of(env):
    facts = EpisodeFacts(env)
    policy = cast("Any", CountingPolicy())
    returns, lengths, _ = run_first_episodes(env, policy, env.obs(), max_steps=9, facts=facts)
    return facts.summary(lengths, None), returns


def test_managers_provide_the_ends_and_reward_terms_of_first_episodes():
    found, returns = facts_of(Managers())
    assert found["ended_by"] == {"time": pytest.approx(1 / 3), "fall": pytest.approx(2 / 3)}
    assert found["timed_out"] == pytest.approx(1 / 3)
    terms = found["reward_terms"]  # 10 steps in all: 2 + 5 + 3
    assert terms == {"alive": pytest.approx(20 / 3), "effort": pytest.approx(-10 / 3)}
    assert sum(terms.values()) == pytest.approx(float(returns.mean()))


class Walking(FakeEnv):
    """Robots that are told to move by 1 m/s; environment i moves by (0, i) in steps that count.

    In the step that ends an episode and after it, velocities are those of another episode.
    """

    def __init__(self, data):
        super().__init__()
        self.term = SimpleNamespace(vel_command_b=torch.tensor([[1.0, 0.0, 9.0]] * 3))
        self.command_manager = SimpleNamespace(
            active_terms=["height", "twist"],
            get_term=lambda name: self.term if name == "twist" else SimpleNamespace(),
        )
        self.data = data

    def step(self, actions):
        result = super().step(actions)
        velocity = torch.tensor([[0.0, 0.0, 9.0], [0.0, 1.0, 9.0], [0.0, 2.0, 9.0]])
        velocity[self.steps >= torch.tensor(LENGTHS)] = torch.nan
        self.term.robot = SimpleNamespace(data=self.data(velocity))
        return result


@pytest.mark.parametrize(
    "data",
    [
        lambda velocity: SimpleNamespace(root_link_lin_vel_b=velocity),
        lambda velocity: SimpleNamespace(root_lin_vel_b=velocity),
        lambda velocity: SimpleNamespace(root_lin_vel_b=SimpleNamespace(torch=velocity)),
    ],
    ids=["mjlab", "isaaclab-2.3", "isaaclab-3.0"],
)
def test_the_velocity_error_is_that_of_the_steps_before_the_ends(data):
    found, _ = facts_of(Walking(data))
    errors = [1.0] * 1 + [2**0.5] * 4 + [5**0.5] * 2
    assert found["velocity_error"] == pytest.approx(sum(errors) / len(errors))


@pytest.mark.parametrize("told", [{}, {"time_outs": [[0], [1], [0]]}, {"success": [1, 1, 0]}])
def test_environments_without_managers_provide_ends_in_extras(told):
    env = FakeEnv()
    step = env.step
    env.step = lambda actions: (*step(actions)[:3], {k: torch.tensor(v) for k, v in told.items()})
    found, _ = facts_of(env)
    expected: Any = {"jitter": 4.0}  # the second difference of squares is 2
    if "time_outs" in told:
        shares = {"time_out": pytest.approx(1 / 3), "termination": pytest.approx(2 / 3)}
        expected |= {"ended_by": shares, "timed_out": pytest.approx(1 / 3)}
    if "success" in told:
        expected |= {"success_rate": pytest.approx(2 / 3)}
    assert found == expected


def test_environments_without_managers_provide_reward_terms_and_velocity_error_in_extras():
    env = FakeEnv()
    step = env.step

    def told(actions):
        later = env.steps >= torch.tensor(LENGTHS)  # of no first episode
        values = torch.where(later, torch.nan, torch.tensor([1.0, 2.0, 3.0]))
        return *step(actions)[:3], {"reward_terms": {"alive": values}, "velocity_error": values}

    env.step = told
    found, _ = facts_of(env)
    assert found["reward_terms"] == {"alive": pytest.approx((2 + 10 + 9) / 3)}
    assert found["velocity_error"] == pytest.approx((2 + 10 + 9) / 10)


def test_unrest_of_waves_is_that_of_their_formulas():
    seconds, lengths = 0.02, torch.tensor([100, 50])
    time = seconds * torch.arange(100.0)[:, None]
    slow, fast = (amplitude * torch.sin(2 * torch.pi * hz * time) for hz, amplitude in WAVES)
    actions = torch.stack((torch.cat((slow + 3, slow), 1), torch.cat((fast, 2 * fast), 1)), 1)
    actions[50:, 1] = torch.nan  # of a later episode
    found = unrest(actions, lengths, seconds)
    # A sine's second difference is it times 4 sin^2(w / 2), its mean square half its square.
    by_wave = [(a * 4 * math.sin(math.pi * hz * seconds) ** 2) ** 2 / 2 for hz, a in WAVES]
    expected = (98 * by_wave[0] + 48 * 2.5 * by_wave[1]) / 146
    assert found["jitter"] == pytest.approx(expected, rel=0.02)
    power = [100 * 2 * WAVES[0][1] ** 2, 50 * 5 * WAVES[1][1] ** 2]
    assert found["power_above_5_hz"] == pytest.approx(power[1] / sum(power), rel=1e-3)
    assert unrest(torch.ones(4, 2, 1), torch.tensor([4, 2]), seconds) == {"jitter": 0.0}
    assert unrest(actions[:2], torch.tensor([2, 2]), None) == {}


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

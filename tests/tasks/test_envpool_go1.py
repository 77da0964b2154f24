"""Go1 on CPU cores: what student and teacher see, and what is wrong with the robots."""

import re
from typing import Any

import pytest
import torch

pytest.importorskip("envpool", reason="EnvPool needs Python 3.11")

from rsl_tbptt.integrations.envpool import EnvPoolEnv
from rsl_tbptt_tasks.envpool.go1 import FAULTLESS, WEIGHTS, Go1Env

N, SENSORS = 6, 30


def plain_env(**options):
    """Return EnvPool's own environments with the task's weights."""
    task = "Go1JoystickFlatTerrain-v1"
    return EnvPoolEnv(task, N, 4, num_threads=1, **{**WEIGHTS, **options})


def go1(**options):
    return Go1Env("Flat", N, 4, num_threads=1, **options)


def actions_at(step):
    return 0.15 * torch.randn(N, 12, generator=torch.Generator().manual_seed(step))


def rollout(env, steps, change=lambda step, actions: actions) -> Any:
    """Return the observations before each step and after the last, all of first episodes."""
    seen = [env.get_observations()]
    for step in range(steps):
        obs, _, dones, _ = env.step(change(step, actions_at(step)))
        assert not dones.any()
        seen.append(obs)
    return torch.stack(seen)


def test_the_student_sees_the_sensors_its_action_and_the_command():
    seen, plain = rollout(go1(), 20), rollout(plain_env(), 20)
    sensors, last, command = seen["policy"].split((SENSORS, 12, 3), dim=-1)
    assert torch.equal(sensors, plain["state"][..., 3 : 3 + SENSORS])
    assert torch.equal(command, plain["state"][..., -3:])
    sent = torch.stack([torch.zeros(N, 12), *map(actions_at, range(20))]).clamp(-1.0, 1.0)
    before = torch.cat((torch.zeros(1, N, 12), sent[:-1]))
    assert torch.equal(last, sent)  # Playground's own is a step older
    expected = torch.cat((plain["privileged_state"], sent, before), dim=-1)
    assert torch.equal(seen["privileged"], expected)


def test_sensors_are_wrong_and_late_by_what_each_episode_drew():
    env = go1(joint_offset=0.05, gyro_bias=0.1, observation_delay=2)
    seen, plain = rollout(env, 20), rollout(plain_env(), 20)
    sensors, true = seen["policy"][..., :SENSORS], plain["state"][..., 3 : 3 + SENSORS]
    assert torch.equal(seen["policy"][..., -3:], plain["state"][..., -3:])
    late = [torch.cat((true[:1].expand(lag, -1, -1), true[: 21 - lag])) for lag in range(3)]
    errors = sensors - torch.stack(late)  # (lag, T, N, sensors)
    is_constant = (errors - errors[:, :1]).abs().amax(dim=(1, 3)) < 1e-6
    assert (is_constant.sum(0) == 1).all()  # one lag explains all of an episode
    assert is_constant.any(1).sum() > 1  # and not the same one everywhere
    error = errors[is_constant.int().argmax(0), 0, torch.arange(N)]
    gyro, gravity, angles, velocities = error.split((3, 3, 12, 12), dim=-1)
    assert 0.02 < angles.abs().max() <= 0.05 + 1e-6
    assert 0.04 < gyro.abs().max() <= 0.1 + 1e-6
    assert gravity.abs().max() == velocities.abs().max() == 0.0
    assert torch.equal(seen["privileged"][..., :123], plain["privileged_state"])


def test_an_end_draws_new_errors_and_clears_the_past():
    env = go1(joint_offset=0.05, observation_delay=2, history=2, max_episode_steps=4)
    plain = plain_env(max_episode_steps=4)
    errors = []
    for step in range(8):
        obs, _, dones, extras = env.step(actions_at(step))
        other, *_, other_extras = plain.step(actions_at(step))
        if dones.all():
            oldest, newest = obs["policy"].unflatten(1, (2, 45)).unbind(1)
            assert torch.equal(oldest, newest)  # nothing of the episode before
            assert (newest[:, SENSORS : SENSORS + 12] == 0.0).all()
            errors.append((newest - other["state"][:, 3:])[:, 6:18])
            last = extras["final_obs"]["policy"][:, -15:-3]
            assert torch.equal(last, actions_at(step).clamp(-1.0, 1.0))
            final = other_extras["final_obs"]["privileged_state"]
            assert torch.equal(extras["final_obs"]["privileged"][:, :123], final)
    assert len(errors) == 2
    assert (errors[0] - errors[1]).abs().max() > 0.01


def test_actions_arrive_late_weak_and_pushed_and_the_teacher_sees_it():
    env = go1(motor_gain=(0.8, 1.1), action_delay=1, push=0.3)
    seen = rollout(env, 30)["privileged"]
    gain, push, late = seen[..., -25:].split((12, 12, 1), dim=-1)
    assert ((gain >= 0.8) & (gain <= 1.1)).all()
    assert torch.equal(gain, gain[:1].expand_as(gain))
    assert late.unique().tolist() == [0.0, 1.0]
    assert (push != 0.0).any()

    def change(step, actions):
        last = actions_at(step - 1) if step else torch.zeros(N, 12)
        arrived = torch.where(late[0] > 0, last, actions).clamp(-1.0, 1.0)
        return arrived * gain[0] + push[step + 1]

    plain = rollout(plain_env(), 30, change)
    assert torch.allclose(seen[..., 48:123], plain["privileged_state"][..., 48:], atol=1e-4)


def test_pushes_do_not_depend_on_which_robots_have_fallen():
    drawn = []
    for limit in (4, 1000):
        env, pushes = go1(push=0.3, max_episode_steps=limit), [torch.zeros(N, 12)]
        for step in range(40):
            _, _, _, extras = env.step(actions_at(step))
            pushes.append(extras["final_obs"]["privileged"][:, -13:-1])
        now, before = torch.stack(pushes[1:]), torch.stack(pushes[:-1])
        drawn.append(torch.where(torch.isclose(now, 0.8 * before), 0.0, now))
    short, long = drawn
    assert (long.abs().amax(-1) > 0.0).sum() > 1
    steps = (long != 0.0).any(-1) & (short != 0.0).any(-1)
    assert torch.equal(short[steps], long[steps])
    assert steps.sum() >= (long != 0.0).any(-1).sum() - 1


def test_a_silent_sensor_shows_its_last_values():
    seen = rollout(go1(silence=5), 30)["policy"]
    held = (seen[1:, :, :SENSORS] == seen[:-1, :, :SENSORS]).all(-1)
    assert not held.all(0).any()
    runs = torch.stack([held[step : step + 5].all(0) for step in range(25)])
    assert runs.any()
    assert not (seen[1:, :, SENSORS : SENSORS + 12] == seen[:-1, :, SENSORS : SENSORS + 12]).all()


def test_a_history_is_the_last_steps_the_oldest_first():
    seen = rollout(go1(history=3), 10)["policy"].unflatten(-1, (3, 45))
    one = rollout(go1(), 10)["policy"]
    for step in range(11):
        for age in range(3):
            assert torch.equal(seen[step, :, 2 - age], one[max(step - age, 0)])


def test_reward_and_velocity_error_are_of_the_command_before_the_step():
    env, plain = go1(), plain_env()
    for step in range(30):
        actions = 5.0 * actions_at(step)  # some are beyond 1
        _, rewards, _, extras = env.step(actions)
        _, own, *_, other = plain.step(actions)
        terms = extras["reward_terms"]
        total = torch.stack([*terms.values()]).sum(0)
        assert torch.allclose(rewards, total)  # not cut at 0, as EnvPool's own
        beyond = (actions.abs() - 1.0).clamp(min=0.0).square().sum(-1)
        limits = terms.pop("action_limits")
        assert torch.allclose(limits, -0.01 * beyond)
        assert terms.keys() == other["reward_terms"].keys()
        assert all(
            torch.allclose(values, 0.1 * other["reward_terms"][name])
            for name, values in terms.items()
        )
        assert torch.allclose(own, (0.2 * (total - limits)).clamp(min=0.0), atol=1e-6)
        expected = 0.15 * torch.exp(-extras["velocity_error"].square() / 0.25)
        assert torch.allclose(terms["tracking_lin_vel"], expected, atol=1e-5)


def test_fields_of_the_faults_are_settings():
    env = go1(observation_delay=3)
    assert (env.faults.observation_delay, env.faults.push) == (3, 0.0)
    assert not env.faults.in_motors
    assert go1().faults == FAULTLESS


@pytest.mark.parametrize(
    "settings",
    [{"observation_delay": -1}, {"push": -0.1}, {"motor_gain": (1.1, 0.8)}, {"history": 0}],
)
def test_a_fault_out_of_its_range_is_named(settings):
    ((name, value),) = settings.items()
    with pytest.raises(ValueError, match=f"{name} is {re.escape(str(value))}, expected"):
        go1(**settings)


def test_penalties_grow_from_a_fifth_to_their_full_weight():
    gentle, full = go1(gentle_steps=10), go1()
    for step in range(15):
        _, rewards, _, extras = gentle.step(actions_at(step))
        _, other, *_ = full.step(actions_at(step))
        terms = torch.stack([*extras["reward_terms"].values()])
        share = min(0.2 + 0.08 * step, 1.0)
        left_out = (1.0 - share) * terms.clamp(max=0.0).sum(0)
        assert torch.allclose(rewards, other - left_out, atol=1e-6)
        assert (left_out < 0.0).all() == (step < 10)
    assert gentle.common_step_counter == 15


@pytest.mark.parametrize(
    "settings", [{}, {"action_scale": 0.3, "kp": 20.0, "kd": 1.0}], ids=["own", "changed"]
)
def test_a_bundle_states_the_gains_that_the_robot_was_trained_with(settings):
    told = go1(**settings).describe_robot()
    (action,) = told["actions"]
    gains = action["scale"], told["joint_stiffness"], told["joint_damping"]
    assert gains == tuple([value] * 12 for value in settings.values() or (0.5, 35.0, 0.5))

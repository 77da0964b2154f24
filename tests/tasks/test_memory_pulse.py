"""The task of the point mass: what is hidden, how it moves, and how long a push lasts."""

import pytest
import torch

from rsl_tbptt_tasks.memory import PulseEnv
from rsl_tbptt_tasks.memory.pulse import POSITION_NOISE, PULSE_STEPS, SHOWN_STEPS, STEP_SECONDS

ZERO = torch.zeros(64, 2)


def privileged(env):
    """Return position, target, velocity, mass and push."""
    return env.get_observations()["privileged"].split((2, 2, 2, 1, 2), dim=-1)


def test_one_step_by_hand():
    env = PulseEnv(64)
    position, target, velocity, mass, push = privileged(env)
    actions = torch.tensor([[0.5, 3.0]]).expand(64, 2)  # the second one is clipped
    _, rewards, dones, _ = env.step(actions)
    force = torch.tensor([1.0, 2.0]) + push
    velocity = velocity + STEP_SECONDS * force / mass
    position = position + STEP_SECONDS * velocity
    torch.testing.assert_close(privileged(env)[0], position)
    torch.testing.assert_close(privileged(env)[2], velocity)
    distance = (position - target).norm(dim=-1)
    torch.testing.assert_close(rewards, STEP_SECONDS * torch.exp(-(distance**2) / 0.2))
    assert dones.tolist() == (torch.arange(64) == 119).tolist()


def test_the_policy_sees_the_target_in_the_first_steps_only():
    env = PulseEnv(64)
    env.reset()
    for step in range(env.max_episode_length):
        obs = env.get_observations()["policy"]
        expected = privileged(env)[1] if step < SHOWN_STEPS else ZERO
        assert torch.equal(obs[:, 2:4], expected)
        assert (obs[:, 4] == (step < SHOWN_STEPS)).all()
        _, _, dones, extras = env.step(ZERO)
    assert dones.all()
    assert extras["time_outs"].all()


def test_positions_are_noisy_and_the_noise_is_that_of_the_step():
    env = PulseEnv(4096)
    noise = env.get_observations()["policy"][:, :2] - privileged(env)[0]
    assert noise.std().item() == pytest.approx(POSITION_NOISE, rel=0.05)
    assert torch.equal(env.get_observations()["policy"], env.get_observations()["policy"])


def test_pushes_last_ten_steps():
    env = PulseEnv(256)
    env.reset()
    pushed = []
    for _ in range(60):
        env.step(torch.zeros(256, 2))
        pushed.append(privileged(env)[4].abs().sum(-1) > 0)
    lengths = pushed[0].long()
    assert torch.stack(pushed).float().mean() > 0.1
    for at, before in zip(pushed[1:], pushed, strict=False):
        ends = before & ~at
        assert (lengths[ends] % PULSE_STEPS == 0).all()  # another one may follow at once
        lengths = torch.where(at, lengths + 1, 0)


def test_episodes_continue_from_a_saved_state():
    env, other = PulseEnv(16, seed=1), PulseEnv(16, seed=2)
    with torch.inference_mode():
        for _ in range(30):
            env.step(torch.ones(16, 2))
    other.load_state_dict(env.state_dict())
    for _ in range(150):
        obs, *rest, _ = env.step(ZERO[:16])
        expected, *others, _ = other.step(ZERO[:16])
        assert all(torch.equal(obs[group], expected[group]) for group in ("policy", "privileged"))
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(rest, others, strict=True))

"""The occluded cartpole and its camera in real physics, measured in Isaac Lab's process."""

import numpy as np
import pytest
from support.isaaclab_process import columns, look_at

pytestmark = [pytest.mark.isaaclab, pytest.mark.long]

NUM_ENVS = 64
PHYSICS = [("mass", 0, 0.7, 1.4), ("mass", 1, 0.15, 0.6)]
PHYSICS += [("damping", 0, 0.0, 0.2), ("damping", 1, 0.0, 0.004)]
"""Ranges of cart and pole."""


def launch():
    return look_at("Tbptt-Cartpole-Occluded", NUM_ENVS, measure)


def measure(env):
    """Return all values that the tests check."""
    import torch
    from tensordict import TensorDict

    from rsl_tbptt.checkpoints.robot import describe_robot

    robot = env.scene["robot"]
    env.reset()

    def place(position, velocity):
        shape = (NUM_ENVS, 2)
        robot.write_joint_position_to_sim_index(position=torch.tensor(position).expand(shape))
        robot.write_joint_velocity_to_sim_index(velocity=torch.tensor(velocity).expand(shape))
        env.scene.update(0.0)

    def observe(seed=0):
        torch.manual_seed(seed)
        return {name: obs.clone() for name, obs in env.observation_manager.compute().items()}

    def step_from(position):
        place(position, [0.0, 0.0])
        _, *results, _ = env.step(torch.zeros(NUM_ENVS, 1))
        return [values.tolist() for values in results]  # of buffers that the next step writes into

    place([0.3, 0.2], [0.0, 0.0])
    still = observe()
    noise = torch.stack([observe(seed)["policy"] for seed in range(200)])
    place([0.3, 0.2], [0.7, -0.4])
    moving = observe()
    bodies = [robot.body_names.index(name) for name in ("cart", "pole")]
    return {
        "robot": describe_robot(env, TensorDict(still, batch_size=[NUM_ENVS])),
        "still": still,
        "moving": moving,
        "policy_mean": noise.mean((0, 1)),
        "policy_std": noise.std((0, 1)),
        "mass": robot.data.body_mass.torch[:, bodies],
        "damping": robot.data.joint_damping.torch,
        "max_episode_length": env.max_episode_length,
        "inside": step_from([1.9, 0.45]),
        "cart_out": step_from([2.05, 0.0]),
        "pole_out": step_from([0.0, 0.55]),
    }


@pytest.fixture(scope="module")
def seen(isaaclab):
    return isaaclab.call(f"{__file__}:launch")[0]


def test_only_the_teacher_sees_velocities_and_the_randomised_physics(seen):
    assert seen["moving"]["policy"] == seen["still"]["policy"]
    still, moving = columns(seen["still"]["teacher"]), columns(seen["moving"]["teacher"])
    assert [i for i in range(len(still)) if still[i] != moving[i]] == [2, 3]
    assert moving[2] == pytest.approx([0.5 * 0.7] * NUM_ENVS)
    assert moving[3] == pytest.approx([2.0 * -0.4] * NUM_ENVS)
    assert still[4:] == columns(seen["mass"]) + columns(seen["damping"])


def test_the_student_sees_positions_with_noise_of_the_configured_size(seen):
    assert seen["policy_mean"] == pytest.approx([0.5 * 0.3, 2.0 * 0.2], abs=0.003)
    assert seen["policy_std"] == pytest.approx([0.5 * 0.02, 2.0 * 0.02], rel=0.05)


def test_physics_differs_within_its_range_and_checkpoints_describe_the_robot_as_built(seen):
    for quantity, column, low, high in PHYSICS:
        values = columns(seen[quantity])[column]
        assert len(set(values)) == NUM_ENVS
        assert low - 1e-6 <= min(values) < low + 0.2 * (high - low)
        assert high - 0.2 * (high - low) < max(values) <= high + 1e-6
    robot = seen["robot"]
    assert robot["joint_names"] == ["slider_to_cart", "cart_to_pole"]
    assert (robot["joint_stiffness"], robot["joint_damping"]) == ([0.0, 0.0], [0.1, 0.002])
    groups = robot["observation_groups"]
    noisy = {name: {term["noisy"] for term in groups[name]["terms"]} for name in groups}
    assert noisy == {"policy": {True}, "teacher": {False}}


def test_the_episode_continues_inside_the_limits_and_ends_outside(seen):
    rewards, terminated, truncated = seen["inside"]
    assert min(rewards) > 0.0
    assert not any(terminated + truncated)
    assert all(seen["cart_out"][1] + seen["pole_out"][1])  # terminated
    assert seen["max_episode_length"] == 240


def launch_camera():
    return look_at("Tbptt-Cartpole-Camera", 6, follow, make_exact)


def make_exact(env_cfg):
    exact = {"noise": 0.0, "missing_pixels": 0.0, "lost_frames": 0.0}
    env_cfg.observations.camera.depth.params |= exact


def follow(env):
    """Return frames while a force moves the cart."""
    import torch

    robot, frames, carts = env.scene["robot"].data, [env.reset()[0]["camera"][:, 0]], []
    [term] = env.observation_manager._group_obs_term_cfgs["camera"]
    latencies = term.func._latency.clone()
    for _ in range(11):
        carts.append(robot.joint_pos.torch[:, 0].clone())
        frames.append(env.step(torch.full((6, 1), 0.2))[0]["camera"][:, 0])
    return {"frames": frames[:-1], "carts": carts, "latencies": latencies}


PERIOD = 3
"""Steps between two frames, of which the first is at step 0 and shows nothing."""
CART_ROW = 30
"""Row of a frame that shows the cart: above is only the pole, below the rail."""
PIXELS_PER_M = 96 / 3.45
"""Scale of the camera at the cart's distance."""


def test_a_frame_shows_where_the_cart_was_when_it_was_taken(isaaclab):
    seen = isaaclab.call(f"{__file__}:launch_camera")[0]
    frames, carts = np.array(seen["frames"]), np.array(seen["carts"])  # (T, N, 40, 96), (T, N)
    assert set(seen["latencies"]) == {0, 1}
    for env, latency in enumerate(seen["latencies"]):
        for step, picture in enumerate(frames[:, env]):
            taken = (step - latency) // PERIOD * PERIOD
            if taken <= 0:
                assert not picture.any()
                continue
            (columns,) = picture[CART_ROW].nonzero()
            shown = (columns.mean() + 0.5 - 48) / PIXELS_PER_M
            assert shown == pytest.approx(carts[taken, env], abs=0.03)
    moved = np.abs(carts[-1] - carts[-1 - PERIOD])
    assert moved.min() > 0.04  # frames of other steps would not do

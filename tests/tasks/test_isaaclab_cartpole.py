"""The occluded cartpole in real physics, as Isaac Lab's process saw it."""

import argparse
import json

import pytest

TASK = "Tbptt-Cartpole-Occluded"
NUM_ENVS = 64
FORCE = 10.0  # N
SPEED = 1.0  # m/s or rad/s
HALF_LENGTH, ROD_INERTIA = 0.5, 1.0 / 12.0  # m, and m^2: moment of inertia per kilogram


def launch():
    """Build the environment on the processor and return what :func:`measure` does."""
    import gymnasium as gym
    from isaaclab.app import launch_simulation
    from isaaclab_tasks.utils import resolve_task_config

    import rsl_tbptt_tasks.isaaclab  # noqa: F401

    env_cfg, _ = resolve_task_config(TASK, None, overrides=["physics=newton_mjwarp"])
    env_cfg.scene.num_envs, env_cfg.sim.device, env_cfg.seed = NUM_ENVS, "cpu", 3
    with launch_simulation(env_cfg, argparse.Namespace(device="cpu", headless=True)):
        env = gym.make(TASK, cfg=env_cfg).unwrapped
        seen = json.dumps(measure(env), default=lambda x: x.tolist())
        env.close()  # takes the simulator's memory with it
    return json.loads(seen)


def measure(env):
    """Return everything the tests look at."""
    import torch

    robot = env.scene["robot"]
    env.reset()
    env.reset()  # Isaac Lab 3.0.0 on Newton starts the very first episodes at rest
    starts = robot.data.joint_pos.torch.clone(), robot.data.joint_vel.torch.clone()

    def place(position, velocity):
        shape = (NUM_ENVS, 2)
        robot.write_joint_position_to_sim_index(position=torch.tensor(position).expand(shape))
        robot.write_joint_velocity_to_sim_index(velocity=torch.tensor(velocity).expand(shape))
        env.scene.update(0.0)

    def observe(seed=0):
        torch.manual_seed(seed)
        return {name: obs.clone() for name, obs in env.observation_manager.compute().items()}

    def velocity_after_one_step(velocity, force=0.0):
        place([0.0, 0.0], velocity)
        target = torch.full((NUM_ENVS, 1), force)
        robot.set_joint_effort_target_index(target=target, joint_ids=[0])
        env.scene.write_data_to_sim()
        env.sim.step(render=False)
        env.scene.update(env.physics_dt)
        return robot.data.joint_vel.torch.clone()

    def step_from(position):
        place(position, [0.0, 0.0])
        _, reward, terminated, truncated, _ = env.step(torch.zeros(NUM_ENVS, 1))
        return {  # buffers that the next step writes into
            "reward": reward.tolist(),
            "terminated": terminated.tolist(),
            "truncated": truncated.tolist(),
        }

    place([0.3, 0.2], [0.0, 0.0])
    still = observe()
    noise = torch.stack([observe(seed)["policy"] for seed in range(200)])
    exact = torch.stack([observe(seed)["teacher"] for seed in range(5)])
    place([0.3, 0.2], [0.7, -0.4])
    moving = observe()
    place([0.4, 0.1], [0.0, 0.0])
    elsewhere = observe()
    bodies = [robot.body_names.index(name) for name in ("cart", "pole")]
    return {
        "joint_names": robot.joint_names,
        "start_position": starts[0],
        "start_velocity": starts[1],
        "still": still,
        "moving": moving,
        "elsewhere": elsewhere,
        "policy_mean": noise.mean((0, 1)),
        "policy_std": noise.std((0, 1)),
        "teacher_spread": (exact - exact[0]).abs().max(),
        "mass": robot.data.body_mass.torch[:, bodies],
        "damping": robot.data.joint_damping.torch,
        "pushed": velocity_after_one_step([0.0, 0.0], FORCE),
        "cart_rolling": velocity_after_one_step([SPEED, 0.0]),
        "pole_turning": velocity_after_one_step([0.0, SPEED]),
        "physics_dt": env.physics_dt,
        "max_episode_length": env.max_episode_length,
        "inside": step_from([1.9, 0.45]),
        "cart_out": step_from([2.05, 0.0]),
        "pole_out": step_from([0.0, 0.55]),
    }


@pytest.fixture(scope="module")
def seen(isaaclab):
    return isaaclab.call(f"{__file__}:launch")[0]


pytestmark = pytest.mark.isaaclab


def columns(rows):
    """Return a table's columns."""
    return [list(column) for column in zip(*rows, strict=True)]


def test_student_sees_positions_and_not_velocities(seen):
    assert seen["moving"]["policy"] == seen["still"]["policy"]
    assert seen["elsewhere"]["policy"] != seen["still"]["policy"]
    assert len(seen["still"]["policy"][0]) == 2


def test_teacher_sees_velocities(seen):
    still, moving = columns(seen["still"]["teacher"]), columns(seen["moving"]["teacher"])
    changed = [i for i in range(len(still)) if still[i] != moving[i]]
    assert changed == [2, 3]
    assert moving[2] == pytest.approx([0.5 * 0.7] * NUM_ENVS)
    assert moving[3] == pytest.approx([2.0 * -0.4] * NUM_ENVS)


def test_student_noise_has_the_configured_size_and_the_teacher_none(seen):
    assert seen["policy_mean"] == pytest.approx([0.5 * 0.3, 2.0 * 0.2], abs=0.003)
    assert seen["policy_std"] == pytest.approx([0.5 * 0.02, 2.0 * 0.02], rel=0.05)
    assert seen["teacher_spread"] == 0.0


def test_teacher_sees_the_randomised_physics(seen):
    teacher = columns(seen["still"]["teacher"])
    assert teacher[4:] == columns(seen["mass"]) + columns(seen["damping"])


@pytest.mark.parametrize(
    ("quantity", "column", "low", "high"),
    [
        ("mass", 0, 0.7, 1.4),
        ("mass", 1, 0.15, 0.6),
        ("damping", 0, 0, 0.2),
        ("damping", 1, 0, 0.004),
    ],
)
def test_physics_differs_between_environments_within_its_range(seen, quantity, column, low, high):
    values = columns(seen[quantity])[column]
    assert len(set(values)) == NUM_ENVS
    assert low - 1e-6 <= min(values) < low + 0.2 * (high - low)
    assert high - 0.2 * (high - low) < max(values) <= high + 1e-6


def upright_inertia(mass):
    """Return what cart and pole feel at an upright pole: kg, kg m^2, and the coupling in kg m."""
    cart, pole = mass
    return cart + pole, pole * (ROD_INERTIA + HALF_LENGTH**2), pole * HALF_LENGTH


def test_randomised_mass_moves_the_cart_as_mechanics_says(seen):
    for mass, (cart_speed, _) in zip(seen["mass"], seen["pushed"], strict=True):
        total, hinge, coupling = upright_inertia(mass)
        acceleration = FORCE / (total - coupling**2 / hinge)
        assert cart_speed == pytest.approx(acceleration * seen["physics_dt"], rel=0.01)


def test_randomised_damping_slows_cart_and_pole_as_mechanics_says(seen):
    for mass, (cart_damping, pole_damping), cart, pole in zip(
        seen["mass"], seen["damping"], seen["cart_rolling"], seen["pole_turning"], strict=True
    ):
        total, hinge, coupling = upright_inertia(mass)
        cart_loss = cart_damping * SPEED / (total - coupling**2 / hinge) * seen["physics_dt"]
        pole_loss = pole_damping * SPEED / (hinge - coupling**2 / total) * seen["physics_dt"]
        assert SPEED - cart[0] == pytest.approx(cart_loss, rel=0.02, abs=2e-6)
        assert SPEED - pole[1] == pytest.approx(pole_loss, rel=0.02, abs=2e-6)


def test_reward_is_positive_and_the_episode_goes_on_inside_the_limits(seen):
    inside = seen["inside"]
    assert min(inside["reward"]) > 0.0
    assert not any(inside["terminated"])
    assert not any(inside["truncated"])
    assert seen["max_episode_length"] == 240


@pytest.mark.parametrize("case", ["cart_out", "pole_out"])
def test_episode_ends_outside_the_limits(seen, case):
    assert all(seen[case]["terminated"])

"""The occluded cartpole in real physics, measured in Isaac Lab's process."""

import pytest
from support.isaaclab_process import columns, look_at

pytestmark = [pytest.mark.isaaclab, pytest.mark.long]

TASK = "Tbptt-Cartpole-Occluded"
NUM_ENVS = 64


def launch():
    return look_at(TASK, NUM_ENVS, measure)


def measure(env):
    """Return all values that the tests check."""
    import torch

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
        "still": still,
        "moving": moving,
        "elsewhere": elsewhere,
        "policy_mean": noise.mean((0, 1)),
        "policy_std": noise.std((0, 1)),
        "teacher_spread": (exact - exact[0]).abs().max(),
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


def test_the_episode_continues_inside_the_limits_and_ends_outside(seen):
    inside = seen["inside"]
    assert min(inside["reward"]) > 0.0
    assert not any(inside["terminated"])
    assert not any(inside["truncated"])
    assert seen["max_episode_length"] == 240
    assert all(seen["cart_out"]["terminated"])
    assert all(seen["pole_out"]["terminated"])

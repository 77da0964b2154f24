"""The occluded cartpole in real physics, measured in Isaac Lab's process."""

import pytest
from support.isaaclab_process import columns, look_at

pytestmark = pytest.mark.isaaclab

TASK = "Tbptt-Cartpole-Occluded"
NUM_ENVS = 64
FORCE = 10.0  # N
HALF_LENGTH, ROD_INERTIA = 0.5, 1.0 / 12.0  # m, and m^2: moment of inertia per kilogram


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

    def push():
        """Return the velocities after one step of physics."""
        place([0.0, 0.0], [0.0, 0.0])
        target = torch.full((NUM_ENVS, 1), FORCE)
        robot.set_joint_effort_target_index(target=target, joint_ids=[0])
        env.scene.write_data_to_sim()
        env.sim.step(render=False)
        env.scene.update(env.physics_dt)
        return robot.data.joint_vel.torch.clone()

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
        "pushed": push(),
        "physics_dt": env.physics_dt,
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


def test_student_is_noisy_and_its_teacher_is_not(seen):
    assert seen["policy_mean"] == pytest.approx([0.5 * 0.3, 2.0 * 0.2], abs=0.003)
    assert min(seen["policy_std"]) > 0.0
    assert seen["teacher_spread"] == 0.0


def test_randomised_mass_moves_the_cart_as_mechanics_predicts(seen):
    for (cart, pole), (cart_speed, _) in zip(seen["mass"], seen["pushed"], strict=True):
        hinge, coupling = pole * (ROD_INERTIA + HALF_LENGTH**2), pole * HALF_LENGTH
        acceleration = FORCE / (cart + pole - coupling**2 / hinge)
        assert cart_speed == pytest.approx(acceleration * seen["physics_dt"], rel=0.01)

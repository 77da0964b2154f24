"""The small quadruped: its asset, its stance in real physics, and its observations."""

import math

import pytest

pytest.importorskip("isaaclab_tasks", reason="Isaac Lab 3.0 needs Python 3.12")

from support.isaaclab_process import columns, look_at

pytestmark = [
    pytest.mark.isaaclab,
    pytest.mark.filterwarnings(r"ignore:.torch\.jit\.script:DeprecationWarning"),
]

TASK = "Tbptt-Velocity-Flat-Pup"
JOINTS = ("hip", "knee")
LEGS = ["front_left", "front_right", "rear_left", "rear_right"]
MOST_PULL = 6.0  # N
CONTROL_STEP, GRAVITY = 0.02, 9.81  # s, m/s^2
STIFFNESS = 12.0  # N m/rad

NUM_ENVS = 64
MOST_DELAY = 1  # steps
DELAY_STEPS, RESTART = 14, 7


def launch():
    return look_at(TASK, NUM_ENVS, measure)


def measure(env):
    """Return all values of the robot and its observations that the tests check."""
    import torch
    from tensordict import TensorDict

    from rsl_tbptt.checkpoints.robot import describe_robot

    robot = env.scene["robot"]
    env.reset()
    idle = torch.zeros(NUM_ENVS, 8)

    def place(height=0.155, roll=0.0, linear=0.0, turn=0.0, joint=0.0, angles=(0.7, -1.4)):
        pose = torch.zeros(NUM_ENVS, 7)
        pose[:, :3] = env.scene.env_origins
        pose[:, 2] = height
        pose[:, 3], pose[:, 6] = math.sin(roll / 2), math.cos(roll / 2)
        velocity = torch.zeros(NUM_ENVS, 6)
        velocity[:, 0], velocity[:, 3] = linear, turn
        robot.write_root_pose_to_sim_index(root_pose=pose)
        robot.write_root_velocity_to_sim_index(root_velocity=velocity)
        by_name = {f"{leg}_{j}": angles[i] for leg in LEGS for i, j in enumerate(JOINTS)}
        joints = torch.tensor([by_name[name] for name in robot.joint_names]).expand(NUM_ENVS, 8)
        robot.write_joint_position_to_sim_index(position=joints)
        robot.write_joint_velocity_to_sim_index(velocity=torch.full_like(joints, joint))
        env.scene.update(0.0)

    def observe(seed=0):
        """Return the first observations of an episode, which are not delayed."""
        torch.manual_seed(seed)
        env.observation_manager.reset()
        observed = env.observation_manager.compute(update_history=True)
        return {name: obs.clone() for name, obs in observed.items()}

    def observe_steps():
        """Return the student's observations of a state that changes by far more than the noise."""
        torch.manual_seed(0)
        observed = []
        for step in range(DELAY_STEPS):
            angles = (0.7 + step, -1.4 + step)
            place(linear=0.5 * step * (step + 1), turn=4.0 * step, roll=0.9 * step, angles=angles)
            env.common_step_counter += 1
            env.episode_length_buf[:] = step
            env.command_manager.get_command("base_velocity")[:] = step
            if step == 0:
                env.observation_manager.reset()
            if step == RESTART:
                env.observation_manager.reset(range(NUM_ENVS // 2))
            observed.append(env.observation_manager.compute(update_history=True)["policy"].clone())
        return observed

    def step_from(**state):
        place(**state)
        _, _, terminated, truncated, _ = env.step(idle)
        return {"terminated": terminated.tolist(), "truncated": truncated.tolist()}

    def fall_freely():
        """Return how the robots' velocity changes in a step without ground under them."""
        place(height=1.0)
        env.step(idle)
        return {
            "pull": env.observation_manager.compute()["teacher"][:, -3] / 0.5,
            "velocity": robot.data.root_lin_vel_w.torch.clone(),
        }

    place()
    still = observe()

    place(roll=0.5)
    tilted = observe()
    place(linear=0.5, joint=0.5)
    moving = observe()
    return {
        "robot": describe_robot(env, TensorDict(moving, batch_size=[NUM_ENVS])),
        "mass": robot.data.body_mass.torch.sum(1),
        "still": still,
        "tilted": tilted["policy"][:, 3:6],
        "falling": fall_freely(),
        "moving": moving,
        "steps": torch.stack(observe_steps()),
        "upright": step_from(),
        "tipped": step_from(height=0.2, roll=0.9),
        "sunk": step_from(height=0.05, angles=(1.57, 0.0)),  # legs stretched to the rear
        "max_episode_length": env.max_episode_length,
    }


@pytest.fixture(scope="module")
def seen(isaaclab):
    return isaaclab.call(f"{__file__}:launch")[0]


def test_checkpoints_describe_the_robot_as_built_and_not_as_randomised(seen):
    robot = seen["robot"]
    names = robot["joint_names"]
    assert sorted(names) == sorted(f"{leg}_{joint}" for leg in LEGS for joint in JOINTS)
    expected = [0.7 if name.endswith("hip") else -1.4 for name in names]
    assert robot["default_joint_pos"] == expected
    assert (robot["joint_stiffness"], robot["joint_damping"]) == ([STIFFNESS] * 8, [0.3] * 8)
    assert (robot["step_dt"], robot["command_names"]) == (CONTROL_STEP, ["base_velocity"])
    [action] = robot["actions"]
    assert action["joint_names"] == names
    assert (action["scale"], action["offset"], action["clip"]) == (0.3, expected, None)
    groups = robot["observation_groups"]
    assert {name: group["shape"] for name, group in groups.items()} == {
        "policy": [19],
        "teacher": [48],
    }
    terms = {term["name"]: (term["shape"], term["scale"]) for term in groups["policy"]["terms"]}
    assert [*terms.items()] == [
        ("angular_velocity", ([3], 0.25)),
        ("velocity_increment", ([3], None)),
        ("command", ([3], None)),
        ("joint_angles", ([8], None)),
        ("clock", ([2], None)),
    ]
    noisy = [term["name"] for term in groups["policy"]["terms"] if term["noisy"]]
    assert noisy == ["angular_velocity", "velocity_increment", "joint_angles"]


def test_student_sees_no_velocity_and_the_teacher_does(seen):
    assert seen["moving"]["policy"] == seen["still"]["policy"]
    still, moving = columns(seen["still"]["teacher"]), columns(seen["moving"]["teacher"])
    changed = [i for i in range(len(still)) if still[i] != moving[i]]
    assert changed == [0, *range(20, 28)]
    assert moving[0] == pytest.approx([2.0 * 0.5] * NUM_ENVS, abs=1e-4)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (0, lambda step, start: step),
        (3, lambda step, start: 0 if step == start else step),  # the first shows gravity alone
        (9, lambda step, start: step),
    ],
    ids=["angular velocity", "velocity increment", "joint angles"],
)
def test_student_sees_each_sensor_late_by_a_delay_drawn_per_episode(seen, column, value):
    def delay_of(observed, start):
        """Return the one delay that explains a sensor's values in an episode."""
        steps = range(start, DELAY_STEPS)
        shown = {
            delay: [value(max(step - delay, start), start) for step in steps]
            for delay in range(MOST_DELAY + 1)
        }
        (delay,) = (d for d in shown if observed == pytest.approx(shown[d], abs=0.45))
        return delay

    robots = columns([columns(step)[column] for step in seen["steps"]])
    restarted, others = robots[: NUM_ENVS // 2], robots[NUM_ENVS // 2 :]
    all_delays = set(range(MOST_DELAY + 1))
    assert {delay_of(robot, start=0) for robot in others} == all_delays
    assert {delay_of(robot[RESTART:], start=RESTART) for robot in restarted} == all_delays


def test_accelerometer_shows_which_way_is_up(seen):
    up = [0.0, math.sin(0.5), math.cos(0.5)]
    expected = [CONTROL_STEP * GRAVITY * value for value in up]
    for column, value in zip(columns(seen["tilted"]), expected, strict=True):
        assert column == pytest.approx([value] * NUM_ENVS, abs=0.01)


def test_pull_differs_within_its_range_and_acts_as_the_teacher_sees(seen):
    pulls = seen["falling"]["pull"]
    assert -MOST_PULL <= min(pulls) < -0.8 * MOST_PULL
    assert 0.8 * MOST_PULL < max(pulls) <= MOST_PULL
    ahead, aside, _ = columns(seen["falling"]["velocity"])
    expected = [CONTROL_STEP * pull / mass for pull, mass in zip(pulls, seen["mass"], strict=True)]
    assert ahead == pytest.approx(expected, abs=2e-3)
    assert aside == pytest.approx([0.0] * NUM_ENVS, abs=2e-3)


def test_episode_continues_upright_and_ends_when_the_robot_has_fallen(seen):
    assert all(seen["tipped"]["terminated"])
    assert all(seen["sunk"]["terminated"])
    assert not any(seen["upright"]["terminated"])
    assert not any(seen["upright"]["truncated"])
    assert seen["max_episode_length"] == 400

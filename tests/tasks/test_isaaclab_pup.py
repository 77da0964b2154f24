"""The small quadruped: its asset, its stance in real physics, and its observations."""

import math

import pytest

pytest.importorskip("isaaclab_tasks", reason="Isaac Lab 3.0 needs Python 3.12")

from support.isaaclab_process import columns, look_at

pytestmark = [
    pytest.mark.isaaclab,
    pytest.mark.long,
    pytest.mark.filterwarnings(r"ignore:.torch\.jit\.script:DeprecationWarning"),
]

TASK = "Tbptt-Velocity-Flat-Pup"
JOINTS = ("hip", "knee")
LEGS = ["front_left", "front_right", "rear_left", "rear_right"]
TOTAL_MASS, MOST_PAYLOAD = 2.8, 1.0  # kg
MOST_PULL = 6.0  # N
CONTROL_STEP, GRAVITY = 0.02, 9.81  # s, m/s^2
SEGMENT, FOOT_RADIUS = 0.09, 0.015  # m: thigh and shank are equally long
STIFFNESS = 12.0  # N m/rad
LEG_HEIGHT = 2 * SEGMENT * math.cos(0.7)  # m, from the foot's centre to the hip, by default
LIFT = 0.03  # m
LIFTED_HIP = math.acos((LEG_HEIGHT - LIFT) / (2 * SEGMENT))
LIFTED = (LIFTED_HIP, -2 * LIFTED_HIP)

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
    from rsl_tbptt_tasks.isaaclab.mdp import VelocityIncrement

    robot = env.scene["robot"]
    env.reset()
    idle = torch.zeros(NUM_ENVS, 8)

    def place(
        height=0.155, roll=0.0, linear=0.0, turn=0.0, joint=0.0, angles=(0.7, -1.4), lifted=()
    ):
        pose = torch.zeros(NUM_ENVS, 7)
        pose[:, :3] = env.scene.env_origins
        pose[:, 2] = height
        pose[:, 3], pose[:, 6] = math.sin(roll / 2), math.cos(roll / 2)
        velocity = torch.zeros(NUM_ENVS, 6)
        velocity[:, 0], velocity[:, 3] = linear, turn
        robot.write_root_pose_to_sim_index(root_pose=pose)
        robot.write_root_velocity_to_sim_index(root_velocity=velocity)
        of_legs = {leg: LIFTED if leg in lifted else angles for leg in LEGS}
        by_name = {f"{leg}_{j}": of_legs[leg][i] for leg in LEGS for i, j in enumerate(JOINTS)}
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

    def trot_reward(steps, height=LEG_HEIGHT + FOOT_RADIUS, **state):
        place(height, **state)
        env.episode_length_buf[:] = steps
        term = env.reward_manager.get_term_cfg("trot")
        return term.func(env, **term.params)

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

    def ask_again():
        """Return increments along x after a step, read again, and after half were reset."""
        place()
        term = VelocityIncrement(env.cfg.observations.policy.velocity_increment, env)
        place(linear=0.3)
        env.common_step_counter += 1
        with torch.inference_mode():  # as in a rollout
            asked = [term(env)[:, 0], term(env)[:, 0]]
        term.reset(range(NUM_ENVS // 2))
        return torch.stack([*asked, term(env)[:, 0]])

    place()
    still = observe()
    place(roll=0.5)
    tilted = observe()
    place()
    noise = torch.stack([observe(seed)["policy"] for seed in range(100)])
    place(linear=0.5, joint=0.5)
    moving = observe()
    return {
        "robot": describe_robot(env, TensorDict(moving, batch_size=[NUM_ENVS])),
        "mass": robot.data.body_mass.torch.sum(1),
        "stiffness": robot.data.joint_stiffness.torch,
        "still": still,
        "tilted": tilted["policy"][:, 3:6],
        "falling": fall_freely(),
        "increments": ask_again(),
        "moving": moving,
        "noise": noise.std(0).mean(0),
        "steps": torch.stack(observe_steps()),
        "trot": {
            "stands in mid-swing": trot_reward(5),
            "lifts the diagonal": trot_reward(5, lifted=["front_left", "rear_right"]),
        },
        "upright": step_from(),
        "tipped": step_from(height=0.2, roll=0.9),
        "sunk": step_from(height=0.05, angles=(1.57, 0.0)),  # legs stretched to the rear
        "max_episode_length": env.max_episode_length,
    }


@pytest.fixture(scope="module")
def seen(isaaclab):
    return isaaclab.call(f"{__file__}:launch")[0]


def test_payload_and_motors_differ_within_their_range_as_the_teacher_sees(seen):
    teacher = columns(seen["still"]["teacher"])
    payload = [mass - TOTAL_MASS for mass in seen["mass"]]
    shares = [value / STIFFNESS for robot in seen["stiffness"] for value in robot]
    for values, low, high in ((payload, 0.0, MOST_PAYLOAD), (shares, 0.4, 1.6)):
        assert low - 1e-4 <= min(values) < low + 0.1
        assert high - 0.1 < max(values) <= high + 1e-4
    assert teacher[36] == pytest.approx([2.0 + value for value in payload], abs=1e-4)
    for seen_by_teacher, stiffness in zip(teacher[37:45], columns(seen["stiffness"]), strict=True):
        assert seen_by_teacher == pytest.approx([0.1 * value for value in stiffness])


def test_checkpoints_describe_the_robot_as_built_and_not_as_randomised(seen):
    robot = seen["robot"]
    assert (robot["joint_stiffness"], robot["joint_damping"]) == ([STIFFNESS] * 8, [0.3] * 8)
    [action] = robot["actions"]
    assert action["offset"] == robot["default_joint_pos"]
    assert sorted(action["offset"]) == [-1.4] * 4 + [0.7] * 4
    terms = robot["observation_groups"]["policy"]["terms"]
    assert {term["name"]: term["noisy"] for term in terms} == {
        "angular_velocity": True,
        "velocity_increment": True,
        "command": False,
        "joint_angles": True,
        "clock": False,
    }


def test_student_sees_no_velocity_and_the_teacher_does(seen):
    assert seen["moving"]["policy"] == seen["still"]["policy"]
    still, moving = columns(seen["still"]["teacher"]), columns(seen["moving"]["teacher"])
    changed = [i for i in range(len(still)) if still[i] != moving[i]]
    assert changed == [0, *range(20, 28)]
    assert moving[0] == pytest.approx([2.0 * 0.5] * NUM_ENVS, abs=1e-4)


def test_student_noise_has_the_configured_size(seen):
    expected = [0.25 * 0.02] * 3 + [0.002] * 3 + [0.0] * 3 + [0.005] * 8 + [0.0] * 2
    assert seen["noise"] == pytest.approx(expected, rel=0.05)


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

    for step, observed in enumerate(seen["steps"]):  # command and clock are never late
        phase = 2 * math.pi * 2.5 * step / 50
        expected = [step] * 3, [math.sin(phase), math.cos(phase)]
        assert (observed[0][6:9], observed[0][-2:]) == (
            expected[0],
            pytest.approx(expected[1], abs=1e-4),
        )
    robots = columns([columns(step)[column] for step in seen["steps"]])
    restarted, others = robots[: NUM_ENVS // 2], robots[NUM_ENVS // 2 :]
    all_delays = set(range(MOST_DELAY + 1))
    assert {delay_of(robot, start=0) for robot in others} == all_delays
    assert {delay_of(robot[RESTART:], start=RESTART) for robot in restarted} == all_delays


@pytest.mark.parametrize(
    ("case", "errors"),
    [
        ("stands in mid-swing", [LIFT, 0.0, 0.0, LIFT]),
        ("lifts the diagonal", [0.0] * 4),
    ],
)
def test_trot_is_rewarded_if_the_feet_have_the_clocks_height(seen, case, errors):
    expected = math.exp(-sum(error**2 for error in errors) / 0.02**2)
    assert seen["trot"][case] == pytest.approx([expected] * NUM_ENVS, abs=2e-3)


def test_accelerometer_shows_which_way_is_up(seen):
    up = [0.0, math.sin(0.5), math.cos(0.5)]
    expected = [CONTROL_STEP * GRAVITY * value for value in up]
    for column, value in zip(columns(seen["tilted"]), expected, strict=True):
        assert column == pytest.approx([value] * NUM_ENVS, abs=0.01)


def test_increments_of_a_step_stay_until_the_next_step_or_episode(seen):
    moved, again, after_restart = seen["increments"]
    assert moved == again == pytest.approx([0.3] * NUM_ENVS, abs=1e-4)
    half = NUM_ENVS // 2
    assert after_restart == pytest.approx([0.0] * half + [0.3] * half, abs=1e-4)


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

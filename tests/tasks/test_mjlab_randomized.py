"""Go1 with latency, payload and friction: what is simulated, and who sees it, on flat ground."""

# mjlab is in a separate environment that the type checker does not see.
# pyright: reportMissingImports=false

import numpy as np
import pytest

pytest.importorskip("mjlab", reason="mjlab has an environment of its own")

from support.mjlab_result import result_of

NUM_ENVS, NUM_STEPS, RESTART = 8, 24, 12
RESTARTED = NUM_ENVS // 2
"""So many environments end their first episode with action RESTART."""
EPISODES = [
    (env, first, last)
    for env in range(NUM_ENVS)
    for first, last in (
        ((0, RESTART), (RESTART + 1, NUM_STEPS)) if env < RESTARTED else ((0, NUM_STEPS),)
    )
]
"""Environment, first and last observation of each episode."""
DECIMATION = 4
MEASURED = ("base_ang_vel", "projected_gravity", "joint_pos", "joint_vel")
TRUNK_MASS = 5.204  # kg

SIMULATION = f"""
import json, torch
import mjlab.tasks
from mjlab.envs import ManagerBasedRlEnv
from mjlab.tasks.registry import load_env_cfg

cfg = load_env_cfg("Tbptt-Velocity-Flat-Unitree-Go1-Randomized-Student")
cfg.scene.num_envs, cfg.seed = {NUM_ENVS}, 3
for group in cfg.observations.values():
    group.enable_corruption, group.concatenate_terms = False, False
del cfg.events["encoder_bias"], cfg.events["push_robot"]
env = ManagerBasedRlEnv(cfg, "cpu")
robot, model = env.scene["robot"], env.sim.model
bodies, geoms = robot.indexing.body_ids, robot.indexing.geom_ids
trunk, feet = bodies[robot.find_bodies("trunk")[0]], geoms[robot.find_geoms(".*_foot_.*")[0]]
joints = torch.cat([motor.target_ids for motor in robot.actuators])
motors = torch.cat([motor.ctrl_ids for motor in robot.actuators])
step, steps, targets, motor_targets = env.sim.step, [], [], []

def watched_step():
    motor_targets.append(env.sim.data.ctrl[:, motors].tolist())
    step()

def note(obs):
    shown = {{group: {{k: v.tolist() for k, v in terms.items()}} for group, terms in obs.items()}}
    simulated = dict(
        friction=model.geom_friction[:, feet, 0],
        mass=model.body_mass[:, trunk],
    )
    steps.append(shown | {{name: values.tolist() for name, values in simulated.items()}})

env.sim.step = watched_step
note(env.reset()[0])
for number in range({NUM_STEPS}):
    if number == {RESTART}:
        env.episode_length_buf[:{RESTARTED}] = env.max_episode_length
    note(env.step(0.3 * torch.randn({NUM_ENVS}, 12))[0])
    targets.append(env.action_manager.get_term("joint_pos")._processed_actions[:, joints].tolist())
first_targets = robot.data.default_joint_pos[0, joints].tolist()
result = dict(
    steps=steps, targets=targets, motor_targets=motor_targets, first_targets=first_targets
)
json.dump(result, open("result.json", "w"))
"""


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """Observations, physics and motors' targets of some steps, without noise and pushes."""
    return result_of(SIMULATION, tmp_path_factory.mktemp("randomized"))


@pytest.fixture(scope="module")
def each_step(simulated):
    """Return a value at each observation: (steps + 1, N, ...)."""

    def read(*path):
        values = simulated["steps"]
        for name in path:
            values = [value[name] for value in values]
        return np.array(values)

    return read


def the_lag(late, on_time, first, largest):
    """Return the one lag in steps that explains an episode; ``first`` fills its start."""
    lagged = [np.concatenate([np.repeat([first], lag, 0), on_time]) for lag in range(largest + 2)]
    lags = [lag for lag, values in enumerate(lagged) if np.allclose(late, values[: len(late)])]
    assert len(lags) == 1
    return lags[0]


def test_measurements_are_late_by_a_lag_of_their_episode(each_step):
    lags = {}
    for name in MEASURED:
        late, on_time = each_step("actor", name), each_step("critic", name)
        for env, first, last in EPISODES:
            steps = (slice(first, last + 1), env)
            lags[name, env, first] = the_lag(late[steps], on_time[steps], on_time[first, env], 2)
    for name in ("command", "actions"):  # the controller's own
        np.testing.assert_array_equal(each_step("actor", name), each_step("critic", name))
    for name in MEASURED:
        assert {lags[name, env, first] for env, first, _ in EPISODES} == {0, 1, 2}
    assert any(
        lags[name, env, 0] != lags[name, env, RESTART + 1]
        for name in MEASURED
        for env in range(RESTARTED)
    )


def test_motors_get_targets_late_and_hold_the_default_pose_until_then(simulated):
    """Physics steps, of which an action lasts DECIMATION."""
    late = np.array(simulated["motor_targets"])
    on_time = np.array(simulated["targets"]).repeat(DECIMATION, axis=0)
    lags = []
    for env, first, last in EPISODES:
        # Action t follows observation t, and none follows observation NUM_STEPS.
        steps = (slice(first * DECIMATION, min(last + 1, NUM_STEPS) * DECIMATION), env)
        lags.append(the_lag(late[steps], on_time[steps], simulated["first_targets"], 4))
    assert set(lags) == {0, 1, 2, 3, 4}


def test_friction_and_payload_are_drawn_for_each_episode(each_step):
    mass, friction = each_step("mass")[..., 0], each_step("friction")
    assert (friction == friction[..., :1]).all()  # of the four feet
    for values in (mass, friction[..., 0]):
        drawn = [np.unique(values[first : last + 1, env]) for env, first, last in EPISODES]
        assert all(len(constant) == 1 for constant in drawn)
        assert len(np.unique(drawn)) == len(EPISODES)
    assert 0.3 <= friction.min() < 0.6 < 1.2 < friction.max() <= 1.5
    payload = mass - TRUNK_MASS
    assert -1.0 <= payload.min() < -0.3 < 1.5 < payload.max() <= 3.0


def test_the_teacher_sees_what_is_simulated_and_the_student_does_not(each_step, simulated):
    np.testing.assert_array_equal(each_step("critic", "trunk_mass"), each_step("mass"))
    np.testing.assert_array_equal(
        each_step("critic", "foot_friction"), each_step("friction")[..., :1]
    )
    assert simulated["steps"][0]["actor"].keys() == {*MEASURED, "command", "actions"}

"""mjlab's tasks as they are simulated, in separate processes: scans, late sensors and motors."""

# mjlab is in a separate environment that the type checker does not see.
# pyright: reportMissingImports=false

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("mjlab", reason="mjlab has an environment of its own")

from mjlab.sensor import GridPatternCfg

from rsl_tbptt_tasks.mjlab.mdp import height_image

IMPORTS = """
import json, torch
from dataclasses import asdict, replace
import mjlab.tasks
from mjlab.envs import ManagerBasedRlEnv
from mjlab.rl import RslRlVecEnvWrapper
from mjlab.tasks.registry import load_env_cfg, load_rl_cfg, load_runner_cls
"""


@pytest.fixture(scope="module")
def result_of(tmp_path_factory):
    """Return a function that runs code in a separate process and returns its ``result``."""

    def run(code):
        folder = tmp_path_factory.mktemp("mjlab")
        write = "json.dump(result, open('result.json', 'w'), default=lambda x: x.tolist())"
        process = subprocess.run(
            [sys.executable, "-c", f"{IMPORTS}{code}\n{write}"],
            cwd=folder,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
        return json.loads((folder / "result.json").read_text())

    return run


def test_the_ground_is_an_image_with_forward_along_its_rows():
    grid = GridPatternCfg(size=(0.4, 0.2), resolution=0.1)
    x, y, _ = grid.generate_rays(None, "cpu")[0].T
    hits = torch.stack([x, y, 10.0 * y + x], dim=1)[None]
    data = SimpleNamespace(
        frame_pos_w=torch.zeros(1, 1, 3), hit_pos_w=hits, distances=torch.ones(hits.shape[:2])
    )
    sensor = SimpleNamespace(
        cfg=SimpleNamespace(pattern=grid, max_distance=5.0),
        data=data,
        num_frames=1,
        num_rays_per_frame=hits.shape[1],
    )
    picture = height_image(SimpleNamespace(scene={"scan": sensor}), "scan")
    assert picture.shape == (1, 1, 3, 5)
    torch.testing.assert_close(-picture[0, 0, 1], torch.tensor([-0.2, -0.1, 0.0, 0.1, 0.2]))
    torch.testing.assert_close(-picture[0, 0, :, 2], torch.tensor([-1.0, 0.0, 1.0]))


SCAN = """
# A plane replaces the rough ground, whose collisions take minutes to compile.
task, flat = "Tbptt-Velocity-Rough-Unitree-Go1-Scan", "Tbptt-Velocity-Flat-Unitree-Go1"
cfg = load_env_cfg(f"{task}-Student")
cfg.scene.num_envs, cfg.sim = 4, load_env_cfg(f"{flat}-Student").sim
cfg.scene.terrain = replace(cfg.scene.terrain, terrain_type="plane", terrain_generator=None)
del cfg.terminations["out_of_terrain_bounds"], cfg.curriculum["terrain_levels"]
env = RslRlVecEnvWrapper(ManagerBasedRlEnv(cfg, "cpu"))

def moved(agent, role):
    name = f"{task}-{agent}"
    runner = load_runner_cls(name)(env, asdict(load_rl_cfg(name)), "logs", "cpu")
    if role == "student":
        runner.alg.teacher_loaded = True  # an untrained one will do
    runner.learn(1)
    moments = runner.alg.optimizer.state
    return [
        name
        for name, parameter in getattr(runner.alg, role).named_parameters()
        if parameter in moments and moments[parameter]["exp_avg"].any()
    ]

agents = {"Student": "student", "Memoryless": "student", "Recurrent": "actor"}
result = {agent: moved(agent, role) for agent, role in agents.items()}
result["scan"] = env.get_observations()["scan"].shape
"""


def test_agents_learn_from_the_scan(result_of):
    found = result_of(SCAN)
    assert found["scan"] == [4, 1, 11, 17]
    for agent in ("Student", "Memoryless", "Recurrent"):
        assert "cnns.scan.0.weight" in found[agent]
        assert ("rnn.rnn.weight_hh_l0" in found[agent]) == (agent != "Memoryless")


NUM_ENVS, NUM_STEPS, RESTART = 8, 24, 12
RESTARTED = NUM_ENVS // 2
"""So many environments end their first episode with action RESTART."""
EPISODES = [
    *((env, 0, RESTART) for env in range(RESTARTED)),
    *((env, RESTART + 1, NUM_STEPS) for env in range(RESTARTED)),
    *((env, 0, NUM_STEPS) for env in range(RESTARTED, NUM_ENVS)),
]
"""Environment, first and last observation of each episode."""
DECIMATION = 4
MEASURED = ("base_ang_vel", "projected_gravity", "joint_pos", "joint_vel")
TRUNK_MASS = 5.204  # kg

RANDOMIZED = f"""
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
    physics = dict(friction=model.geom_friction[:, feet, 0], mass=model.body_mass[:, trunk])
    shown = {{group: {{k: v.tolist() for k, v in terms.items()}} for group, terms in obs.items()}}
    steps.append(shown | {{name: values.tolist() for name, values in physics.items()}})

env.sim.step = watched_step
note(env.reset()[0])
for number in range({NUM_STEPS}):
    if number == {RESTART}:
        env.episode_length_buf[:{RESTARTED}] = env.max_episode_length
    note(env.step(0.3 * torch.randn({NUM_ENVS}, 12))[0])
    targets.append(env.action_manager.get_term("joint_pos")._processed_actions[:, joints].tolist())
first_targets = robot.data.default_joint_pos[0, joints]
result = dict(
    steps=steps, targets=targets, motor_targets=motor_targets, first_targets=first_targets
)
"""


@pytest.fixture(scope="module")
def simulated(result_of):
    """Observations, physics and motors' targets of some steps, without noise and pushes."""
    return result_of(RANDOMIZED)


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
    (lag,) = [i for i, values in enumerate(lagged) if np.allclose(late, values[: len(late)])]
    return lag


def test_measurements_are_late_by_a_lag_of_their_episode(each_step):
    renewed = False
    for name in MEASURED:
        late, on_time = each_step("actor", name), each_step("critic", name)
        lags = []
        for env, first, last in EPISODES:
            steps = (slice(first, last + 1), env)
            lags.append(the_lag(late[steps], on_time[steps], on_time[first, env], 2))
        assert set(lags) == {0, 1, 2}
        renewed |= lags[:RESTARTED] != lags[RESTARTED : 2 * RESTARTED]
    assert renewed
    for name in ("command", "actions"):  # the controller's own
        np.testing.assert_array_equal(each_step("actor", name), each_step("critic", name))


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


def test_friction_and_payload_are_drawn_for_each_episode_and_only_teachers_see_them(each_step):
    mass, friction = each_step("mass"), each_step("friction")
    assert (friction == friction[..., :1]).all()  # of the four feet
    for values in (mass[..., 0], friction[..., 0]):
        drawn = [np.unique(values[first : last + 1, env]) for env, first, last in EPISODES]
        assert all(len(constant) == 1 for constant in drawn)
        assert len(np.unique(drawn)) == len(EPISODES)
    assert 0.3 <= friction.min() < 0.6 < 1.2 < friction.max() <= 1.5
    payload = mass - TRUNK_MASS
    assert -1.0 <= payload.min() < -0.3 < 1.5 < payload.max() <= 3.0
    np.testing.assert_array_equal(each_step("critic", "trunk_mass"), mass)
    np.testing.assert_array_equal(each_step("critic", "foot_friction"), friction[..., :1])
    assert each_step("actor")[0].keys() == {*MEASURED, "command", "actions"}

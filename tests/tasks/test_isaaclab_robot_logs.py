"""Logs of two robots reveal the faults of a program on the robot, and noise is not a fault."""

from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rsl_rl.models import RNNModel
from support.isaaclab_process import look_at
from tensordict import TensorDict

from rsl_tbptt.deploy import Policy
from rsl_tbptt.tools.robot.export import Recorded, write_bundle
from rsl_tbptt.tools.robot.golden import draw
from rsl_tbptt.tools.robot.robot_log import diagnose_log

pytestmark = pytest.mark.isaaclab

NUM_ENVS, NUM_STEPS = 16, 240
TASKS = {"cartpole": "Tbptt-Cartpole-Occluded", "pup": "Tbptt-Velocity-Flat-Pup"}
TERMS = {
    "cartpole": {
        "joint_positions": {"shape": [8], "scale": 0.5, "clip": [-0.5, 0.5], "history_length": 4},
        "cart_velocity": {"shape": [1], "scale": 0.1},
        "pole_velocity": {"shape": [1], "scale": 0.2},
    },
    "pup": {
        "angular_velocity": {"shape": [3], "scale": 0.25},
        "gravity": {"shape": [3]},
        "command": {"shape": [3]},
        "joint_angles": {"shape": [24], "history_length": 3},
        "joint_velocities": {"shape": [8], "scale": 0.1},
        "clock": {"shape": [2]},
    },
}
"""Observation terms of the policies in these tests: every fault affects one of them."""
PERMUTED = {"cartpole": "joint_positions", "pup": "joint_velocities"}
WITH_HISTORY = {"cartpole": "joint_positions", "pup": "joint_angles"}
SCALED = {"cartpole": "pole_velocity", "pup": "angular_velocity"}
SWAPPED = {"cartpole": ("cart_velocity", "pole_velocity"), "pup": ("angular_velocity", "command")}
NOISE = 0.02
"""Noise of every sensor, as a share of its deviation over the log."""


def launch(task):
    return look_at(task, NUM_ENVS, measure)


def measure(env):
    """Return the robot's properties, and its terms while it moves at random."""
    from rsl_tbptt.checkpoints.robot import describe_robot
    from rsl_tbptt.tools.robot.golden import _record_terms

    last = _record_terms(env)
    obs, _ = env.reset()
    generator = torch.Generator().manual_seed(0)
    actions, rows, starts = torch.zeros(NUM_ENVS, env.action_manager.total_action_dim), [], []
    dones = torch.ones(NUM_ENVS, dtype=torch.bool)
    for _ in range(NUM_STEPS):
        rows.append({name: values.clone() for name, values in last().items()})
        starts.append(dones)
        actions = 0.9 * actions + 0.3 * torch.randn(actions.shape, generator=generator)
        obs, _, terminated, truncated, _ = env.step(actions)
        dones = terminated | truncated
    raw = {name.split("/")[1]: torch.stack([row[name] for row in rows]) for name in rows[0]}
    return {
        "robot": describe_robot(env, TensorDict(obs, batch_size=[NUM_ENVS])),
        "raw": raw,
        "starts": torch.stack(starts),
    }


@pytest.fixture(scope="module", params=TASKS)
def robot(request, isaaclab, tmp_path_factory):
    """A robot's bundle, and the sensor values of one robot that fell at least once."""
    kind = request.param
    seen = isaaclab.call(f"{__file__}:launch", TASKS[kind])[0]
    starts = np.asarray(seen["starts"])
    env = int(np.argmax(starts[10:-20].sum(0)))
    assert starts[10:-20, env].sum() >= 1
    raw = {name: np.asarray(values)[:, env].astype(float) for name, values in seen["raw"].items()}
    if kind == "cartpole":
        raw["joint_positions"] = np.concatenate([raw["cart_position"], raw["pole_angle"]], axis=1)
    raw = {name: raw[name] for name in TERMS[kind]}
    defaults = {"scale": None, "clip": None, "noisy": True, "history_length": 0}
    terms = [
        {"name": name, **defaults, "flatten_history_dim": True, **term}
        for name, term in TERMS[kind].items()
    ]
    group = {"shape": [sum(term["shape"][0] for term in terms)], "terms": terms}
    described = {**seen["robot"], "observation_groups": {"policy": group}}
    folder = tmp_path_factory.mktemp(kind)
    write(folder, described, raw, starts[:, env])
    return SimpleNamespace(kind=kind, bundle=folder, raw=raw, starts=starts[:, env], terms=terms)


def write(folder, described, raw, starts):
    """Write the bundle of an untrained policy whose normaliser has seen the robot."""
    torch.manual_seed(0)
    metadata = {"robot": described, "observation_groups": described["observation_groups"]}
    program = Program(metadata, None)
    rows = [
        program.observe({n: v[t] for n, v in raw.items()}, starts[t]) for t in range(len(starts))
    ]
    obs = TensorDict({"policy": torch.tensor(np.stack(rows)).float()}, batch_size=[len(rows)])
    num_actions = sum(action["width"] for action in described["actions"])
    policy = RNNModel(
        obs,
        {"actor": ["policy"]},
        "actor",
        num_actions,
        hidden_dims=[32],
        obs_normalization=True,
        rnn_type="lstm",
        rnn_hidden_dim=32,
    )
    policy.update_normalization(obs)
    policy.eval()
    golden = draw(policy, {}, {"policy": obs["policy"][:1]}, 40, seed=0)
    about = {"checkpoint": "model_1.pt", "iteration": 1}
    write_bundle(folder, Recorded(policy, golden, "drawn"), {}, described, about)


class Program:
    """A program that runs a policy on a robot, step by step, with at most one fault."""

    def __init__(self, metadata, policy, fault=None, kind=""):
        self.policy, self.fault, self.kind = policy, fault, kind
        self.groups = metadata["observation_groups"]["policy"]["terms"]
        self.actions = metadata["robot"]["actions"]
        self.normalizer = metadata.get("normalizer", {}).get("policy")
        self.history = {}
        self.last = None

    def has(self, fault, terms=None, name=None):
        return self.fault == fault and (terms is None or terms[self.kind] == name)

    def observe(self, raw, starts):
        """Return the policy's observations, (D,), of one step."""
        parts = {}
        for term in self.groups:
            name, values = term["name"], np.array(raw[term["name"]])
            if self.has("permuted", PERMUTED, name):
                values = (
                    np.roll(values, 1) if len(values) < 8 else values[[3, 2, 1, 0, *range(4, 8)]]
                )
            if self.has("sign flipped", SCALED, name):
                values = -values
            if self.has("degrees", SCALED, name):
                values = np.rad2deg(values)
            if term["clip"]:
                values = np.clip(values, *term["clip"])
            scale = term["scale"] or 1.0
            if not self.has("scale missing", SCALED, name):
                values = values * scale
            if self.has("scale twice", SCALED, name):
                values = values * scale
            if length := term["history_length"]:
                if starts:
                    self.history[name] = deque([values] * length, maxlen=length)
                self.history[name].append(values)
                steps = [*self.history[name]]
                steps = steps[::-1] if self.has("history reversed", WITH_HISTORY, name) else steps
                values = np.concatenate(steps)
            parts[name] = values
        names = [*parts]
        if self.fault == "swapped":
            one, other = map(names.index, SWAPPED[self.kind])
            names[one], names[other] = names[other], names[one]
        return np.concatenate([parts[name] for name in names])

    def step(self, raw, starts):
        """Return observations, actions and targets of one step."""
        obs = self.observe(raw, starts)
        given = obs
        if self.fault == "late":
            given, self.last = obs if self.last is None else self.last, obs
        if self.fault == "normalised twice":
            given = (given - self.normalizer["mean"]) / self.normalizer["divisor"]
        if (starts and self.fault != "not reset") or self.fault == "reset every step":
            self.policy.reset()
        actions = self.policy.step({"policy": given.astype(np.float32)})
        targets, start = [], 0
        for action in self.actions:
            own = actions[start : start + action["width"]]
            scale = 1.0 if self.fault == "action scale missing" else action["scale"]
            targets.append(own * np.asarray(scale) + np.asarray(action["offset"]))
            start += action["width"]
        return {"obs/policy": obs, "actions": actions, "targets": np.concatenate(targets)}


def run(robot, seed, fault=None, *, stands=False):
    """Return a log of a program with noisy sensors, which are read again for the log."""
    raw = {n: v[:1].repeat(len(v), axis=0) for n, v in robot.raw.items()} if stands else robot.raw
    policy = Policy(robot.bundle)
    program = Program(policy.metadata, policy, fault, robot.kind)
    generator = np.random.default_rng(seed)

    def measured():
        return {
            name: values + NOISE * robot.raw[name].std() * generator.standard_normal(values.shape)
            for name, values in raw.items()
        }

    given = measured()
    rows = [
        program.step({name: values[step] for name, values in given.items()}, starts)
        for step, starts in enumerate(robot.starts)
    ]
    log = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return {"reset": robot.starts, **log, **{f"raw/policy/{n}": v for n, v in measured().items()}}


def faults_of(robot, log, folder):
    np.savez(folder / "robot.npz", **log)
    return [fault.kind for fault in diagnose_log(robot.bundle, folder / "robot.npz").faults]


FAULTS = (
    "swapped",
    "scale missing",
    "scale twice",
    "permuted",
    "sign flipped",
    "history reversed",
    "not reset",
    "reset every step",
    "late",
    "action scale missing",
    "normalised twice",
)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named(robot, tmp_path, fault):
    kind = fault.removeprefix("action ")
    assert faults_of(robot, run(robot, 100, fault), tmp_path) == [kind]


@pytest.mark.parametrize("fault", [each for each in FAULTS if each != "normalised twice"])
def test_measured_values_and_actions_reveal_the_fault(robot, tmp_path, fault):
    log = run(robot, 200, fault)
    del log["obs/policy"]
    assert faults_of(robot, log, tmp_path) == [fault.removeprefix("action ")]


def test_degrees_are_a_failure(robot, tmp_path):
    log = run(robot, 300, "degrees")
    assert faults_of(robot, log, tmp_path) == ["unexplained"]


@pytest.mark.parametrize("stands", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_sensor_noise_is_not_a_fault(robot, tmp_path, seed, stands):
    log = run(robot, seed, stands=stands)
    assert faults_of(robot, log, tmp_path) == []
    if seed < 3:
        del log["obs/policy"]
        assert faults_of(robot, log, tmp_path) == []

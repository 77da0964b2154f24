"""Logs of a robot reveal the faults of a program on it, and noise is not a fault."""

from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rsl_rl.models import RNNModel
from support.helpers import write_drawn_bundle
from support.isaaclab_process import look_at
from tensordict import TensorDict

from rsl_tbptt.deploy import Policy
from rsl_tbptt.tools.robot.robot_log import diagnose_log

pytestmark = [pytest.mark.isaaclab, pytest.mark.long]  # simulates 16 robots for 240 steps

NUM_ENVS, NUM_STEPS = 16, 240
TERMS = {
    "angular_velocity": {"shape": [3], "scale": 0.25},
    "gravity": {"shape": [3], "clip": [-0.5, 0.5]},
    "command": {"shape": [3]},
    "joint_angles": {"shape": [24], "history_length": 3},
    "joint_velocities": {"shape": [8], "scale": 0.1},
    "clock": {"shape": [2]},
}
"""Observation terms of the policy in these tests: every fault affects one of them."""
NOISE = 0.02
"""Noise of every sensor, as a share of its deviation over the log."""


def launch():
    return look_at("Tbptt-Velocity-Flat-Pup", NUM_ENVS, measure)


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


@pytest.fixture(scope="module")
def robot(isaaclab, tmp_path_factory):
    """A robot's bundle, and the sensor values of one robot that fell at least once."""
    seen = isaaclab.call(f"{__file__}:launch")[0]
    starts = np.asarray(seen["starts"])
    env = int(np.argmax(starts[10:-20].sum(0)))
    assert starts[10:-20, env].sum() >= 1
    raw = {name: np.asarray(values)[:, env].astype(float) for name, values in seen["raw"].items()}
    raw = {name: raw[name] for name in TERMS}
    defaults = {"scale": None, "clip": None, "noisy": True, "history_length": 0}
    terms = [
        {"name": name, **defaults, "flatten_history_dim": True, **term}
        for name, term in TERMS.items()
    ]
    group = {"shape": [sum(term["shape"][0] for term in terms)], "terms": terms}
    described = {**seen["robot"], "observation_groups": {"policy": group}}
    folder = tmp_path_factory.mktemp("pup")
    write(folder, described, raw, starts[:, env])
    return SimpleNamespace(bundle=folder, raw=raw, starts=starts[:, env])


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
    write_drawn_bundle(folder, policy, {"policy": obs["policy"][:1]}, 40, described)


FAULTY = {
    "permuted": "joint_velocities",
    "sign flipped": "angular_velocity",
    "scale missing": "angular_velocity",
    "scale twice": "angular_velocity",
    "history reversed": "joint_angles",
}
"""The observation term that a fault affects."""


class Program:
    """A program that runs a policy on a robot, step by step, with at most one fault."""

    def __init__(self, metadata, policy, fault=""):
        self.policy, self.fault = policy, fault
        self.groups = metadata["observation_groups"]["policy"]["terms"]
        self.actions = metadata["robot"]["actions"]
        self.normalizer = metadata.get("normalizer", {}).get("policy")
        self.history = {}
        self.last = None

    def observe(self, raw, starts):
        """Return the policy's observations, (D,), of one step."""
        parts = {}
        for term in self.groups:
            name, values = term["name"], np.array(raw[term["name"]])
            fault = self.fault if FAULTY.get(self.fault) == name else ""
            if fault == "permuted":
                values = values[[3, 2, 1, 0, *range(4, 8)]]
            if fault == "sign flipped":
                values = -values
            if term["clip"]:
                values = np.clip(values, *term["clip"])
            scale = term["scale"] or 1.0
            values = values * {"scale missing": 1.0, "scale twice": scale**2}.get(fault, scale)
            if length := term["history_length"]:
                if starts:
                    self.history[name] = deque([values] * length, maxlen=length)
                self.history[name].append(values)
                steps = [*self.history[name]]
                steps = steps[::-1] if fault == "history reversed" else steps
                values = np.concatenate(steps)
            parts[name] = values
        if self.fault == "swapped":
            one, other = "angular_velocity", "command"
            parts[one], parts[other] = parts[other], parts[one]
        return np.concatenate([*parts.values()])

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


def run(robot, seed, fault="", *, stands=False):
    """Return a log of a program with noisy sensors, which are read again for the log."""
    raw = {n: v[:1].repeat(len(v), axis=0) for n, v in robot.raw.items()} if stands else robot.raw
    policy = Policy(robot.bundle)
    program = Program(policy.metadata, policy, fault)
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
def test_each_fault_is_named_also_without_the_observations(robot, tmp_path, fault):
    kind, log = fault.removeprefix("action "), run(robot, 100, fault)
    assert faults_of(robot, log, tmp_path) == [kind]
    del log["obs/policy"]
    if fault != "normalised twice":  # only the observations show what was given to the policy
        assert faults_of(robot, log, tmp_path) == [kind]


@pytest.mark.parametrize("stands", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_sensor_noise_is_not_a_fault(robot, tmp_path, seed, stands):
    log = run(robot, seed, stands=stands)
    assert faults_of(robot, log, tmp_path) == []
    del log["obs/policy"]
    assert faults_of(robot, log, tmp_path) == []

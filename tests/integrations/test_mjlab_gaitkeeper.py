"""gaitkeeper reads and runs the published bundle as it is: docs/howto/runtimes.md."""

# mjlab and gaitkeeper are in a separate environment that the type checker does not see.
# pyright: reportMissingImports=false

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

pytest.importorskip("mjlab", reason="mjlab has an environment of its own")

import mujoco
from gaitkeeper.policy import OnnxPolicy
from mjlab.asset_zoo.robots.unitree_go1 import go1_constants
from mjlab.entity import Entity

EXAMPLES = Path(__file__).parents[2] / "examples"
BUNDLES = [EXAMPLES / "go1_flat_student", EXAMPLES / "go1_real_student"]
published = pytest.mark.parametrize("bundle", BUNDLES, ids=["mjlab", "EnvPool"])
CONTROL_STEP = ("--set", "timing.policy_dt=0.02")


def gaitkeeper(bundle, folder, *words):
    """Run a command on a bundle in a folder, and return its output and status."""
    policy = str(bundle / "policy.onnx")
    command = [sys.executable, "-m", "gaitkeeper.cli", words[0], "--onnx", policy, *words[1:]]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.stdout + done.stderr, done.returncode


def write_scene(path):
    """Write mjlab's Go1 on a floor as a file for MuJoCo."""
    spec = Entity(go1_constants.get_go1_robot_cfg()).spec
    spec.meshdir = str(go1_constants.GO1_XML.parent / "assets")
    plane = mujoco.mjtGeom.mjGEOM_PLANE
    spec.worldbody.add_geom(name="floor", type=plane, size=[0, 0, 0.05])
    spec.compile()
    path.write_text(spec.to_xml())


@published
def test_gaitkeeper_reads_what_the_robot_needs(bundle, tmp_path):
    printed, status = gaitkeeper(bundle, tmp_path, "inspect", "--out", "contract.yaml")
    assert status == 0, printed
    contract = yaml.safe_load((tmp_path / "contract.yaml").read_text())
    described = json.loads((bundle / "policy.json").read_text())
    robot, (group,) = described["robot"], described["observation_groups"].values()
    (action,) = robot["actions"]
    assert contract["policy_io"]["joints"]["names"] == action["joint_names"]
    read = contract["policy_io"]["observation_groups"]["policy"]["terms"]
    assert [(term["source_name"], term["dim"]) for term in read] == [
        (term["name"], *term["shape"]) for term in group["terms"]
    ]
    control = contract["control"]
    for key, values in (
        (control["actions"]["joint_pos"]["scale"], action["scale"]),
        (control["actions"]["joint_pos"]["offset"], action["offset"]),
        (control["actuators"]["kp"], robot["joint_stiffness"]),
        (control["actuators"]["kd"], robot["joint_damping"]),
    ):
        assert [key[joint] for joint in action["joint_names"]] == pytest.approx(values)


@published
def test_gaitkeeper_replays_the_recorded_trajectory(bundle):
    golden = np.load(bundle / "golden.npz")
    (group,) = (name for name in golden.files if name.startswith("obs/"))
    assert golden["reset"].sum() > 1
    actions = OnnxPolicy(bundle / "policy.onnx")(golden[group], reset=golden["reset"])
    np.testing.assert_allclose(actions, golden["actions"], atol=1e-5)


def test_the_student_walks_in_gaitkeepers_simulation(tmp_path):
    write_scene(tmp_path / "scene.xml")
    asked = "--mjcf scene.xml --command 0.5,0,0 --seconds 4 --record log.npz --json run.json"
    printed, status = gaitkeeper(BUNDLES[0], tmp_path, "run", *CONTROL_STEP, *asked.split())
    assert status == 0, printed
    ran = json.loads((tmp_path / "run.json").read_text())
    assert ran["fell_at"] is None
    assert ran["dist"] > 0.8  # of 2 m asked for
    printed, _ = gaitkeeper(BUNDLES[0], tmp_path, "verify", "log.npz", *CONTROL_STEP)
    assert "B: pass" in printed
    assert "C: pass" in printed

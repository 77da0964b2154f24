"""The folder for Unitree's programs acts like the policy, and its config has the known values.

The programs themselves are not installed. Our own code loads and calls the policy instead.
"""

import copy
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import yaml
from rsl_rl.models import MLPModel, RNNModel
from support.helpers import write_drawn_bundle
from tensordict import TensorDict

from rsl_tbptt.tools.robot.unitree import config_text
from rsl_tbptt.tools.robot.verify import verify

TOLERANCE = 1e-5
"""Tolerance for float32 in another operation order; actions are of order 1."""
JOINTS, MOTORS = ["hip", "thigh", "calf"], ["calf", "hip", "thigh", "arm"]
"""Joints as training sorts them, and motors: another order, which is not its own inverse.

The policy moves no arm."""
DEFAULTS = {"hip": 0.1, "thigh": 0.7, "calf": -1.4}
SCALES = {"hip": 0.2, "thigh": 0.3, "calf": 0.4}


def selecting(joints):
    return {"asset_cfg": {"entity": "robot", "joint_names": [*joints]}}


def term(name, function, width, history=1, **options):
    options = {"scale": None, "clip": None, "noisy": True, "parameters": {}} | options
    history_length = 0 if history == 1 else history
    named = {"name": name, "function": function, "shape": [width * history]}
    return named | options | {"history_length": history_length, "flatten_history_dim": True}


def terms_with(joints=JOINTS, histories=(1, 1)):
    """Return terms with joints in an order; histories are of positions and of the rest."""
    (pos, rest), selected = histories, selecting(joints)
    imu, velocity = {"sensor_name": "robot/imu_ang_vel"}, {"command_name": "twist"}
    return [
        term("turn", "builtin_sensor", 3, rest, scale=0.25, parameters=imu),  # mjlab's function
        term("gravity", "projected_gravity", 3, rest),
        term("command", "generated_commands", 3, rest, scale=[2.0, 2.0, 0.5], parameters=velocity),
        term("joint_pos", "joint_pos_rel", 3, pos, parameters=selected),
        term("joint_vel", "joint_vel_rel", 3, rest, scale=0.05, parameters=selected),
        term("actions", "last_action", 3, rest),
    ]


TERMS = terms_with()
RANGES = {"lin_vel_x": [-1.0, 1.0], "lin_vel_y": [-0.5, 0.5], "ang_vel_z": [-1.0, 1.0]}


def moving(joints):
    action = {"name": "legs", "kind": "JointPositionAction", "width": 3, "clip": None}
    action |= {"joint_names": [*joints], "entity": "robot"}
    action |= {"scale": [SCALES[j] for j in joints], "offset": [DEFAULTS[j] for j in joints]}
    return action


ROBOT = {
    "observation_groups": {"policy": {"shape": [18], "terms": TERMS}},
    "step_dt": 0.02,
    "joint_names": JOINTS,
    "joint_sdk_names": MOTORS,
    "joint_stiffness": [20.0, 40.0, 30.0],
    "joint_damping": [0.5, 1.0, 0.75],
    "default_joint_pos": [*DEFAULTS.values()],
    "command_ranges": {"twist": RANGES},
    "actions": [moving(JOINTS)],
}


def changed(robot=ROBOT, **entries):
    """Return the robot with changed entries; None removes one."""
    robot = {**copy.deepcopy(robot), **entries}
    return {name: value for name, value in robot.items() if value is not None}


def with_terms(*terms, **entries):
    group = {"shape": [sum(t["shape"][0] for t in terms)], "terms": [*terms], **entries}
    return changed(observation_groups={"policy": group})


def with_term(place, **entries):
    return with_terms(*TERMS[:place], {**TERMS[place], **entries}, *TERMS[place + 1 :])


def with_action(**entries):
    return changed(actions=[moving(JOINTS) | entries])


def write(folder, kind, robot=ROBOT):
    """Write the bundle of a policy of one group, and return its golden trajectory."""
    torch.manual_seed(0)
    (width,) = robot["observation_groups"]["policy"]["shape"]
    obs = TensorDict({"policy": torch.randn(50, width)}, batch_size=[50])
    options: dict[str, Any] = {"hidden_dims": [8]}
    if kind != "mlp":
        options |= {"rnn_type": kind, "rnn_hidden_dim": 12, "rnn_num_layers": 2}
    model = MLPModel if kind == "mlp" else RNNModel
    policy = model(obs, {"actor": ["policy"]}, "actor", len(JOINTS), **options)
    return write_drawn_bundle(folder, policy.eval(), obs[:1].to_dict(), 20, robot, unitree=True)


def test_verify_replays_the_folder_and_detects_a_fault_in_it(tmp_path):
    golden = write(tmp_path, "lstm")
    differences = verify(tmp_path)
    assert differences.keys() == {"onnx", "unitree"}
    assert max(differences.values()) < TOLERANCE
    np.savez(tmp_path / "golden.npz", **{**golden, "actions": golden["actions"] + 0.1})
    assert min(verify(tmp_path).values()) > 0.01


@pytest.mark.long  # compiles C++
@pytest.mark.parametrize("kind", ["lstm", "gru", "mlp"])
def test_unitrees_class_runs_the_c_code_of_the_page_and_resets_it(request, tmp_path, kind):
    pytest.importorskip("emx_onnx_cgen")
    golden = write(tmp_path, kind)
    code, built, program = (tmp_path / name for name in ("policy.c", "policy.o", "program"))
    page = request.config.rootpath / "docs" / "howto" / "runtimes.md"
    (line,) = re.findall(r"^emx-onnx-cgen .*$", page.read_text(), re.MULTILINE)
    words = line.split()
    words[2:4] = [str(tmp_path / "unitree" / "exported" / "policy.onnx"), str(code)]
    words[0] = str(Path(sys.executable).with_name(words[0]))
    subprocess.run(words, check=True)
    assert "alloc" not in code.read_text()
    subprocess.run(["gcc", "-std=c99", "-O1", "-c", code, "-o", built], check=True)
    rows = np.column_stack([golden["reset"], golden["obs/policy"]]).astype(np.float32)
    main = Path(__file__).with_name("replay_in_unitree.cpp")
    for form in ("-DBY_GROUP", "-DBY_VECTOR"):
        strict = ["-std=c++17", "-Wall", "-Wextra", "-Werror", form, f"-I{tmp_path / 'unitree'}"]
        sources = [f"-DWIDTH={rows.shape[1]}", main, built, "-o", program, "-lm"]
        subprocess.run(["g++", *strict, *sources], check=True)
        result = subprocess.run([program], input=rows.tobytes(), capture_output=True, check=True)
        found = np.frombuffer(result.stdout, np.float32).reshape(golden["actions"].shape)
        np.testing.assert_allclose(found, golden["actions"], atol=TOLERANCE)


def config_of(robot):
    """Return the values of a config, and the comments that say what is missing."""
    others = {name: value for name, value in robot.items() if name != "observation_groups"}
    groups = robot.get("observation_groups", {})
    text = config_text({"checkpoint": "m.pt", "observation_groups": groups, "robot": others})
    first, *lines = text.splitlines()
    assert first == "# m.pt, trained with a control step of 0.02 s."
    return yaml.safe_load(text), [line for line in lines if line.startswith("#")]


COMPLETE = [
    ROBOT,
    changed(joint_sdk_names=MOTORS[::-1]),
    with_action(offset=0.0),
    with_action(clip=[[-1.0, 1.0]] * 3),
    with_term(5, clip=[-5.0, 5.0], scale=0.5),
    with_term(3, scale=[1.0, 2.0, 1.0]),
]


@pytest.mark.parametrize("robot", COMPLETE)
def test_a_complete_config_has_motors_commands_and_control_step(robot):
    values, missing = config_of(robot)
    assert missing == []
    assert [robot["joint_sdk_names"][motor] for motor in values["joint_ids_map"]] == JOINTS
    assert values["commands"] == {"base_velocity": {"ranges": RANGES}}
    assert values["step_dt"] == 0.02


FOOT, SPEED = ({"sensor_name": f"robot/{name}"} for name in ("foot", "imu_lin_vel"))
UNTOLD = {name: value for name, value in TERMS[3].items() if name != "parameters"}
SCAN = term("x\njoint_ids_map: [0]", "scan", 2)
OTHER = {"asset_cfg": {"entity": "x"}}
INCOMPLETE = [
    ("the motors of ['hip', 'thigh', 'calf']", changed(joint_sdk_names=None)),
    ("joint_stiffness is not known", changed(joint_stiffness=None)),
    ("actions are [] of ['hip', 'thigh', 'calf']", changed(actions=None)),
    ("actions are ['JointPositionAction'] of ['calf']", with_action(joint_names=["calf"])),
    ("actions are ['JointVelocityAction']", with_action(kind="JointVelocityAction")),
    ("scale or offset of actions is not known", with_action(scale=None)),
    ("not every observation group tells its terms", changed(observation_groups=None)),
    ("not every observation", with_terms(*TERMS[:3], UNTOLD, *TERMS[4:])),
    ("joins histories by time", with_terms(*TERMS, history_order="time")),
    ("no observation like heights", with_term(5, name="heights", function="scan")),
    ("no observation like x joint_ids_map: [0]", with_terms(*TERMS[:-1], SCAN)),
    ("no observation like speed", with_term(0, name="speed", parameters=SPEED)),
    ("no observation like speed", with_term(0, name="speed", function="base_lin_vel")),
    ("no observation like turn", with_term(0, parameters=FOOT)),
    ("the modifiers of ['gravity']", with_term(1, modifiers=[{"name": "bias"}])),
    ("gravity has the parameter frame: foot", with_term(1, parameters={"frame": "foot"})),
    ("parameter asset_cfg: {'entity'", with_term(3, parameters=OTHER)),
    ("joint_pos has ['arm']", with_term(3, shape=[1], parameters=selecting(["arm"]))),
    ("joint_vel has ['calf'", with_term(4, parameters=selecting(JOINTS[::-1]))),
    ("command is not known to be a velocity", changed(command_ranges=None)),
    ("a velocity", changed(command_ranges={"twist": {"pos_x": [0.0, 1.0]}})),
    ("training clips actions at 1.0", changed(clip_actions=1.0)),
    ("expected each once", with_terms(TERMS[3], TERMS[3])),
]


@pytest.mark.parametrize(("message", "robot"), INCOMPLETE)
def test_missing_values_are_listed_and_the_program_refuses_the_file(message, robot):
    values, missing = config_of(robot)
    assert any(message in line for line in missing)
    assert values["joint_ids_map"] is None


def measured(seen, joints, defaults):
    """Return what a robot measures, by Isaac Lab's functions, with joints in an order."""
    q, dq = (np.array([seen[name][joint] for joint in joints]) for name in ("q", "dq"))
    vectors = {name: seen[name] for name in ("base_ang_vel", "projected_gravity")}
    return vectors | {
        "velocity_commands": seen["velocity_commands"],
        "joint_pos_rel": q - defaults,
        "joint_vel_rel": dq,
    }


def history_of(rows, length):
    return [rows[max(len(rows) - length + step, 0)] for step in range(length)]


def trained_program(folder, robot):
    """Return the step of training, from measurements to targets by joint."""
    [group], [action] = robot["observation_groups"].values(), robot["actions"]
    policy: Any = onnxruntime.InferenceSession(folder / "policy.onnx")
    rows, last = {each["name"]: [] for each in group["terms"]}, np.zeros(3)
    names: Any = {"builtin_sensor": "base_ang_vel", "generated_commands": "velocity_commands"}

    def step(seen):
        nonlocal last
        obs = []
        for each in group["terms"]:
            joints = each["parameters"].get("asset_cfg", {}).get("joint_names", JOINTS)
            known = measured(seen, joints, [DEFAULTS[joint] for joint in joints])
            values = (known | {"last_action": last})[names.get(each["function"], each["function"])]
            rows[each["name"]].append(np.array(each["scale"] or 1.0) * values)
            obs += history_of(rows[each["name"]], max(each["history_length"], 1))
        (actions,) = policy.run(None, {"policy": np.concatenate(obs)[None].astype(np.float32)})
        last = actions[0]
        targets = last * action["scale"] + action["offset"]
        return dict(zip(action["joint_names"], targets, strict=True))

    return step


def unitree_program(folder):
    """Return gains by motor, and the step of Unitree's programs."""
    cfg = yaml.safe_load((folder / "unitree" / "params" / "deploy.yaml").read_text())
    policy: Any = onnxruntime.InferenceSession(folder / "unitree" / "exported" / "policy.onnx")
    motors, [action] = [MOTORS[motor] for motor in cfg["joint_ids_map"]], cfg["actions"].values()
    actions, rows = np.zeros(3), {name: [] for name in cfg["observations"]}

    def step(seen):
        nonlocal actions
        known = measured(seen, motors, cfg["default_joint_pos"]) | {"last_action": actions}
        obs = []
        for name, each in cfg["observations"].items():
            rows[name].append(known[name] * each["scale"])
            obs += history_of(rows[name], each["history_length"])
        (found,) = policy.run(None, {"obs": np.concatenate(obs)[None].astype(np.float32)})
        actions = found[0]
        targets = actions * action["scale"] + action["offset"]
        return dict(zip(motors, targets, strict=True))

    assert cfg["stiffness"][3:] == cfg["damping"][3:] == [0.0]  # the arm's
    return cfg["stiffness"][:3], cfg["damping"][:3], step


@pytest.mark.parametrize("joints", [JOINTS, JOINTS[::-1]])
@pytest.mark.parametrize("histories", [(1, 1), (4, 2)])
def test_the_program_sends_each_motor_what_training_sends_its_joint_from_the_first_step(
    tmp_path, joints, histories
):
    robot = changed(with_terms(*terms_with(joints, histories)), actions=[moving(joints)])
    write(tmp_path, "mlp", robot)
    assert max(verify(tmp_path).values()) < TOLERANCE
    stiffness, damping, program = unitree_program(tmp_path)
    assert [stiffness, damping] == [[30.0, 20.0, 40.0], [0.75, 0.5, 1.0]]
    trained, random = trained_program(tmp_path, robot), np.random.default_rng(0)
    for _ in range(6):
        vectors = ("base_ang_vel", "projected_gravity", "velocity_commands")
        seen: dict[str, Any] = {each: random.normal(size=3) for each in vectors}
        seen |= {each: {joint: random.normal() for joint in JOINTS} for each in ("q", "dq")}
        assert program(seen) == pytest.approx(trained(seen), abs=TOLERANCE)

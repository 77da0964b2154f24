"""Each target acts like the policy in its program's way, and its config has the known values.

The programs themselves are not installed. Our own code loads and calls the policies instead.
"""

import copy
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import yaml
from rsl_rl.models import MLPModel, RNNModel
from support.helpers import write_drawn_bundle
from tensordict import TensorDict

from rsl_tbptt.tools.robot.runtime_configs import rl_sar_config, unitree_config, write_yaml
from rsl_tbptt.tools.robot.targets import TARGETS, Exported, check_targets
from rsl_tbptt.tools.robot.verify import verify

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit")

TOLERANCE = 1e-5
"""Tolerance for float32 in another operation order; actions are of order 1."""


def term(name, function, width, history=1, **options):
    options = {"scale": None, "clip": None, "noisy": True, "parameters": {}} | options
    history_length = 0 if history == 1 else history
    named = {"name": name, "function": function, "shape": [width * history]}
    return named | options | {"history_length": history_length, "flatten_history_dim": True}


IMU = {"sensor_name": "robot/imu_ang_vel"}
VELOCITY = {"command_name": "twist"}
TERMS = [
    term("base_ang_vel", "builtin_sensor", 3, scale=0.25, parameters=IMU),  # mjlab's function
    term("gravity", "projected_gravity", 3),
    term("command", "generated_commands", 3, scale=[2.0, 2.0, 0.5], parameters=VELOCITY),
    term("joint_pos", "joint_pos_rel", 2),
    term("joint_vel", "joint_vel_rel", 2, scale=0.05),
    term("actions", "last_action", 2),
]
RANGES = {"lin_vel_x": [-1.0, 1.0], "lin_vel_y": [-0.5, 0.5], "ang_vel_z": [-1.0, 1.0]}
ROBOT = {
    "name": "go2",
    "observation_groups": {"policy": {"shape": [15], "terms": TERMS}},
    "step_dt": 0.02,
    "joint_names": ["hip", "knee"],
    "joint_sdk_names": ["knee", "hip", "arm"],
    "joint_stiffness": [20.0, 40.0],
    "joint_damping": [0.5, 1.0],
    "default_joint_pos": [0.7, -1.4],
    "command_ranges": {"twist": RANGES},
    "actions": [
        {"name": "legs", "kind": "JointPositionAction", "width": 2, "scale": 0.3, "clip": None}
        | {"joint_names": ["hip", "knee"], "offset": [0.7, -1.4], "entity": "robot"}
    ],
}


def changed(robot=ROBOT, **entries):
    """Return the robot with changed entries; None removes one."""
    robot = {**copy.deepcopy(robot), **entries}
    return {name: value for name, value in robot.items() if value is not None}


def with_terms(*terms, **entries):
    group = {"shape": [sum(t["shape"][0] for t in terms)], "terms": [*terms], **entries}
    return changed(observation_groups={"policy": group})


def with_term(place, terms=TERMS, **entries):
    return with_terms(*terms[:place], {**terms[place], **entries}, *terms[place + 1 :])


def with_action(robot=ROBOT, **entries):
    return changed(robot, actions=[{**ROBOT["actions"][0], **entries}])


def selecting(joints):
    return {"asset_cfg": {"entity": "robot", "joint_names": [*joints]}}


def write(folder, kind="lstm", *, robot=ROBOT, targets=tuple(TARGETS)):
    """Write the bundle of a policy of one group, and return its golden trajectory."""
    torch.manual_seed(0)
    (width,) = robot["observation_groups"]["policy"]["shape"]
    obs = TensorDict({"policy": torch.randn(50, width)}, batch_size=[50])
    options: dict[str, Any] = {"hidden_dims": [8]}
    if kind != "mlp":
        options |= {"rnn_type": kind, "rnn_hidden_dim": 12, "rnn_num_layers": 2}
    model = MLPModel if kind == "mlp" else RNNModel
    policy = model(obs, {"actor": ["policy"]}, "actor", len(robot["joint_names"]), **options)
    return write_drawn_bundle(folder, policy.eval(), obs[:1].to_dict(), 20, robot, targets=targets)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle")
    return folder, write(folder)


@pytest.mark.parametrize("remembers", [True, False])
def test_verify_replays_every_target_and_detects_a_fault_in_it(bundle, tmp_path, remembers):
    folder, golden = tmp_path, bundle[1]
    if remembers:
        shutil.copytree(bundle[0], folder, dirs_exist_ok=True)
    else:
        golden = write(folder, "mlp")
    differences = verify(folder, [folder])
    assert differences.keys() == {"onnx", "torchscript", *TARGETS}
    assert max(differences.values()) < TOLERANCE
    np.savez(folder / "golden.npz", **{**golden, "actions": golden["actions"] + 0.1})
    assert min(verify(folder, [folder]).values()) > 0.01


def test_a_target_that_is_gone_is_refused_with_the_way_to_do_without():
    check_targets([*TARGETS])
    with pytest.raises(
        ValueError, match=r"--target is 'c', expected one of .*compiles it as C; see"
    ):
        check_targets(["unitree", "c"])


UNITREE = r"""
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

/* Stands in for the interface by which unitree_rl_lab and unitree_rl_mjlab call a policy. */
namespace isaaclab {
#ifdef BY_GROUP
using Observations = std::unordered_map<std::string, std::vector<float>>;
static Observations observed(std::vector<float> obs) { return {{"obs", obs}}; }
#else
using Observations = std::vector<float>;
static Observations observed(std::vector<float> obs) { return obs; }
#endif
class Algorithms {
public:
    virtual ~Algorithms() = default;
    virtual std::vector<float> act(Observations obs) = 0;
    std::vector<float> get_action() { std::lock_guard<std::mutex> l(act_mtx_); return action; }
    std::vector<float> action;
protected:
    std::mutex act_mtx_;
};
} // namespace isaaclab

#include "policy_unitree.h"

struct Env {
    std::unique_ptr<isaaclab::Algorithms> alg;
    long episode_length = 0;
    void reset() { episode_length = 0; }
    void step(std::vector<float> obs) { ++episode_length; alg->act(isaaclab::observed(obs)); }
};

int main() {
    Env env;
    env.alg = std::make_unique<isaaclab::RecurrentPolicy>(env.episode_length);
    std::vector<float> row(16);
    while (std::fread(row.data(), sizeof(float), 16, stdin) == 16) {
        if (row[0]) env.reset();
        env.step({row.begin() + 1, row.end()});
        std::vector<float> actions = env.alg->get_action();
        std::fwrite(actions.data(), sizeof(float), actions.size(), stdout);
    }
    try {
        env.step({1.0f});
    } catch (const std::runtime_error &error) {
        return std::string(error.what()).find("gives 1 observations") == std::string::npos;
    }
    return 1;
}
"""


def documented_command():
    """Return the command of the page that compiles a policy as C, as words."""
    page = Path(__file__).parents[2] / "docs" / "howto" / "runtimes.md"
    (line,) = re.findall(r"^emx-onnx-cgen .*$", page.read_text(), re.MULTILINE)
    return line.split()


@pytest.mark.long  # compiles C++
@pytest.mark.parametrize("kind", ["lstm", "gru", "mlp"])
def test_unitrees_class_runs_the_c_code_of_the_page_and_resets_it(tmp_path, kind):
    pytest.importorskip("emx_onnx_cgen")
    golden = write(tmp_path, kind, targets=("unitree",))
    code, built, program = (tmp_path / name for name in ("policy.c", "policy.o", "program"))
    words = documented_command()
    words[2:4] = [str(tmp_path / "unitree" / "exported" / "policy.onnx"), str(code)]
    words[0] = str(Path(sys.executable).with_name(words[0]))
    subprocess.run(words, check=True)
    assert "alloc" not in code.read_text()
    subprocess.run(["gcc", "-std=c99", "-O1", "-c", code, "-o", built], check=True)
    (tmp_path / "main.cpp").write_text(UNITREE)
    rows = np.column_stack([golden["reset"], golden["obs/policy"]]).astype(np.float32)
    for form in ("-DBY_GROUP", "-DBY_VECTOR"):
        strict = ["-std=c++17", "-Wall", "-Wextra", "-Werror", form, f"-I{tmp_path / 'unitree'}"]
        sources = [tmp_path / "main.cpp", built, "-o", program, "-lm"]
        subprocess.run(["g++", *strict, *sources], check=True)
        result = subprocess.run([program], input=rows.tobytes(), capture_output=True, check=True)
        found = np.frombuffer(result.stdout, np.float32).reshape(golden["actions"].shape)
        np.testing.assert_allclose(found, golden["actions"], atol=TOLERANCE)


GATES = {"model_name": rl_sar_config, "joint_ids_map": unitree_config}
"""Each program's key that is null if something is missing, and its config."""


def metadata_of(robot) -> dict[str, Any]:
    others = {name: value for name, value in robot.items() if name != "observation_groups"}
    groups, actions = robot.get("observation_groups", {}), {"actions": {"shape": [2]}}
    known = {"checkpoint": "m.pt", "observation_groups": groups, "outputs": actions}
    return known | {"robot": others}


def config_of(folder, robot, gate):
    """Write a config; return its values, and the comments that say what is missing."""
    metadata, path = metadata_of(robot), folder / gate
    write_yaml(path, metadata, GATES[gate](metadata), gate, under="go2/a")
    first, *lines = path.read_text().splitlines()
    assert first == "# m.pt, trained with a control step of 0.02 s."
    values = yaml.safe_load(path.read_text())["go2/a"]
    return values, [line for line in lines if line.startswith("#")]


def test_configs_have_the_limits_of_actions_and_commands(tmp_path):
    clipped = config_of(tmp_path, changed(clip_actions=4.0), "model_name")[0]
    assert (clipped["clip_actions_lower"], clipped["clip_actions_upper"]) == ([-4.0] * 2, [4.0] * 2)
    rl_sar, unitree = (config_of(tmp_path, ROBOT, gate)[0] for gate in GATES)
    assert (rl_sar["clip_obs"], rl_sar["clip_actions_lower"]) == (float("inf"), [])
    assert unitree["commands"] == {"base_velocity": {"ranges": RANGES}}
    assert unitree["step_dt"] == 0.02


FOOT, SPEED = ({"sensor_name": f"robot/{name}"} for name in ("foot", "imu_lin_vel"))
UNTOLD = {name: value for name, value in TERMS[3].items() if name != "parameters"}
BOTH, RL_SAR, UNITREE_ALONE = [*GATES], ["model_name"], ["joint_ids_map"]
INCOMPLETE = [
    ("the motors of ['hip', 'knee']", changed(joint_sdk_names=None), BOTH),
    ("joint_stiffness is not known", changed(joint_stiffness=None), BOTH),
    ("actions are [] of ['hip', 'knee']", changed(actions=None), BOTH),
    ("actions are ['JointPositionAction'] of ['knee']", with_action(joint_names=["knee"]), BOTH),
    ("actions are ['JointVelocityAction']", with_action(kind="JointVelocityAction"), BOTH),
    ("scale or offset of actions is not known", with_action(scale=None), BOTH),
    ("not every observation group tells its terms", changed(observation_groups=None), BOTH),
    ("not every observation", with_terms(*TERMS[:3], UNTOLD, *TERMS[4:]), BOTH),
    ("joins histories by time", with_terms(*TERMS, history_order="time"), BOTH),
    ("no observation like heights", with_term(5, name="heights", function="scan"), BOTH),
    ("no observation like speed", with_term(0, name="speed", parameters=SPEED), BOTH),
    ("no observation like speed", with_term(0, name="speed", function="base_lin_vel"), BOTH),
    ("no observation like base_ang_vel", with_term(0, parameters=FOOT), BOTH),
    ("the modifiers of ['gravity']", with_term(1, modifiers=[{"name": "bias"}]), BOTH),
    ("gravity has the parameter frame: foot", with_term(1, parameters={"frame": "foot"}), BOTH),
    (
        "parameter asset_cfg: {'entity'",
        with_term(3, parameters={"asset_cfg": {"entity": "x"}}),
        BOTH,
    ),
    ("has the joints ['arm']", with_term(3, shape=[1], parameters=selecting(["arm"])), BOTH),
    ("command is not known to be a velocity", changed(command_ranges=None), BOTH),
    ("a velocity", changed(command_ranges={"twist": {"pos_x": [0.0, 1.0]}}), BOTH),
    (
        "joint_vel has ['knee', 'hip']",
        with_term(4, parameters=selecting(["knee", "hip"])),
        UNITREE_ALONE,
    ),
    ("training clips actions at 1.0", changed(clip_actions=1.0), UNITREE_ALONE),
    ("expected each once", with_terms(TERMS[3], TERMS[3]), UNITREE_ALONE),
    ("the first motors of ['arm',", changed(joint_sdk_names=["arm", "hip", "knee"]), RL_SAR),
    ("ROBOT, in this path and below", changed(name=None), RL_SAR),
    ("offsets of actions are [0.0, 0.0]", with_action(offset=0.0), RL_SAR),
    ("training clips the targets", with_action(clip=[[-1.0, 1.0]] * 2), RL_SAR),
    ("{'actions': [-5.0, 5.0]}", with_term(5, clip=[-5.0, 5.0]), RL_SAR),
    ("actions is scaled by [0.5, 0.5]", with_term(5, scale=0.5), RL_SAR),
    ("joint_pos is scaled by [1.0, 2.0]", with_term(3, scale=[1.0, 2.0]), RL_SAR),
]
"""What is missing for the configs of rl_sar, of Unitree's programs or of both."""


@pytest.mark.parametrize(("message", "robot", "gates"), INCOMPLETE)
def test_missing_values_are_listed_and_the_program_refuses_the_file(
    tmp_path, message, robot, gates
):
    for gate in GATES:
        values, missing = config_of(tmp_path, robot, gate)
        assert any(message in line for line in missing) == (gate in gates)
        assert (values[gate] is None) == (gate in gates)


LEGS, KINDS = ("FR", "FL", "RR", "RL"), ("hip", "thigh", "calf")
MOTORS = [f"{leg}_{kind}" for leg in LEGS for kind in KINDS]
JOINTS = [f"{leg}_{kind}" for kind in KINDS for leg in ("FL", "FR", "RL", "RR")]
"""A Go2's motors, and its joints as Isaac Lab sorts them."""
BY_NAME = {name: 0.1 * place - 0.5 for place, name in enumerate(MOTORS)}
"""A default position, from which every other number of a joint follows as well."""


def go2(actions=JOINTS, positions=None, velocities=None, histories=(1, 1)):
    """Return a Go2 whose terms and actions have joints in these orders."""
    pos, vel = histories
    of_positions = {"asset_cfg": {"entity": "robot"}} if positions is None else selecting(positions)
    of_velocities = {} if velocities is None else selecting(velocities)
    terms = [
        term("w", "base_ang_vel", 3, vel, scale=0.5),
        term("command", "generated_commands", 3, vel, scale=2.0, parameters=VELOCITY),
        term("v", "joint_vel_rel", len(velocities or JOINTS), vel, parameters=of_velocities),
        term("q", "joint_pos_rel", len(positions or JOINTS), pos, parameters=of_positions),
        term("a", "last_action", 12, vel),
    ]
    action = {"joint_names": [*actions], "width": 12}
    action |= {"scale": [0.2 + 0.1 * BY_NAME[joint] for joint in actions]}
    action |= {"offset": [BY_NAME[joint] for joint in actions]}
    return changed(
        with_terms(*terms),
        joint_names=JOINTS,
        joint_sdk_names=MOTORS,
        joint_stiffness=[30.0 + BY_NAME[joint] for joint in JOINTS],
        joint_damping=[1.0 + BY_NAME[joint] for joint in JOINTS],
        default_joint_pos=[BY_NAME[joint] for joint in JOINTS],
        actions=[{**ROBOT["actions"][0], **action}],
    )


def history_of(rows, length):
    return [rows[max(len(rows) - length + step, 0)] for step in range(length)]


def trained_program(folder, robot):
    """Return the step of training, from measurements to targets by joint."""
    [group], [action] = robot["observation_groups"].values(), robot["actions"]
    policy: Any = onnxruntime.InferenceSession(folder / "policy.onnx")
    rows, last = {each["name"]: [] for each in group["terms"]}, dict.fromkeys(JOINTS, 0.0)

    def step(seen):
        obs = []
        for each in group["terms"]:
            joints = each["parameters"].get("asset_cfg", {}).get("joint_names", JOINTS)
            values = {
                "w": seen["gyroscope"],
                "command": seen["command"],
                "v": [seen["dq"][joint] for joint in joints],
                "q": [seen["q"][joint] - BY_NAME[joint] for joint in joints],
                "a": [last[joint] for joint in action["joint_names"]],
            }[each["name"]]
            rows[each["name"]].append((each["scale"] or 1.0) * np.array(values))
            obs += history_of(rows[each["name"]], max(each["history_length"], 1))
        (actions,) = policy.run(None, {"policy": np.concatenate(obs)[None].astype(np.float32)})
        last.update(zip(action["joint_names"], actions[0], strict=True))
        scales = dict(zip(action["joint_names"], action["scale"], strict=True))
        return {joint: last[joint] * scales[joint] + BY_NAME[joint] for joint in JOINTS}

    return step


def rl_sar_program(folder):
    """Return gains by motor, and rl_sar's step from measurements to targets by motor."""
    path = folder / "rl_sar" / "policy" / "go2" / "rsl_tbptt"
    params = yaml.safe_load((path / "config.yaml").read_text())["go2/rsl_tbptt"]
    policy = torch.jit.load(path / params["model_name"])
    motors = [MOTORS[motor] for motor in params["joint_mapping"]]
    actions, buffer = np.zeros(12), None

    @torch.no_grad()
    def step(seen):
        nonlocal actions, buffer
        q, dq = (np.array([seen[name][motor] for motor in motors]) for name in ("q", "dq"))
        terms = {
            "ang_vel": seen["gyroscope"] * params["ang_vel_scale"],
            "commands": seen["command"] * np.array(params["commands_scale"]),
            "dof_pos": (q - params["default_dof_pos"]) * params["dof_pos_scale"],
            "dof_vel": dq * params["dof_vel_scale"],
            "actions": actions,
        }
        newest = [terms[name] for name in params["observations"]]
        ages = params["observations_history"] or [0]
        if buffer is None:  # it begins with zeros
            buffer = [[np.zeros_like(each) for each in newest]] * (max(ages) + 1)
        buffer = [newest, *buffer[:-1]]
        obs = np.concatenate([buffer[age][i] for i in range(len(newest)) for age in ages])
        actions = policy(torch.from_numpy(obs).float()[None])[0].numpy()
        targets = actions * params["action_scale"] + params["default_dof_pos"]
        return dict(zip(motors, targets, strict=True))

    assert motors == MOTORS  # base.yaml's order: getting up and lying down follow it
    assert [params["fixed_kp"], params["fixed_kd"]] == [params["rl_kp"], params["rl_kd"]]
    return params["rl_kp"], params["rl_kd"], step


def unitree_program(folder):
    """Return gains by motor, and the step of Unitree's programs."""
    cfg = yaml.safe_load((folder / "unitree" / "params" / "deploy.yaml").read_text())
    policy: Any = onnxruntime.InferenceSession(folder / "unitree" / "exported" / "policy.onnx")
    motors, [action] = [MOTORS[motor] for motor in cfg["joint_ids_map"]], cfg["actions"].values()
    actions, rows = np.zeros(12), {name: [] for name in cfg["observations"]}

    def step(seen):
        nonlocal actions
        q, dq = (np.array([seen[name][motor] for motor in motors]) for name in ("q", "dq"))
        terms = {
            "base_ang_vel": seen["gyroscope"],
            "velocity_commands": seen["command"],
            "joint_pos_rel": q - cfg["default_joint_pos"],
            "joint_vel_rel": dq,
            "last_action": actions,
        }
        obs = []
        for name, each in cfg["observations"].items():
            rows[name].append(terms[name] * each["scale"])
            obs += history_of(rows[name], each["history_length"])
        (found,) = policy.run(None, {"obs": np.concatenate(obs)[None].astype(np.float32)})
        actions = found[0]
        targets = actions * action["scale"] + action["offset"]
        return dict(zip(motors, targets, strict=True))

    return cfg["stiffness"], cfg["damping"], step


PROGRAMS = {"rl_sar": rl_sar_program, "unitree": unitree_program}
BACKWARDS, FRONT = JOINTS[::-1], ["FR_calf", "FL_hip", "FL_thigh"]
REORDERED = {
    "as trained": ({}, PROGRAMS),
    "actions": ({"actions": BACKWARDS, "velocities": BACKWARDS, "positions": BACKWARDS}, PROGRAMS),
    "some positions": ({"positions": FRONT}, ["rl_sar"]),
    "velocities": ({"velocities": BACKWARDS}, ["rl_sar"]),
    "history": ({"histories": (3, 3)}, PROGRAMS),
    "histories": ({"histories": (4, 2), "positions": FRONT}, ["rl_sar"]),
}


@pytest.mark.parametrize(("options", "targets"), REORDERED.values(), ids=REORDERED.keys())
def test_programs_send_each_motor_what_training_sends_its_joint_from_the_first_step(
    tmp_path, options, targets
):
    robot = go2(**options)
    write(tmp_path, "mlp", robot=robot, targets=[*targets])
    assert max(verify(tmp_path, [tmp_path]).values()) < TOLERANCE
    for name in targets:
        stiffness, damping, program = PROGRAMS[name](tmp_path)
        assert stiffness == [30.0 + BY_NAME[motor] for motor in MOTORS]
        assert damping == [1.0 + BY_NAME[motor] for motor in MOTORS]
        trained, random = trained_program(tmp_path, robot), np.random.default_rng(0)
        for _ in range(6):
            seen = {name: random.normal(size=3) for name in ("gyroscope", "command")}
            seen |= {each: {joint: random.normal() for joint in JOINTS} for each in ("q", "dq")}
            assert program(seen) == pytest.approx(trained(seen), abs=TOLERANCE)


def test_entering_rl_sars_policy_again_starts_its_history_again(tmp_path):
    write(tmp_path, "mlp", robot=go2(histories=(3, 3)), targets=["rl_sar"])
    policy = torch.jit.load(tmp_path / "rl_sar" / "policy" / "go2" / "rsl_tbptt" / "policy.pt")
    obs = torch.zeros(1, int(policy.order.max()) + 1)
    obs[:, policy.order[0]] = 1.0  # the first step: what rl_sar has not seen is 0 there
    first, second = policy(obs), policy(obs)
    assert not torch.equal(first, second)
    policy.reset()
    assert torch.equal(policy(obs), first)


@pytest.mark.parametrize("name", ["../../x", "/x", "..", "a/b", "", "a\nb", "."])
def test_a_robots_name_cannot_lead_out_of_the_folder(tmp_path, name):
    exported = Exported(onnx.ModelProto(), metadata_of(changed(name=name)), tmp_path / "policy.pt")
    with pytest.raises(ValueError, match=r"name is .*, expected one such as 'go2'"):
        TARGETS["rl_sar"](tmp_path / "bundle", exported)
    assert not [*tmp_path.iterdir()]


def test_rl_sar_says_where_there_is_no_torchscript(tmp_path):
    exported = Exported(onnx.ModelProto(), metadata_of(ROBOT), tmp_path / "policy.pt")
    with pytest.raises(ValueError, match="needs TorchScript"):
        TARGETS["rl_sar"](tmp_path / "bundle", exported)


def test_names_of_a_checkpoint_add_no_lines_to_a_config(tmp_path):
    robot = with_terms(*TERMS[:-1], term("x\n  model_name: other.pt", "scan", 2))
    assert config_of(tmp_path, robot, "model_name")[0]["model_name"] is None

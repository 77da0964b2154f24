"""Each target acts like the policy in its program's way, and its config has the known values.

The programs themselves are not installed. Our own C++ code loads and calls the policies instead.
"""

import copy
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import yaml
from rsl_rl.models import MLPModel, RNNModel
from tensordict import TensorDict

from rsl_tbptt.tools.commands import commands
from rsl_tbptt.tools.robot.c_code import Exported
from rsl_tbptt.tools.robot.export import Recorded, write_bundle
from rsl_tbptt.tools.robot.golden import draw
from rsl_tbptt.tools.robot.runtime_configs import rl_sar_config, unitree_config, write_config
from rsl_tbptt.tools.robot.targets import TARGETS
from rsl_tbptt.tools.robot.verify import verify

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.torch.jit")]
needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

TOLERANCE = 1e-5
"""Tolerance for float32 in another operation order; actions are of order 1."""
STEPS = 20


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
PLAIN = [{**each, "scale": None} for each in TERMS]
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


def with_action(**entries):
    return changed(actions=[{**ROBOT["actions"][0], **entries}])


UNSCALED = with_terms(*PLAIN)
"""A robot that every target fits."""


def write(folder, kind="lstm", robot=UNSCALED, targets=tuple(TARGETS), fault=None):
    """Write the bundle of a policy of one group, and return its golden trajectory."""
    torch.manual_seed(0)
    (width,) = robot["observation_groups"]["policy"]["shape"]
    num_actions = len(robot["joint_names"])
    obs = TensorDict({"policy": torch.randn(50, width)}, batch_size=[50])
    groups = {"actor": ["policy"]}
    if kind == "mlp":
        policy = MLPModel(obs, groups, "actor", num_actions, hidden_dims=[8]).eval()
    else:
        options = {"rnn_type": kind, "rnn_hidden_dim": 12, "rnn_num_layers": 2}
        policy = RNNModel(obs, groups, "actor", num_actions, hidden_dims=[8], **options).eval()
    trajectory = draw(policy, {}, {"policy": obs["policy"][:1]}, STEPS, seed=1)
    if policy.is_recurrent:
        policy.reset()
    if fault is not None:
        fault(policy)
    about = {"checkpoint": "model_5.pt", "iteration": 5}
    write_bundle(folder, Recorded(policy, trajectory, "drawn"), {}, robot, about, targets=targets)
    return trajectory


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle")
    return folder, write(folder)


def assert_golden(found, golden, *, close=True):
    difference = np.abs(np.reshape(found, golden["actions"].shape) - golden["actions"]).max()
    assert difference < TOLERANCE if close else difference > 100 * TOLERANCE


def test_the_command_line_and_the_page_name_every_target(request):
    assert [*TARGETS] == [*commands.TARGETS]
    page = (request.config.rootpath / "docs" / "howto" / "runtimes.md").read_text()
    assert all(f"| [`{name}`](" in page for name in TARGETS)


def assert_all_replayed(folder):
    differences = verify(folder, [folder])
    assert differences.keys() == {"onnx", "torchscript", *TARGETS}
    assert max(differences.values()) < TOLERANCE


@needs_gxx
def test_verify_replays_every_target(bundle):
    assert_all_replayed(bundle[0])


@needs_gxx
def test_policies_without_a_memory_have_the_same_targets(tmp_path):
    write(tmp_path, "mlp")
    assert_all_replayed(tmp_path)


@needs_gxx
def test_verify_detects_a_fault_in_every_target(tmp_path):
    write(tmp_path, "gru", fault=lambda policy: policy.mlp[-1].bias.data.add_(0.1))
    assert min(verify(tmp_path, [tmp_path]).values()) > 0.01


def test_unitree_gym_takes_and_resets_the_policy_as_its_own_lstm(bundle):
    folder, golden = bundle
    policy = torch.jit.load(folder / "unitree_gym" / "policy_lstm_1.pt")
    found = []
    for reset, obs in zip(golden["reset"], golden["obs/policy"], strict=True):
        if reset:
            policy.reset_memory()
        found.append(policy(torch.from_numpy(obs)[None]).detach().numpy())
    assert_golden(found, golden)


LIBTORCH = r"""
#include <torch/script.h>
#include <fstream>
#include <iostream>
#include <iomanip>

/* As rl_sar: load the file where an episode starts, then one row in and one tensor out. */
int main(int argc, char **argv) {
    std::ifstream data(argv[2]);
    bool reload = std::string(argv[3]) == "reload";
    int steps, width;
    data >> steps >> width;
    std::cout << std::setprecision(9);
    torch::jit::Module model = torch::jit::load(argv[1]);
    torch::autograd::GradMode::set_enabled(false);
    for (int step = 0; step < steps; ++step) {
        int reset;
        data >> reset;
        std::vector<float> obs(width);
        for (float &each : obs) data >> each;
        if (reset && reload) model = torch::jit::load(argv[1]);
        auto row = torch::tensor(obs, torch::kFloat32).reshape({1, width});
        auto actions = model.forward({row}).toTensor().contiguous();
        for (int i = 0; i < actions.numel(); ++i) std::cout << actions.data_ptr<float>()[i] << ' ';
    }
}
"""


def write_data(path, golden):
    steps = zip(golden["reset"], golden["obs/policy"], strict=True)
    rows = [[int(reset), *map(repr, obs.tolist())] for reset, obs in steps]
    lines = [[len(rows), golden["obs/policy"].shape[1]], *rows]
    path.write_text("\n".join(" ".join(map(str, line)) for line in lines))


def compile_cpp(folder, text, *words):
    (folder / "main.cpp").write_text(text)
    program = folder / "program"
    command = ["g++", "-std=c++17", folder / "main.cpp", *words, "-o", program]
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert not result.returncode, result.stderr
    return program


def run_cpp(program, *words):
    command = [str(program), *map(str, words)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not result.returncode, result.stderr
    return [float(word) for word in result.stdout.split()]


@needs_gxx
@pytest.mark.long
def test_libtorch_runs_rl_sars_file_and_loading_it_anew_resets_it(bundle, tmp_path):
    root = Path(torch.__file__).parent
    if not (root / "include" / "torch" / "script.h").exists():
        pytest.skip("this torch has no headers")
    folder, golden = bundle
    api = root / "include" / "torch" / "csrc" / "api" / "include"
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    libraries = [f"-L{root / 'lib'}", f"-Wl,-rpath,{root / 'lib'}", "-ltorch_cpu", "-lc10"]
    includes = ["-isystem", root / "include", "-isystem", api]
    program = compile_cpp(tmp_path, LIBTORCH, abi, *includes, *libraries)
    in_motor_order = [*range(9), 10, 9, 12, 11, 14, 13]  # knee, hip instead of hip, knee
    golden = {**golden, "obs/policy": golden["obs/policy"][:, in_motor_order]}
    golden["actions"] = golden["actions"][:, ::-1]
    write_data(tmp_path / "data", golden)
    file = folder / "rl_sar" / "policy" / "go2" / "rsl_tbptt" / "policy.pt"
    assert_golden(run_cpp(program, file, tmp_path / "data", "reload"), golden)
    assert_golden(run_cpp(program, file, tmp_path / "data", "go on"), golden, close=False)


UNITREE = r"""
#include <fstream>
#include <iomanip>
#include <iostream>
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

int main(int, char **argv) {
    std::ifstream data(argv[1]);
    int steps, width;
    data >> steps >> width;
    std::cout << std::setprecision(9);
    Env env;
    env.alg = std::make_unique<isaaclab::RecurrentPolicy>(env.episode_length);
    for (int step = 0; step < steps; ++step) {
        int reset;
        data >> reset;
        std::vector<float> obs(width);
        for (float &each : obs) data >> each;
        if (reset) env.reset();
        env.step(obs);
        for (float each : env.alg->get_action()) std::cout << each << ' ';
    }
    try {
        env.step({1.0f});
    } catch (const std::runtime_error &error) {
        std::cerr << error.what();
        return std::string(error.what()).find("gives 1 observations") == std::string::npos;
    }
    return 1;
}
"""


@needs_gxx
@pytest.mark.parametrize("form", ["-DBY_GROUP", "-DBY_VECTOR"])
def test_unitrees_class_runs_the_c_code_and_resets_it_with_the_environment(bundle, tmp_path, form):
    folder, golden = bundle
    code, built = folder / "unitree" / "c", tmp_path / "policy.o"
    command = ["gcc", "-std=c99", "-O1", "-c", str(code / "policy.c"), "-o", str(built)]
    subprocess.run(command, check=True)
    strict = ("-Wall", "-Wextra", "-pedantic", "-Werror")
    program = compile_cpp(tmp_path, UNITREE, form, *strict, f"-I{code}", built, "-lm")
    write_data(tmp_path / "data", golden)
    assert_golden(run_cpp(program, tmp_path / "data"), golden)


def test_legged_control2_has_matrices_for_states(bundle):
    folder, golden = bundle
    path = folder / "legged_control2" / "policy.onnx"
    session = onnxruntime.InferenceSession(path)
    inputs = {each.name: each.shape for each in session.get_inputs()}
    outputs = {each.name: each.shape for each in session.get_outputs()}
    assert inputs == {"obs": [1, 15], "h_in": [1, 24], "c_in": [1, 24]}
    assert outputs == {"actions": [1, 2], "h_out": [1, 24], "c_out": [1, 24]}
    found = []
    for reset, obs in zip(golden["reset"], golden["obs/policy"], strict=True):
        if reset:
            h = c = np.zeros((1, 24), np.float32)
        actions, h, c = session.run(None, {"obs": obs[None], "h_in": h, "c_in": c})
        found.append(actions)
    assert_golden(found, golden)
    np.testing.assert_allclose(h.reshape(2, 12), golden["h"][-1], atol=TOLERANCE)
    written, of_bundle = (
        {entry.key: entry.value for entry in onnx.load(file).metadata_props}
        for file in (path, folder / "policy.onnx")
    )
    assert json.loads(written.pop("state_shapes")) == [[1, 24], [1, 24]]
    assert json.loads(of_bundle.pop("state_shapes")) == [[2, 1, 12], [2, 1, 12]]
    assert written.pop("observation_history_lengths") == "1,1,1,1,1,1"
    assert written == of_bundle


CONFIG = "rl_sar/policy/{}/rsl_tbptt/config.yaml"
DEPLOY = "unitree/params/deploy.yaml"


def test_configs_have_the_known_values(tmp_path):
    write(folder := tmp_path, robot=ROBOT, targets=("rl_sar", "unitree"))
    config = (folder / CONFIG.format("go2")).read_text()
    assert config.splitlines()[0] == "# model_5.pt, trained with a control step of 0.02 s."
    assert config.count("#") == 1
    assert yaml.safe_load(config) == {
        "go2/rsl_tbptt": {
            "model_name": "policy.pt",
            "num_observations": 15,
            "observations": ["ang_vel", "gravity_vec", "commands", "dof_pos", "dof_vel", "actions"],
            "observations_history": [],
            "observations_history_priority": "term",
            "clip_obs": float("inf"),
            "clip_actions_lower": [],
            "clip_actions_upper": [],
            "rl_kp": [40.0, 20.0],
            "rl_kd": [1.0, 0.5],
            "fixed_kp": [40.0, 20.0],
            "fixed_kd": [1.0, 0.5],
            "num_of_dofs": 2,
            "wheel_indices": [],
            "action_scale": [0.3, 0.3],
            "ang_vel_scale": 0.25,
            "commands_scale": [2.0, 2.0, 0.5],
            "dof_pos_scale": 1.0,
            "dof_vel_scale": 0.05,
            "default_dof_pos": [-1.4, 0.7],
            "joint_mapping": [0, 1],
        }
    }
    deploy = (folder / DEPLOY).read_text()
    assert deploy.count("#") == 1
    found = yaml.safe_load(deploy)
    scales = {name: each["scale"] for name, each in found["observations"].items()}
    assert [*scales.items()] == [
        ("base_ang_vel", [0.25] * 3),
        ("projected_gravity", [1.0] * 3),
        ("velocity_commands", [2.0, 2.0, 0.5]),
        ("joint_pos_rel", [1.0] * 2),
        ("joint_vel_rel", [0.05] * 2),
        ("last_action", [1.0] * 2),
    ]
    others = {"params": {}, "clip": None, "history_length": 1}
    assert all(
        each == others | {"scale": scales[n]} for n, each in found.pop("observations").items()
    )
    assert found == {
        "joint_ids_map": [1, 0],
        "step_dt": 0.02,
        "stiffness": [40.0, 20.0, 0.0],
        "damping": [1.0, 0.5, 0.0],
        "default_joint_pos": [0.7, -1.4],
        "commands": {"base_velocity": {"ranges": RANGES}},
        "actions": {
            "JointPositionAction": {
                "clip": None,
                "joint_names": ["hip", "knee"],
                "scale": [0.3, 0.3],
                "offset": [0.7, -1.4],
                "joint_ids": None,
            }
        },
    }


BOTH, RL_SAR, UNITREE_ALONE = (True, True), (True, False), (False, True)
INCOMPLETE = {
    "the motor of each joint, the joints being ['hip', 'knee']": (
        changed(joint_sdk_names=None),
        BOTH,
    ),
    "expected the first motors of ['arm', 'hip', 'knee']": (
        changed(joint_sdk_names=["arm", "hip", "knee"]),
        RL_SAR,
    ),
    "joint_stiffness is not known": (changed(joint_stiffness=None), BOTH),
    "actions are [] of ['hip', 'knee']": (changed(actions=None), BOTH),
    "actions are ['JointPositionAction'] of ['knee']": (
        with_action(joint_names=["knee"], width=1),
        BOTH,
    ),
    "actions are ['JointVelocityAction']": (with_action(kind="JointVelocityAction"), BOTH),
    "not every observation group tells its terms": (changed(observation_groups=None), BOTH),
    "no observation like heights": (with_terms(*TERMS[:-1], term("heights", "scan", 2)), BOTH),
    "no observation like base_lin_vel": (
        with_terms(term("base_lin_vel", "base_lin_vel", 3), *TERMS[1:]),
        BOTH,
    ),
    "no observation like velocity": (
        with_terms(
            term("velocity", "builtin_sensor", 3, parameters={"sensor_name": "robot/imu_lin_vel"}),
            *TERMS[1:],
        ),
        BOTH,
    ),
    "no observation like base_ang_vel": (  # of another sensor
        with_terms(
            term("base_ang_vel", "builtin_sensor", 3, parameters={"sensor_name": "robot/foot"}),
            *TERMS[1:],
        ),
        BOTH,
    ),
    "the modifiers of ['w']": (
        with_terms(term("w", "base_ang_vel", 3, modifiers=[{"name": "bias"}]), *TERMS[1:]),
        BOTH,
    ),
    "which joints joint_pos selects": (
        with_terms(*TERMS[:3], {k: v for k, v in TERMS[3].items() if k != "parameters"}),
        BOTH,
    ),
    "joint_pos has the parameter asset_cfg: {'entity': 'ball'}": (
        with_terms(*TERMS[:3], {**TERMS[3], "parameters": {"asset_cfg": {"entity": "ball"}}}),
        BOTH,
    ),
    "gravity has the parameter frame: foot": (
        with_terms(TERMS[0], {**TERMS[1], "parameters": {"frame": "foot"}}, *TERMS[2:]),
        BOTH,
    ),
    "joint_pos has the joints ['arm']": (
        with_terms(
            *TERMS[:3],
            term(
                "joint_pos", "joint_pos_rel", 1, parameters={"asset_cfg": {"joint_names": ["arm"]}}
            )
            | {"parameters": {"asset_cfg": {"entity": "robot", "joint_names": ["arm"]}}},
        ),
        BOTH,
    ),
    "joint_vel has ['knee', 'hip'], the program ['hip', 'knee']": (
        with_terms(
            *TERMS[:4],
            {**TERMS[4], "parameters": {"asset_cfg": {"joint_names": ["knee", "hip"]}}}
            | {"parameters": {"asset_cfg": {"entity": "robot", "joint_names": ["knee", "hip"]}}},
        ),
        UNITREE_ALONE,
    ),
    "joins histories by time": (
        with_terms(*TERMS, history_order="time"),
        UNITREE_ALONE,
    ),
    "training clips actions at 1.0": (changed(clip_actions=1.0), UNITREE_ALONE),
    "command is not known to be a velocity": (changed(command_ranges=None), BOTH),
    "pose is not known to be a velocity": (
        changed(
            with_terms(term("pose", "generated_commands", 4, parameters={"command_name": "pose"})),
            command_ranges={"pose": {"pos_x": [0.0, 1.0]}, "twist": RANGES},
        ),
        BOTH,
    ),
    "ROBOT, in this path and below": (changed(name=None), RL_SAR),
    "offsets of actions are [0.0, 0.0]": (with_action(offset=0.0), RL_SAR),
    "training clips the targets": (with_action(clip=[[-1.0, 1.0]] * 2), RL_SAR),
    "{'actions': [-5.0, 5.0]}": (
        with_terms(*TERMS[:-1], term("actions", "last_action", 2, clip=[-5.0, 5.0])),
        RL_SAR,
    ),
    "actions is scaled by [0.5, 0.5]": (
        with_terms(*TERMS[:-1], term("actions", "last_action", 2, scale=0.5)),
        RL_SAR,
    ),
    "joint_pos is scaled by [1.0, 2.0], rl_sar has one": (
        with_terms(*TERMS[:3], {**TERMS[3], "scale": [1.0, 2.0]}),
        RL_SAR,
    ),
}


def metadata_of(robot) -> dict[str, Any]:
    others = {name: value for name, value in robot.items() if name != "observation_groups"}
    groups = robot.get("observation_groups", {})
    actions = {"actions": {"shape": [2]}}
    known = {"checkpoint": "m.pt", "observation_groups": groups, "outputs": actions}
    return known | {"robot": others}


def write_alone(folder, target, robot):
    """Write a target as far as it needs no model."""
    exported = Exported(onnx.ModelProto(), folder / "policy.pt", metadata_of(robot), {})
    TARGETS[target](folder / target, exported)


@pytest.mark.parametrize(("message", "case"), INCOMPLETE.items(), ids=INCOMPLETE.keys())
def test_missing_values_are_listed_and_the_program_refuses_the_file(tmp_path, message, case):
    robot, where = case
    configs = {"model_name": rl_sar_config, "joint_ids_map": unitree_config}
    for (gate, config), concerned in zip(configs.items(), where, strict=True):
        path = tmp_path / gate
        write_config(path, metadata_of(robot), config, gate, under="go2/rsl_tbptt")
        text = path.read_text()
        lines = [line for line in text.splitlines() if line.startswith("# - ")]
        assert len(lines) >= concerned
        assert any(message in line for line in lines) == concerned
        assert (yaml.safe_load(text)["go2/rsl_tbptt"][gate] is None) == concerned


LEGS, KINDS = ("FR", "FL", "RR", "RL"), ("hip", "thigh", "calf")
MOTORS = [f"{leg}_{kind}" for leg in LEGS for kind in KINDS]
JOINTS = [f"{leg}_{kind}" for kind in KINDS for leg in ("FL", "FR", "RL", "RR")]
"""A Go2's motors, and its joints as Isaac Lab sorts them."""
BY_NAME = {name: 0.1 * place - 0.5 for place, name in enumerate(MOTORS)}
"""A default position, from which every other number of a joint follows as well."""


def selecting(joints):
    return {"asset_cfg": {"entity": "robot", "joint_names": [*joints]}}


def go2(actions=JOINTS, positions=None, velocities=None, histories=(1, 1), order="term"):
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
    scales = [0.2 + 0.1 * BY_NAME[joint] for joint in actions]
    action = {"joint_names": [*actions], "width": 12, "scale": scales}
    action |= {"offset": [BY_NAME[joint] for joint in actions]}
    return changed(
        with_terms(*terms, history_order=order),
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
    """Yield targets by joint for each measurement, as training computes them."""
    [group] = robot["observation_groups"].values()
    [action] = robot["actions"]
    policy: Any = onnxruntime.InferenceSession(folder / "policy.onnx")
    rows, last = {each["name"]: [] for each in group["terms"]}, dict.fromkeys(JOINTS, 0.0)

    def step(seen):
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
        parts = [history_of(rows[t["name"]], max(t["history_length"], 1)) for t in group["terms"]]
        if group["history_order"] == "time":
            parts = [[part[step] for part in parts] for step in range(len(parts[0]))]
        obs = np.concatenate([np.concatenate(part) for part in parts]).astype(np.float32)
        (actions,) = policy.run(None, {"policy": obs[None]})
        last.update(zip(action["joint_names"], actions[0], strict=True))
        scales = dict(zip(action["joint_names"], action["scale"], strict=True))
        return {joint: last[joint] * scales[joint] + BY_NAME[joint] for joint in JOINTS}

    return step


def rl_sar_program(folder):
    """Return gains by motor, and rl_sar's step from measurements to targets by motor."""
    path = folder / "rl_sar" / "policy" / "go2" / "rsl_tbptt"
    params = yaml.safe_load((path / "config.yaml").read_text())["go2/rsl_tbptt"]
    policy = torch.jit.load(path / params["model_name"])
    mapping, num = params["joint_mapping"], params["num_of_dofs"]
    actions, buffer = np.zeros(num), None

    def in_order(by_name):
        return np.array([by_name[MOTORS[motor]] for motor in mapping])

    @torch.no_grad()
    def step(seen):
        nonlocal actions, buffer
        terms = {
            "ang_vel": seen["gyroscope"] * params["ang_vel_scale"],
            "commands": seen["command"] * np.array(params["commands_scale"]),
            "dof_pos": (in_order(seen["q"]) - params["default_dof_pos"]) * params["dof_pos_scale"],
            "dof_vel": in_order(seen["dq"]) * params["dof_vel_scale"],
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
        return {MOTORS[motor]: target for motor, target in zip(mapping, targets, strict=True)}

    def gains(name):
        return dict(zip([MOTORS[motor] for motor in mapping], params[name], strict=True))

    assert mapping == [*range(num)]  # that of base.yaml: getting up and lying down follow it
    assert gains("fixed_kp") == gains("rl_kp")
    assert gains("fixed_kd") == gains("rl_kd")
    return gains("rl_kp"), gains("rl_kd"), step


def unitree_program(folder):
    """Return gains by motor, and the step of Unitree's programs."""
    cfg = yaml.safe_load((folder / DEPLOY).read_text())
    policy: Any = onnxruntime.InferenceSession(folder / "unitree" / "exported" / "policy.onnx")
    ids, [action] = cfg["joint_ids_map"], cfg["actions"].values()
    actions, rows = np.zeros(len(ids)), {name: [] for name in cfg["observations"]}

    def in_order(by_name):
        return np.array([by_name[MOTORS[motor]] for motor in ids])

    def step(seen):
        nonlocal actions
        terms = {
            "base_ang_vel": seen["gyroscope"],
            "velocity_commands": seen["command"],
            "joint_pos_rel": in_order(seen["q"]) - cfg["default_joint_pos"],
            "joint_vel_rel": in_order(seen["dq"]),
            "last_action": actions,
        }
        obs = []
        for name, each in cfg["observations"].items():
            values = terms[name]
            if name == "joint_pos_rel":  # the only term that unitree_rl_lab selects joints of
                values = values[each["params"].get("asset_cfg", {}).get("joint_ids", slice(None))]
            rows[name].append(values * each["scale"])
            obs += history_of(rows[name], each["history_length"])
        (found,) = policy.run(None, {"obs": np.concatenate(obs)[None].astype(np.float32)})
        actions = found[0]
        targets = actions * action["scale"] + action["offset"]
        return {MOTORS[motor]: target for motor, target in zip(ids, targets, strict=True)}

    stiffness, damping = (
        dict(zip(MOTORS, cfg[name], strict=True)) for name in ("stiffness", "damping")
    )
    return stiffness, damping, step


BACKWARDS, FRONT = JOINTS[::-1], ["FR_calf", "FL_hip", "FL_thigh"]
REORDERED = {
    "actions and some positions": (
        {"actions": BACKWARDS, "velocities": BACKWARDS, "positions": FRONT},
        BOTH,
    ),
    "velocities": ({"velocities": BACKWARDS}, RL_SAR),
    "history": ({"histories": (3, 3)}, BOTH),
    "histories": ({"histories": (4, 2), "positions": FRONT}, BOTH),
    "history by time": ({"histories": (3, 3), "order": "time"}, RL_SAR),
}


@pytest.mark.parametrize(("options", "targets"), REORDERED.values(), ids=REORDERED.keys())
def test_programs_send_each_motor_what_training_sends_its_joint_from_the_first_step(
    tmp_path, options, targets
):
    robot = go2(**options)
    programs = {"rl_sar": rl_sar_program, "unitree": unitree_program}
    written = [name for name, is_written in zip(programs, targets, strict=True) if is_written]
    write(tmp_path, "mlp", robot, targets=written)
    assert max(verify(tmp_path).values()) < TOLERANCE
    for name in written:
        stiffness, damping, program = programs[name](tmp_path)
        assert stiffness == {joint: 30.0 + BY_NAME[joint] for joint in JOINTS}
        assert damping == {joint: 1.0 + BY_NAME[joint] for joint in JOINTS}
        trained, random = trained_program(tmp_path, robot), np.random.default_rng(0)
        for _ in range(6):
            seen = {name: random.normal(size=3) for name in ("gyroscope", "command")}
            seen |= {each: {joint: random.normal() for joint in JOINTS} for each in ("q", "dq")}
            assert program(seen) == pytest.approx(trained(seen), abs=TOLERANCE)


def test_entering_rl_sars_policy_again_starts_its_history_again(tmp_path):
    write(tmp_path, "mlp", go2(histories=(3, 3)), targets=("rl_sar",))
    file = tmp_path / "rl_sar" / "policy" / "go2" / "rsl_tbptt" / "policy.pt"
    policy = torch.jit.load(file)
    width = int(policy.order.max()) + 1
    obs = torch.zeros(1, width)
    obs[:, policy.order[0]] = 1.0  # the first step: what rl_sar has not seen is 0 there
    first, second = policy(obs), policy(obs)
    assert not torch.equal(first, second)
    policy.reset()
    assert torch.equal(policy(obs), first)
    assert torch.equal(torch.jit.load(file)(obs), first)


@pytest.mark.parametrize("name", ["../../x", "/x", "..", "a/b", "", "a\nb", "."])
def test_a_robots_name_cannot_lead_out_of_the_folder(tmp_path, name):
    with pytest.raises(ValueError, match=r"name is .*, expected one such as 'go2'"):
        write_alone(tmp_path / "bundle", "rl_sar", changed(name=name))
    assert not [*tmp_path.iterdir()]


def test_names_of_a_checkpoint_add_no_lines_to_a_config(tmp_path):
    robot = with_terms(*TERMS[:-1], term("x\n  model_name: other.pt", "scan", 2))
    write_config(tmp_path / "c", metadata_of(robot), rl_sar_config, "model_name", under="go2/a")
    assert yaml.safe_load((tmp_path / "c").read_text())["go2/a"]["model_name"] is None


UNFIT = {
    "has the scales": (with_terms(*TERMS), ["legged_control2"]),
    "joint_pos has the scales": (
        with_terms(*PLAIN[:3], {**PLAIN[3], "scale": [1.0, 2.0]}, *PLAIN[4:]),
        ["legged_control2", "unitree_gym"],
    ),
    "actions has the scales": (
        with_terms(*PLAIN[:5], {**PLAIN[5], "scale": 0.5}),
        ["legged_control2", "unitree_gym"],
    ),
    "it gives .*, the policy takes": (with_terms(*PLAIN[::-1]), ["unitree_gym"]),
    "have a history": (
        with_terms(*PLAIN[:3], term("joint_pos", "joint_pos_rel", 2, 3), *PLAIN[4:]),
        ["unitree_gym"],
    ),
    "gravity is clipped or modified": (
        with_terms(PLAIN[0], {**PLAIN[1], "clip": [-1.0, 1.0]}, *PLAIN[2:]),
        ["legged_control2", "unitree_gym"],
    ),
    "joint_pos has the joints": (
        with_terms(*PLAIN[:3], {**PLAIN[3], "parameters": selecting(["knee", "hip"])}, *PLAIN[4:]),
        ["legged_control2", "unitree_gym"],
    ),
    "actions move the joints": (
        changed(UNSCALED, actions=[{**ROBOT["actions"][0], "joint_names": ["knee", "hip"]}]),
        ["legged_control2", "unitree_gym"],
    ),
    "offsets of actions are": (
        changed(UNSCALED, actions=[{**ROBOT["actions"][0], "offset": 0.0}]),
        ["legged_control2", "unitree_gym"],
    ),
    "targets of joints are clipped": (
        changed(UNSCALED, actions=[{**ROBOT["actions"][0], "clip": [[-1.0, 1.0]] * 2}]),
        ["legged_control2", "unitree_gym"],
    ),
    "command is not known to be a velocity": (
        changed(UNSCALED, command_ranges=None),
        ["legged_control2", "unitree_gym"],
    ),
}


@pytest.mark.parametrize(("message", "case"), UNFIT.items(), ids=UNFIT.keys())
def test_programs_without_a_config_to_settle_are_refused_what_they_cannot_do(
    tmp_path, message, case
):
    robot, targets = case
    for target in targets:
        with pytest.raises(ValueError, match=f"fit the program of '{target}': .*{message}"):
            write_alone(tmp_path, target, robot)


def test_two_observations_of_one_name_are_refused():
    twice = with_terms(term("left", "joint_pos_rel", 1), term("right", "joint_pos_rel", 1))
    with pytest.raises(ValueError, match=r"joint_pos_rel'\], expected each once"):
        unitree_config(metadata_of(twice))


@pytest.mark.parametrize("target", ["rl_sar", "unitree_gym"])
def test_targets_of_torchscript_say_where_there_is_none(tmp_path, target):
    with pytest.raises(ValueError, match="needs TorchScript"):
        write_alone(tmp_path, target, ROBOT)

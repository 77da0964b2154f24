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

from rsl_tbptt.tools import cli_options
from rsl_tbptt.tools.bundle import Recorded, write_bundle
from rsl_tbptt.tools.golden import draw
from rsl_tbptt.tools.runtime_configs import rl_sar_config, unitree_config, write_config
from rsl_tbptt.tools.targets import TARGETS, Exported
from rsl_tbptt.tools.verify import verify

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.torch.jit")]
needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

TOLERANCE = 1e-5
"""Tolerance for float32 in another operation order; actions are of order 1."""
STEPS = 20


def term(name, function, width, history=1, **options):
    options = {"scale": None, "clip": None, "noisy": True} | options
    history_length = 0 if history == 1 else history
    named = {"name": name, "function": function, "shape": [width * history]}
    return named | options | {"history_length": history_length, "flatten_history_dim": True}


TERMS = [
    term("base_ang_vel", "builtin_sensor", 3, scale=0.25),  # mjlab's function, known by its name
    term("gravity", "projected_gravity", 3),
    term("command", "generated_commands", 3, scale=[2.0, 2.0, 0.5]),
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
    "joint_sdk_names": ["knee", "arm", "hip"],
    "joint_stiffness": [20.0, 40.0],
    "joint_damping": [0.5, 1.0],
    "default_joint_pos": [0.7, -1.4],
    "command_ranges": {"base_velocity": RANGES},
    "actions": [
        {"name": "legs", "kind": "JointPositionAction", "width": 2, "scale": 0.3, "clip": None}
        | {"joint_names": ["hip", "knee"], "offset": [0.7, -1.4]}
    ],
}


def write(folder, kind="lstm", robot=ROBOT, targets=tuple(TARGETS), fault=None):
    """Write the bundle of a policy of one group, and return its golden trajectory."""
    torch.manual_seed(0)
    obs = TensorDict({"policy": torch.randn(50, 15)}, batch_size=[50])
    groups = {"actor": ["policy"]}
    if kind == "mlp":
        policy = MLPModel(obs, groups, "actor", 2, hidden_dims=[8]).eval()
    else:
        options = {"rnn_type": kind, "rnn_hidden_dim": 12, "rnn_num_layers": 2}
        policy = RNNModel(obs, groups, "actor", 2, hidden_dims=[8], **options).eval()
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
    assert [*TARGETS] == [*cli_options.TARGETS]
    assert cli_options.OPTIONS["--target"]["choices"] is cli_options.TARGETS
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


def test_configs_have_the_known_values(bundle):
    folder, _ = bundle
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
            "rl_kp": [20.0, 40.0],
            "rl_kd": [0.5, 1.0],
            "num_of_dofs": 2,
            "wheel_indices": [],
            "action_scale": [0.3, 0.3],
            "ang_vel_scale": 0.25,
            "commands_scale": [2.0, 2.0, 0.5],
            "dof_pos_scale": 1.0,
            "dof_vel_scale": 0.05,
            "default_dof_pos": [0.7, -1.4],
            "joint_mapping": [2, 0],
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
        "joint_ids_map": [2, 0],
        "step_dt": 0.02,
        "stiffness": [40.0, 0.0, 20.0],
        "damping": [1.0, 0.0, 0.5],
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


def changed(**entries):
    """Return the robot with changed entries; None removes one."""
    robot = {**copy.deepcopy(ROBOT), **entries}
    return {name: value for name, value in robot.items() if value is not None}


def with_terms(*terms, **entries):
    group = {"shape": [15], "terms": [*terms], **entries}
    return changed(observation_groups={"policy": group})


def with_action(**entries):
    return changed(actions=[{**ROBOT["actions"][0], **entries}])


BOTH, RL_SAR, UNITREE_ALONE = (True, True), (True, False), (False, True)
INCOMPLETE = {
    "the motor of each joint, the joints being ['hip', 'knee']": (
        changed(joint_sdk_names=None),
        BOTH,
    ),
    "joint_stiffness is not known": (changed(joint_stiffness=None), BOTH),
    "actions are [] of []": (changed(actions=None), BOTH),
    "actions are ['JointPositionAction'] of ['knee', 'hip']": (
        with_action(joint_names=["knee", "hip"]),
        BOTH,
    ),
    "actions are ['JointVelocityAction']": (with_action(kind="JointVelocityAction"), BOTH),
    "not every observation group tells its terms": (changed(observation_groups=None), BOTH),
    "an observation like heights": (with_terms(*TERMS[:-1], term("heights", "scan", 2)), BOTH),
    "an observation like base_lin_vel": (
        with_terms(term("base_lin_vel", "base_lin_vel", 3), *TERMS[1:]),
        UNITREE_ALONE,
    ),
    "the modifiers of ['w']": (
        with_terms(term("w", "base_ang_vel", 3, modifiers=[{"name": "bias"}]), *TERMS[1:]),
        BOTH,
    ),
    "joins histories by time": (
        with_terms(*TERMS, history_order="time"),
        UNITREE_ALONE,
    ),
    "commands: base_velocity: ranges": (changed(command_ranges=None), UNITREE_ALONE),
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
    "histories of [1, 2] steps": (
        with_terms(*TERMS[:3], term("p", "joint_pos_rel", 1, 2), *TERMS[4:]),
        RL_SAR,
    ),
}


def metadata_of(robot) -> dict[str, Any]:
    others = {name: value for name, value in robot.items() if name != "observation_groups"}
    groups = robot.get("observation_groups", {})
    actions = {"actions": {"shape": [2]}}
    known = {"checkpoint": "m.pt", "observation_groups": groups, "outputs": actions}
    return known | {"robot": others}


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


def test_histories_go_oldest_first_and_term_by_term_or_by_time():
    terms = [term("w", "base_ang_vel", 3, 3), term("g", "projected_gravity", 2, 3)]
    metadata = metadata_of(with_terms(*terms) | {"clip_actions": 4.0})
    config, missing = rl_sar_config(metadata)
    assert not missing
    assert config["observations_history"] == [2, 1, 0]
    assert (config["observations_history_priority"], config["num_observations"]) == ("term", 5)
    assert (config["clip_actions_lower"], config["clip_actions_upper"]) == ([-4.0] * 2, [4.0] * 2)
    metadata["observation_groups"]["policy"]["history_order"] = "time"
    assert rl_sar_config(metadata)[0]["observations_history_priority"] == "time"
    found = unitree_config(metadata)[0]["observations"]
    assert {name: (each["history_length"], each["scale"]) for name, each in found.items()} == {
        "base_ang_vel": (3, [1.0] * 3),
        "projected_gravity": (3, [1.0] * 2),
    }


def test_two_observations_of_one_name_are_refused():
    twice = with_terms(term("left", "joint_pos_rel", 1), term("right", "joint_pos_rel", 1))
    with pytest.raises(ValueError, match=r"joint_pos_rel'\], expected each once"):
        unitree_config(metadata_of(twice))


@pytest.mark.parametrize("target", ["rl_sar", "unitree_gym"])
def test_targets_of_torchscript_say_where_there_is_none(tmp_path, target):
    exported = Exported(onnx.ModelProto(), tmp_path / "policy.pt", metadata_of(ROBOT), {})
    with pytest.raises(ValueError, match="needs TorchScript"):
        TARGETS[target](tmp_path / target, exported)

"""Every form of a bundle acts like the policy: ONNX, TorchScript and C, over 1,000 steps."""

import copy
import ctypes
import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from rsl_rl.models import MLPModel, RNNModel
from rsl_rl.modules.distribution import Distribution
from support.helpers import MEMORIES
from support.helpers import MODELS as OF_RSL_RL
from tensordict import TensorDict

from rsl_tbptt.deploy import Policy, groups_in, join
from rsl_tbptt.models import CNNRNNModel, RecurrentModel
from rsl_tbptt.tools.commands.cli import main
from rsl_tbptt.tools.robot.c_code import run_c
from rsl_tbptt.tools.robot.export import Recorded, export_torchscript, write_bundle
from rsl_tbptt.tools.robot.golden import draw
from rsl_tbptt.tools.robot.verify import check_trust, run_onnx, verify

pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc"),
]

TOLERANCE = 1e-5
"""Tolerance for float32 in another operation order; actions are of order 1."""
LIBTORCH = Path(__file__).parents[2] / ".libtorch" / "2.3.0"
LSTM = {"rnn_hidden_dim": 12, "rnn_type": "lstm"}
CNN = {"cnn_cfg": {"output_channels": [2], "kernel_size": 3}, "image_scale": 1 / 255}
MODELS = {
    "two layers": (RNNModel, LSTM | {"rnn_num_layers": 2}),
    "mlp": (MLPModel, {}),
    **{
        kind: (RNNModel if kind in OF_RSL_RL else RecurrentModel, LSTM | {"rnn_type": kind})
        for kind in MEMORIES
    },
    **{f"cnn-{kind}": (CNNRNNModel, LSTM | CNN | {"rnn_type": kind}) for kind in MEMORIES},
}
ROBOT = {
    "observation_groups": {
        "policy": {
            "shape": [3],
            "terms": [
                {"name": "angles */", "shape": [2], "scale": 0.5, "clip": None, "noisy": True}
                | {"history_length": 0, "flatten_history_dim": True},
                {"name": "speed", "shape": [1], "scale": None, "clip": None, "noisy": True}
                | {"history_length": 0, "flatten_history_dim": True},
            ],
        }
    },
    "step_dt": 0.02,
    "joint_names": ['left "hip"', "knee"],
    "default_joint_pos": [0.7, -1.4],
    "actions": [
        {"name": "legs", "kind": "JointPositionAction", "width": 2, "scale": 0.3, "clip": None}
        | {"joint_names": ['left "hip"', "knee"], "offset": [0.7, -1.4]}
    ],
}


class Discrete(Distribution):
    """Each action is one of five numbers. It cannot tell a mean, and has no module for exports."""

    @property
    def input_dim(self):
        return [self.output_dim, 5]

    def update(self, mlp_output):
        self.categorical = torch.distributions.Categorical(logits=mlp_output)

    def deterministic_output(self, mlp_output):
        return mlp_output.argmax(-1)

    @property
    def mean(self):
        raise TypeError("discrete actions have no mean")


class Exportable(Distribution):
    """Acts by code that no exporter can follow, and has a module for them."""

    @property
    def input_dim(self):
        return self.output_dim

    def deterministic_output(self, mlp_output):
        return torch.from_numpy(np.tanh(mlp_output.numpy()))

    def as_deterministic_output_module(self):
        return torch.nn.Tanh()


GAUSSIAN = {"class_name": "GaussianDistribution", "init_std": 0.1}
WITH_OTHER_DISTRIBUTIONS = [
    ("mlp", None),
    ("gru", {"class_name": "HeteroscedasticGaussianDistribution", "std_type": "log"}),
    ("lstm", {"class_name": "BetaDistribution"}),
    ("cnn-sru", {"class_name": "BetaDistribution", "action_range": (-0.5, 2.0)}),
    ("mlp", {"class_name": Discrete}),
    ("cnn-lstm", {"class_name": Discrete}),
    ("sru", {"class_name": Exportable}),
]


def build(kind, distribution=GAUSSIAN):
    torch.manual_seed(0)
    groups = {"policy": torch.randn(50, 3), "goal": 5.0 + 2.0 * torch.randn(50, 3)}
    if kind.startswith("cnn"):
        groups["camera"] = torch.zeros(50, 1, 8, 8, dtype=torch.uint8)
    obs, (model_class, options) = TensorDict(groups, batch_size=[50]), MODELS[kind]
    policy = model_class(
        obs,
        {"actor": [*groups]},
        "actor",
        2,
        hidden_dims=[8],
        obs_normalization=True,
        distribution_cfg=copy.deepcopy(distribution),
        **copy.deepcopy(options),
    )
    policy.update_normalization(obs)
    return policy.eval(), {name: group[:1] for name, group in groups.items()}


def write(folder, kind, distribution=GAUSSIAN, *, heads=False, steps=1000, fault=None, **options):
    """Write the bundle of a policy; ``fault`` changes the exports but not the trajectory."""
    policy, groups = build(kind, distribution)
    width = policy.get_latent(TensorDict(groups, batch_size=[1])).shape[-1]
    made = {"auxiliary/velocity": torch.nn.Linear(width, 2)} if heads else {}
    trajectory = draw(policy, made, groups, steps, seed=1)
    if policy.is_recurrent:
        policy.reset()
    if fault is not None:
        fault(policy)
    about = {"checkpoint": "model_5.pt", "iteration": 5}
    recorded = Recorded(policy, trajectory, "drawn")
    write_bundle(folder, recorded, made, ROBOT, about, targets=["c"], **options)
    return trajectory


@pytest.mark.parametrize(
    ("kind", "heads"), [*((kind, True) for kind in MODELS), ("lstm", False), ("cnn-gru", False)]
)
def test_all_forms_act_as_the_policy_over_a_thousand_steps(tmp_path, kind, heads):
    trajectory = write(tmp_path, kind, heads=heads, single_input=heads)
    assert trajectory["reset"].sum() == 2
    differences = verify(tmp_path, [tmp_path])
    assert differences.keys() >= {"onnx", "torchscript", "c"}
    assert max(differences.values()) < TOLERANCE
    if heads:
        assert_c_is_clean(tmp_path / "c", trajectory)


@pytest.mark.parametrize(("kind", "distribution"), WITH_OTHER_DISTRIBUTIONS)
def test_policies_with_other_distributions_act_alike_in_all_forms(tmp_path, kind, distribution):
    trajectory = write(tmp_path, kind, distribution, steps=40)
    assert trajectory["actions"].std() > 10 * TOLERANCE
    differences = verify(tmp_path, [tmp_path])
    assert differences.keys() == {"onnx", "torchscript", "c"}
    assert max(differences.values()) < TOLERANCE


STRICT = ("-std=c99", "-O1", "-Wall", "-Wextra", "-pedantic", "-Werror")
SANITIZERS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def test_an_export_without_torchvision_is_silent(tmp_path, monkeypatch):
    registration = importlib.import_module("torch.onnx._internal.exporter._registration")
    find, records = importlib.util.find_spec, []
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torchvision" else find(name)
    )
    monkeypatch.setattr(registration.logger, "handle", records.append)
    write(tmp_path, "mlp", steps=2)
    assert not records


def assert_c_is_clean(folder, golden):
    actions = run_c(folder, golden, (*STRICT, *SANITIZERS))
    assert actions is not None
    np.testing.assert_allclose(actions, golden["actions"], atol=TOLERANCE, rtol=0)
    for source in ("policy.c", "policy_model.c"):
        assert "alloc" not in (folder / source).read_text()


@pytest.fixture(scope="module")
def libtorch(tmp_path_factory):
    """Return a function that runs a ``policy.pt`` in the LibTorch of robot software."""
    if not (LIBTORCH / ".installed").is_file():
        pytest.skip("needs LibTorch 2.3.0, which `make test-matrix` installs")
    torch_folder, program = LIBTORCH / "torch", tmp_path_factory.mktemp("libtorch") / "replay"
    includes = (torch_folder / "include", torch_folder / "include" / "torch/csrc/api/include")
    # From a CUDA build this loads only the CPU's libraries, unlike Python's `import torch`.
    libraries = ["-ltorch_cpu", "-lc10", "-Wl,--allow-shlib-undefined"]
    places = [f"-L{torch_folder / 'lib'}", f"-Wl,-rpath,{torch_folder / 'lib'}"]
    source = Path(__file__).with_name("replay_in_libtorch.cpp")
    options = ["-std=c++17", "-D_GLIBCXX_USE_CXX11_ABI=0", *(f"-isystem{i}" for i in includes)]
    subprocess.run(["g++", *options, source, "-o", program, *places, *libraries], check=True)

    def replay(path, golden):
        obs = [join(each) for each in zip(*groups_in(golden).values(), strict=True)]
        rows = np.column_stack([golden["reset"], obs]).astype(np.float32)
        command = [program, path, str(rows.shape[1] - 1)]
        result = subprocess.run(command, input=rows.tobytes(), capture_output=True, check=True)
        assert result.stderr == b"2.3.0"
        return np.frombuffer(result.stdout, np.float32).reshape(len(rows), -1)

    return replay


@pytest.mark.parametrize("kind", MODELS)
def test_torchscript_runs_in_the_libtorch_of_robots(tmp_path, libtorch, kind):
    (policy, groups), path = build(kind), tmp_path / "policy.pt"
    golden = draw(policy, {}, groups, 200, seed=1)
    export_torchscript(policy, groups, path)
    np.testing.assert_allclose(libtorch(path, golden), golden["actions"], atol=TOLERANCE, rtol=0)
    forgotten = libtorch(path, {**golden, "reset": np.arange(200) == 0})
    differs = np.abs(forgotten - golden["actions"]).max() > 10 * TOLERANCE
    assert differs == (kind != "mlp")


@pytest.mark.parametrize("kind", ["mlp", "lstm", "cnn-gru"])
def test_torchscript_keeps_no_graph_of_its_steps(tmp_path, kind):
    policy, groups = build(kind)
    export_torchscript(policy, groups, tmp_path / "policy.pt")
    module = torch.jit.load(str(tmp_path / "policy.pt"))
    obs = torch.cat([each.flatten(1).float() for each in groups.values()], dim=1)
    assert not module(obs).requires_grad
    module(obs.requires_grad_())
    assert not module.state.requires_grad


def without_memory(policy):
    for name, weights in policy.rnn.rnn.named_parameters():
        if "weight_hh" in name:
            weights.data.zero_()


def with_groups_swapped(policy):
    for values in (policy.rnn.rnn.weight_ih_l0, policy.obs_normalizer._mean):
        values.data[:, :6] = values.data[:, :6].roll(3, dims=-1)


@pytest.mark.parametrize("fault", [without_memory, with_groups_swapped])
@pytest.mark.parametrize("kind", ["lstm", "cnn-gru"])
def test_a_faulty_export_is_detected_in_each_form(tmp_path, kind, fault):
    write(tmp_path, kind, steps=40, fault=fault)
    assert min(verify(tmp_path, [tmp_path]).values()) > 1e-3


def test_a_dropped_reset_is_detected_in_each_form(tmp_path):
    write(tmp_path, "lstm", steps=40)
    golden = dict(np.load(tmp_path / "golden.npz"))
    np.savez(tmp_path / "golden.npz", **{**golden, "reset": np.arange(40) == 0})
    assert min(verify(tmp_path, [tmp_path]).values()) > 1e-3


PLANTED = """
__attribute__((constructor)) static void plant(void) {{ fclose(fopen("{}", "w")); }}
"""


@pytest.fixture
def planted(tmp_path):
    """A bundle whose C code writes a file when it is loaded, and that file."""
    bundle, file = tmp_path / "bundle", tmp_path / "planted"
    bundle.mkdir()
    write(bundle, "lstm", steps=4)
    source = bundle / "c" / "policy.c"
    source.write_text("#include <stdio.h>\n" + source.read_text() + PLANTED.format(file))
    return bundle, file


def test_the_code_of_a_bundle_runs_only_if_it_is_trusted(planted, capsys):
    bundle, file = planted
    assert main(["verify", str(bundle)]) == 0
    printed = capsys.readouterr().out
    assert "onnx: largest difference" in printed
    assert (
        f"not run: c/policy.c, policy.pt. They are code: to run it, add --trust {bundle}" in printed
    )
    assert verify(bundle).keys() == verify(bundle, [bundle.parent]).keys() == {"onnx"}
    with pytest.raises(ValueError, match=r"trust is \[\], expected '.*bundle' in it: C and Torch"):
        check_trust(bundle, [])
    assert not file.exists()
    assert main(["verify", str(bundle), "--trust", str(bundle)]) == 0
    assert "c: largest difference" in capsys.readouterr().out
    assert file.exists()


def test_what_a_bundles_c_code_says_about_itself_is_not_believed(planted):
    bundle, _ = planted
    golden = bundle / "c" / "policy_golden.c"
    golden.write_text('#include <stdio.h>\nint main(void) { puts("0"); return 0; }')
    source = bundle / "c" / "policy.c"
    honest = source.read_text()
    source.write_text(honest.replace("current = 1 - current;", "actions[0] += 1.0f;"))
    assert verify(bundle, [bundle])["c"] > 0.5
    for end in ("exit(3)", "exit(0)", "abort()"):
        source.write_text(honest.replace("current = 1 - current;", f"{end};"))
        source.write_text("#include <stdlib.h>\n" + source.read_text())
        with pytest.raises(ValueError, match=r"policy\.c ends with status .*expected status 0"):
            verify(bundle, [bundle])


FAST = "-O3 -march=native -ffast-math"


def documented_flags():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "bundle.md").read_text()
    (flags,) = re.findall(r"`(-O3\s[^`]*)`", page)
    return flags.split()


@pytest.mark.parametrize("kind", ["lstm", "cnn-sru"])
def test_an_outlier_does_not_stay_with_the_documented_flags(tmp_path, kind):
    golden = dict(write(tmp_path, kind, steps=40))
    golden["obs/policy"][5] = [1e30, -1e30, 1e30]
    expected = run_onnx(Policy(tmp_path), golden, ("actions",))["actions"]
    assert np.isfinite(expected).all()
    found = run_c(tmp_path / "c", golden, ("-std=c99", *documented_flags()))
    assert found is not None
    np.testing.assert_allclose(found, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("flags", ["-O2", FAST])
def test_the_program_for_the_robot_refuses_nan_whatever_the_flags(tmp_path, flags):
    write(tmp_path, "lstm", steps=10)
    folder, program = tmp_path / "c", tmp_path / "replay"

    def status():
        sources = [folder / "policy.c", folder / "policy_golden.c"]
        command = ["gcc", "-std=c99", *flags.split(), *sources, "-o", program, "-lm"]
        subprocess.run(command, check=True)
        return subprocess.run([program], check=False).returncode

    assert status() == 0
    source = folder / "policy.c"
    nan = "static const unsigned nan_bits = 0x7fc00000u; memcpy(actions, &nan_bits, 4);"
    source.write_text(source.read_text().replace("current = 1 - current;", nan))
    assert status() == 1


def test_the_onnx_file_needs_no_newer_runtime_than_its_operators(tmp_path):
    """Release 1.17 of onnxruntime reads IR versions up to 9 and opsets up to 20."""
    write(tmp_path, "lstm", steps=2)
    model = onnx.load(tmp_path / "policy.onnx")
    versions = {"opset": model.opset_import[0].version, "ir_version": model.ir_version}
    assert versions == {"opset": 14, "ir_version": 7}
    assert json.loads((tmp_path / "policy.json").read_text())["onnx"] == versions
    assert "opset 14, IR version 7" in " ".join((tmp_path / "README.md").read_text().split())
    onnx.checker.check_model(model, full_check=True)
    assert b"site-packages" not in model.SerializeToString()  # no paths of this machine


def test_terms_joined_by_time_have_no_place_in_c_and_a_remark_in_the_readme(tmp_path, monkeypatch):
    group = ROBOT["observation_groups"]["policy"]
    for term in group["terms"]:
        monkeypatch.setitem(term, "modifiers", [{"name": "isaaclab:scale", "params": {}}])
    write(tmp_path, "lstm", steps=2)
    assert "POLICY_OBS_POLICY_SPEED" in (tmp_path / "c" / "policy.h").read_text()
    assert "speed 1, by isaaclab:scale" in (tmp_path / "README.md").read_text()
    monkeypatch.setitem(group, "history_order", "time")
    write(tmp_path, "lstm", steps=2)
    header = (tmp_path / "c" / "policy.h").read_text()
    assert "POLICY_OBS_POLICY_SPEED" not in header
    assert "#define POLICY_OBS_GOAL 3 /* 3 numbers */" in header.splitlines()
    assert "all of a step before the next step's: angles" in (tmp_path / "README.md").read_text()


def test_infinite_limits_are_json_and_actions_are_clipped_first(tmp_path, monkeypatch):
    infinity = float("inf")
    speed = ROBOT["observation_groups"]["policy"]["terms"][1]
    monkeypatch.setitem(speed, "clip", (-infinity, 1.0))
    monkeypatch.setitem(ROBOT["actions"][0], "clip", [[-1.0, 1.0], [-infinity, infinity]])
    monkeypatch.setitem(ROBOT, "clip_actions", 100.0)
    write(tmp_path, "lstm", steps=2)

    def fail(name):
        raise AssertionError(name)

    text = (tmp_path / "policy.json").read_text()
    read = json.loads(text, parse_constant=fail)
    largest = float(np.finfo(np.float32).max)
    assert read["robot"]["actions"][0]["clip"] == [[-1.0, 1.0], [-largest, largest]]
    assert read["observation_groups"]["policy"]["terms"][1]["clip"] == [-largest, 1.0]
    lines = (tmp_path / "README.md").read_text().splitlines()
    first = lines.index("- first, clip every action to ±100")
    assert lines[first + 1].startswith("- JointPositionAction of left")


def test_c_has_sizes_names_state_and_heads(tmp_path):
    trajectory = write(tmp_path, "lstm", heads=True, steps=20)
    header = (tmp_path / "c" / "policy.h").read_text()
    for line in (
        "#define POLICY_NUM_OBS 6",
        "#define POLICY_NUM_ACTIONS 2",
        "#define POLICY_NUM_STATES 24",
        "#define POLICY_CONTROL_HZ 50.0",
        "#define POLICY_OBS_POLICY_ANGLES___ 0 /* 2 numbers, times 0.5 */",
        "#define POLICY_OBS_POLICY_SPEED 2 /* 1 numbers */",
        "#define POLICY_OBS_GOAL 3 /* 3 numbers */",
        "extern const char *const policy_joint_names[2];",
    ):
        assert line in header.splitlines()
    library = tmp_path / "policy.so"
    command = ["gcc", "-std=c99", "-shared", "-fPIC", tmp_path / "c" / "policy.c", "-o", library]
    subprocess.run([*command, "-lm"], check=True)
    policy = ctypes.CDLL(str(library))
    policy.policy_state.restype = ctypes.POINTER(ctypes.c_float)
    scale = (ctypes.c_float * 2).in_dll(policy, "policy_action_scale")
    name = (ctypes.c_char_p * 2).in_dll(policy, "policy_joint_names")[0]
    assert ([*scale], name) == (pytest.approx([0.3, 0.3]), b'left "hip"')
    estimate = (ctypes.c_float * 2).in_dll(policy, "policy_auxiliary_velocity")
    actions, groups = (ctypes.c_float * 2)(), [*groups_in(trajectory).values()]

    def step(number):
        obs = join([values[number] for values in groups])
        policy.policy_step(obs.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), actions)
        return [*actions]

    policy.policy_init()
    for number in range(5):
        found = step(number)
        assert found == pytest.approx(trajectory["actions"][number], abs=TOLERANCE)
        assert [*estimate] == pytest.approx(trajectory["auxiliary/velocity"][number], abs=TOLERANCE)
    saved = policy.policy_state()[:24]
    after = step(5)
    policy.policy_reset()
    assert step(5) != pytest.approx(after, abs=TOLERANCE)
    for i, value in enumerate(saved):
        policy.policy_state()[i] = value
    assert step(5) == after

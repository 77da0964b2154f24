"""Six models act alike as ONNX files that ``deploy`` steps, resets included."""

import copy
import json

import numpy as np
import onnx
import pytest
import torch
from rsl_rl.models import CNNModel, MLPModel, RNNModel
from support.helpers import write_drawn_bundle
from tensordict import TensorDict

from rsl_tbptt.models import CNNRNNModel, RecurrentModel
from rsl_tbptt.tools.robot.bundle import BundlePolicy
from rsl_tbptt.tools.robot.verify import read_golden, verify

TOLERANCE = 1e-5
"""Tolerance for float32 in another operation order; actions are of order 1."""
RNN = {"rnn_hidden_dim": 12}
CNN = {"cnn_cfg": {"output_channels": [2], "kernel_size": 3}}
MODELS = {
    "mlp": (MLPModel, {}),
    "lstm": (RNNModel, RNN | {"rnn_type": "lstm", "rnn_num_layers": 2}),
    "gru": (RNNModel, RNN | {"rnn_type": "gru"}),
    "sru": (RecurrentModel, RNN | {"rnn_type": "sru"}),
    "cnn": (CNNModel, CNN),
    "cnn-gru": (CNNRNNModel, RNN | CNN | {"rnn_type": "gru", "image_scale": 1 / 255}),
}
WITHOUT_MEMORY = {"mlp", "cnn"}
TERM = {"scale": None, "clip": None, "noisy": True, "history_length": 0}
TERM |= {"flatten_history_dim": True}
TERMS = [
    TERM | {"name": "angles", "shape": [2], "scale": 0.5},
    TERM | {"name": "speed", "shape": [1], "clip": [-float("inf"), 1.0]},
]
LIMITS = [[-1.0, 1.0], [-float("inf"), float("inf")]]
ROBOT = {
    "observation_groups": {"policy": {"shape": [3], "terms": TERMS, "history_order": "time"}},
    "step_dt": 0.02,
    "joint_names": ["hip", "knee"],
    "joint_stiffness": [12.000000953674316, 0.1],
    "clip_actions": 100.0,
    "actions": [
        {"name": "legs", "kind": "JointPositionAction", "width": 2, "scale": 0.3, "clip": LIMITS}
        | {"joint_names": ["hip", "knee"], "offset": [0.7, -1.4]}
    ],
}


GAUSSIAN = {"class_name": "GaussianDistribution", "init_std": 0.1}
DISTRIBUTIONS = [
    ("mlp", None),
    ("gru", {"class_name": "HeteroscedasticGaussianDistribution", "std_type": "log"}),
    ("sru", {"class_name": "BetaDistribution", "action_range": (-0.5, 2.0)}),
]


def build(kind, distribution=GAUSSIAN):
    """Return a policy whose normaliser has seen numbers far from 0, and its groups."""
    torch.manual_seed(0)
    groups = {"policy": torch.randn(50, 3), "goal": 100.0 + 2.0 * torch.randn(50, 3)}
    if kind.startswith("cnn"):
        dtype = torch.float32 if kind == "cnn" else torch.uint8
        groups["camera"] = torch.zeros(50, 1, 8, 8, dtype=dtype)
    obs, (model_class, options) = TensorDict(groups, batch_size=[50]), copy.deepcopy(MODELS[kind])
    options |= {"hidden_dims": [8], "obs_normalization": True}
    options |= {"distribution_cfg": copy.deepcopy(distribution)}
    policy = model_class(obs, {"actor": [*groups]}, "actor", 2, **options)
    policy.update_normalization(obs)
    return policy.eval(), {name: group[:1] for name, group in groups.items()}


def write(folder, kind, distribution=GAUSSIAN, **options):
    policy, groups = build(kind, distribution)
    latents = policy.get_latent(TensorDict(groups, batch_size=[1]))
    heads = {"auxiliary/velocity": torch.nn.Linear(latents.shape[-1], 2)}
    return write_drawn_bundle(folder, policy, groups, 100, ROBOT, heads, **options)


@pytest.mark.parametrize("single_input", [False, True], ids=["groups", "joined"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_bundle_acts_as_the_policy_and_a_forgotten_reset_shows(tmp_path, kind, single_input):
    golden = write(tmp_path, kind, single_input=single_input)
    assert golden["reset"].nonzero()[0].tolist() == [0, 50]
    differences = verify(tmp_path)
    assert differences.keys() == {"onnx", "auxiliary/velocity"}
    assert max(differences.values()) < TOLERANCE
    np.savez(tmp_path / "golden.npz", **{**golden, "reset": np.arange(100) == 0})
    found = [value > 10 * TOLERANCE for value in verify(tmp_path).values()]
    assert found == [kind not in WITHOUT_MEMORY] * 2


@pytest.mark.parametrize("kind", MODELS)
def test_environments_have_a_memory_each(tmp_path, kind):
    policy, groups = build(kind)
    write_drawn_bundle(tmp_path, policy, groups, 2)
    exported, generator = BundlePolicy(tmp_path), torch.Generator().manual_seed(0)
    policy.reset()
    for step in range(4):
        obs = TensorDict({"policy": torch.randn(3, 3, generator=generator)}, batch_size=[3])
        obs["goal"] = 100.0 + torch.randn(3, 3, generator=generator)
        if "camera" in groups:
            images = torch.randint(256, (3, 1, 8, 8), generator=generator)
            obs["camera"] = images.to(groups["camera"].dtype)
        with torch.no_grad():
            torch.testing.assert_close(exported(obs), policy(obs), atol=1e-4, rtol=1e-5)
        dones = torch.tensor([step == 1, False, step == 2])
        policy.reset(dones)
        exported.reset(dones)


@pytest.mark.parametrize(("kind", "distribution"), DISTRIBUTIONS)
def test_policies_with_other_distributions_act_alike(tmp_path, kind, distribution):
    golden = write(tmp_path, kind, distribution)
    assert golden["actions"].std() > 10 * TOLERANCE
    assert max(verify(tmp_path).values()) < TOLERANCE


def without_memory(policy):
    for name, weights in policy.rnn.rnn.named_parameters():
        if "weight_hh" in name:
            weights.data.zero_()


def with_groups_swapped(policy):
    for values in (policy.rnn.rnn.weight_ih_l0, policy.obs_normalizer._mean):
        values.data[:, :6] = values.data[:, :6].roll(3, dims=-1)


@pytest.mark.parametrize("fault", [without_memory, with_groups_swapped])
def test_a_faulty_export_is_detected(tmp_path, fault):
    write(tmp_path, "cnn-gru", fault=fault)
    assert min(verify(tmp_path).values()) > 1e-3


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The bundle of an LSTM with a head."""
    folder = tmp_path_factory.mktemp("bundle")
    write(folder, "lstm")
    return folder


def test_the_onnx_file_needs_no_newer_runtime_than_its_operators(exported):
    """Release 1.17 of onnxruntime reads IR versions up to 9 and opsets up to 20."""
    model = onnx.load(exported / "policy.onnx")
    versions = {"opset": model.opset_import[0].version, "ir_version": model.ir_version}
    assert versions == {"opset": 14, "ir_version": 7}
    assert json.loads((exported / "policy.json").read_text())["onnx"] == versions
    onnx.checker.check_model(model, full_check=True)
    assert b"site-packages" not in model.SerializeToString()  # no paths of this machine
    weights = {tensor.name for tensor in model.graph.initializer}
    assert all({*node.input} - weights for node in model.graph.node if node.op_type != "Constant")


def test_an_environments_properties_are_in_json_and_onnx(exported):
    def fail(name):
        raise AssertionError(name)

    text = (exported / "policy.json").read_text()
    metadata, largest = json.loads(text, parse_constant=fail), float(np.finfo(np.float32).max)
    assert metadata["robot"]["actions"][0]["clip"] == [[-1.0, 1.0], [-largest, largest]]
    group = metadata["observation_groups"]["policy"]
    assert group["terms"][0] == TERMS[0]
    assert group["terms"][1]["clip"] == [-largest, 1.0]
    assert (metadata["iteration"], metadata["control_hz"]) == (5, 50.0)
    entries = onnx.load(exported / "policy.onnx").metadata_props
    written = {entry.key: entry.value for entry in entries}
    assert json.loads(written["observation_groups"]) == metadata["observation_groups"]
    assert {name: written[name] for name in written if "observation_terms" not in name}.items() >= {
        "run_path": "model_5.pt",
        "joint_stiffness": "12.000000953674316,0.1",
        "observation_names": "angles,speed",
        "action_scale": "0.3,0.3",
        "control_hz": "50.0",
        "state_names": "h,c",
    }.items()
    assert written["observation_terms_scale"] == "0.5,1.0"
    assert "iteration 5. `policy.json` describes" in (exported / "README.md").read_text()


def test_an_incomplete_trajectory_is_named(exported, tmp_path):
    for name in ("policy.json", "policy.onnx"):
        (tmp_path / name).write_bytes((exported / name).read_bytes())
    golden = read_golden(exported / "golden.npz")
    for wrong in ({"reset": None}, {"actions": golden["actions"][1:]}):
        arrays = {name: each for name, each in (golden | wrong).items() if each is not None}
        np.savez(tmp_path / "golden.npz", allow_pickle=False, **arrays)
        with pytest.raises(ValueError, match=r"has the arrays .*, expected 'reset', 'actions'"):
            verify(tmp_path)


def test_code_in_an_older_bundle_does_not_run(exported, tmp_path):
    for path in exported.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "policy.pt").write_bytes(b"code")
    assert verify(tmp_path).keys() == {"onnx", "auxiliary/velocity"}

"""The stepper of a bundle needs only numpy and onnxruntime, and refuses wrong inputs."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from rsl_rl.models import CNNModel
from support.helpers import make_distillation, make_obs, write_drawn_bundle
from support.trained import as_a_runner_builds_it
from tensordict import TensorDict

from rsl_tbptt.algorithms import TbpttDistillation
from rsl_tbptt.deploy import Policy
from rsl_tbptt.tools.robot.bundle import BundlePolicy
from rsl_tbptt.tools.robot.export import export
from rsl_tbptt.tools.robot.verify import torchscript, verify
from rsl_tbptt.tools.run import read_run


@pytest.fixture(scope="module", params=[False, True], ids=["groups", "single input"])
def made(request, tmp_path_factory):
    """Return the bundle of a policy that sees images and a vector, and the policy."""
    folder = tmp_path_factory.mktemp("bundle")
    algorithm = make_distillation(TbpttDistillation, 4, 2, student="cnn-lstm", gradient_length=2)
    policy, obs = algorithm.student.eval(), algorithm.storage.observations[0, :1]
    groups = {name: obs[name] for name in policy.group_shapes}
    options = {"single_input": request.param, "targets": ["c"]}
    write_drawn_bundle(folder, policy, groups, 20, **options)
    return folder, policy


@pytest.fixture
def bundle(made):
    return made[0]


def groups_of(bundle):
    golden = dict(np.load(bundle / "golden.npz"))
    return golden, {k[4:]: v for k, v in golden.items() if k.startswith("obs/")}


def check_replay(bundle):
    """Check that the bundle's stepper repeats the recording of the trained policy."""
    policy, (golden, groups) = Policy(bundle), groups_of(bundle)
    for step, starts in enumerate(golden["reset"]):
        if starts:
            policy.reset()
        actions = policy.step({name: values[step] for name, values in groups.items()})
        np.testing.assert_allclose(actions, golden["actions"][step], atol=1e-5)
        np.testing.assert_allclose(policy.state["h_in"][:, 0], golden["h"][step], atol=1e-5)


def test_a_step_equals_the_trained_policys_and_reset_clears_the_state(bundle):
    check_replay(bundle)


def test_the_published_student_of_go1_repeats_its_recording():
    bundle = Path(__file__).parents[2] / "examples" / "go1_flat_student"
    check_replay(bundle)
    assert sum(file.stat().st_size for file in bundle.iterdir()) < 2.5e6


def test_one_array_is_accepted_if_there_is_one_input(bundle):
    policy, (golden, groups) = Policy(bundle), groups_of(bundle)
    joined = np.concatenate([np.ravel(values[0]) for values in groups.values()])
    if len(policy.metadata["inputs"]) == 1:
        np.testing.assert_allclose(policy.step(joined), golden["actions"][0], atol=1e-5)
    else:
        with pytest.raises(ValueError, match=r"observations are .*, expected "):
            policy.step(joined)


def changed(bundle, folder, **entries):
    """Return a copy of a bundle with other entries in ``policy.json``."""
    shutil.copytree(bundle, folder)
    metadata = json.loads((folder / "policy.json").read_text()) | entries
    (folder / "policy.json").write_text(json.dumps(metadata))
    return folder


WRONG_ENTRIES = {
    "format": 2,
    "inputs": {"policy": {"shape": ["5"], "dtype": "float32"}},
    "outputs": {"velocities": {"shape": [3]}},
    "observation_groups": [],
    "state_names": "h",
    "state_shapes": [5],
    "checkpoint": None,
    "robot": "go2",
}


@pytest.mark.parametrize("name", WRONG_ENTRIES)
@pytest.mark.parametrize("form", ["onnx", "c"])
def test_an_entry_of_another_form_is_named(bundle, tmp_path, name, form):
    value = WRONG_ENTRIES[name]
    folder = changed(bundle, tmp_path / "b", **{name: value}, versions={"rsl-tbptt": "7.1"})
    expected = "read it with rsl-tbptt 7.1" if name == "format" else "expected it as `rsl-tbptt exp"
    with pytest.raises(ValueError, match=f"{name} is .* in '.*policy.json', expected ") as error:
        BundlePolicy(folder, form, [])
    assert expected in str(error.value)


def test_a_model_of_another_policy_is_refused(bundle, tmp_path):
    folder = changed(bundle, tmp_path / "b", state_names=["g", "c"])
    with pytest.raises(
        ValueError, match=r"policy\.onnx' has the inputs .*: it is another policy's"
    ):
        Policy(folder)


def test_a_trajectory_and_torchscript_that_do_not_fit_are_named(bundle, tmp_path):
    folder = changed(bundle, tmp_path / "b")
    golden = dict(np.load(folder / "golden.npz"))
    with torchscript():
        torch.jit.script(torch.nn.Linear(2, 2)).save(str(folder / "policy.pt"))
    with pytest.raises(ValueError, match=r"policy\.pt' does not run, expected this policy in Tor"):
        verify(folder, [str(folder)])
    (folder / "policy.pt").write_bytes(b"newer")
    with pytest.raises(ValueError, match=rf"that torch {re.escape(torch.__version__)} can read: "):
        verify(folder, [str(folder)])
    for wrong in ({"reset": None}, {"actions": golden["actions"][1:]}):
        arrays = {name: each for name, each in (golden | wrong).items() if each is not None}
        np.savez(folder / "golden.npz", **arrays)
        with pytest.raises(ValueError, match=r"has the arrays .*, expected 'reset', 'actions'"):
            verify(folder)


@pytest.mark.parametrize("form", ["onnx", "c"])
def test_environments_have_a_memory_each(made, form):
    folder, trained = made
    exported = BundlePolicy(folder, form, [])
    trained.reset()
    exported.reset()
    for step in range(4):
        obs = make_obs(3, torch.Generator().manual_seed(step), images=True)
        with torch.no_grad():
            expected = trained(obs)
        torch.testing.assert_close(exported(obs), expected, atol=1e-5, rtol=1e-5)
        dones = torch.tensor([step == 1, False, step == 2])
        trained.reset(dones)
        exported.reset(dones)


@pytest.mark.parametrize("single_input", [False, True])
def test_a_group_may_be_called_obs(tmp_path, single_input):
    torch.manual_seed(0)
    obs = TensorDict({"obs": torch.randn(1, 1, 8, 8)}, batch_size=[1])
    cnn = {"output_channels": [2], "kernel_size": 3}
    policy = CNNModel(obs, {"actor": ["obs"]}, "actor", 2, hidden_dims=[8], cnn_cfg=cnn).eval()
    write_drawn_bundle(tmp_path, policy, obs.to_dict(), 2, single_input=single_input)
    assert verify(tmp_path)["onnx"] < 1e-5


def changes(groups):
    first = {name: values[0] for name, values in groups.items()}
    name = next(iter(first))
    yield {key: value for key, value in first.items() if key != name}
    yield {**first, "extra": np.zeros(3)}
    yield {**first, name: np.zeros((2, *first[name].shape))}


def test_other_names_and_shapes_are_refused_at_the_first_step(bundle):
    _, groups = groups_of(bundle)
    if [*Policy(bundle).metadata["inputs"]] == ["obs"]:
        cases = [np.zeros(3), {"obs": np.zeros(3)}]
    else:
        cases = changes(groups)
    for observations in cases:
        with pytest.raises(ValueError, match=r"expected .* as in policy\.json"):
            Policy(bundle).step(observations)


def test_the_error_for_a_folder_that_is_not_a_bundle_names_it(tmp_path):
    with pytest.raises(ValueError, match=f"The bundle is '{tmp_path}', expected a folder of"):
        Policy(tmp_path)


def test_neither_torch_nor_rsl_rl_is_imported(bundle):
    code = f"""
import sys
for name in ("torch", "rsl_rl", "tensordict", "isaaclab"):
    sys.modules[name] = None  # importing it fails
from rsl_tbptt.deploy import Policy
policy = Policy({str(bundle)!r})
print(policy.metadata["control_hz"])
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "None"


def test_an_environments_properties_are_in_json_and_onnx(tmp_path):
    import onnx

    algorithm = as_a_runner_builds_it(make_distillation(TbpttDistillation, 4, 2, gradient_length=2))
    terms = [
        {"name": "angles", "shape": [3], "scale": 0.1, "clip": [-1.0, 1.0], "noisy": True,
         "history_length": 0, "flatten_history_dim": True},
        {"name": "command", "shape": [1], "scale": None, "clip": None, "noisy": False,
         "history_length": 0, "flatten_history_dim": True},
    ]  # fmt: skip
    [group] = algorithm.save()["rsl_tbptt"]["models"]["student"]["groups"]
    algorithm.robot = {
        "observation_groups": {group: {"shape": [4], "terms": terms}},
        "step_dt": 0.02,
        "joint_names": ["hip", "knee"],
        "joint_stiffness": [12.000000953674316, 0.1],
        "actions": [
            {"name": "legs", "kind": "JointPositionAction", "width": 2, "clip": None,
             "joint_names": ["hip", "knee"], "scale": 0.3, "offset": [0.7, -1.4]}
        ],
    }  # fmt: skip
    torch.save({**algorithm.save(), "iter": 7}, tmp_path / "model_7.pt")
    export(read_run(tmp_path / "model_7.pt"), tmp_path / "out", steps=4)
    model = onnx.load(tmp_path / "out" / "policy.onnx")
    written = {entry.key: entry.value for entry in model.metadata_props}
    assert written["run_path"] == "model_7.pt"
    assert written["joint_stiffness"] == "12.000000953674316,0.1"
    assert written["observation_names"] == "angles,command"
    assert written["observation_terms_scale"] == "0.1,1.0"
    assert written["observation_terms_clip"] == "-1.0;1.0,-inf;inf"
    assert written["action_scale"] == "0.3,0.3"
    assert (written["control_hz"], written["state_names"]) == ("50.0", "h,c")
    metadata = json.loads((tmp_path / "out" / "policy.json").read_text())
    assert json.loads(written["observation_groups"]) == metadata["observation_groups"]
    assert metadata["observation_groups"][group]["terms"] == terms
    assert (metadata["iteration"], metadata["robot"]["joint_names"]) == (7, ["hip", "knee"])
    text = (tmp_path / "out" / "README.md").read_text()
    assert "50 times a second" in text
    assert "angles 3, clip [-1.0, 1.0], times 0.1; command 1" in text
    assert "hip, knee: action times 0.3 plus [0.7, -1.4]" in text

"""The stepper of a bundle needs only numpy and onnxruntime, and refuses wrong inputs.

tests/core/test_imports.py has what it imports.
"""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from rsl_rl.models import CNNModel
from support.helpers import make_distillation, write_drawn_bundle
from tensordict import TensorDict

from rsl_tbptt import deploy
from rsl_tbptt.algorithms import TbpttDistillation
from rsl_tbptt.deploy import Policy
from rsl_tbptt.tools.robot.verify import verify


@pytest.fixture(scope="module", params=[False, True], ids=["groups", "single input"])
def bundle(request, tmp_path_factory):
    """Return the bundle of a policy that sees images and a vector."""
    folder = tmp_path_factory.mktemp("bundle")
    algorithm = make_distillation(TbpttDistillation, 4, 2, student="cnn-lstm", gradient_length=2)
    policy, obs = algorithm.student.eval(), algorithm.storage.observations[0, :1]
    groups = {name: obs[name] for name in policy.group_shapes}
    write_drawn_bundle(folder, policy, groups, 20, single_input=request.param)
    return folder


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


@pytest.mark.parametrize("student", ["go1_flat_student", "go1_real_student"])
def test_a_published_student_of_go1_repeats_its_recording(student):
    bundle = Path(__file__).parents[2] / "examples" / student
    check_replay(bundle)
    assert sum(file.stat().st_size for file in bundle.iterdir()) < 2.5e6


ROBOT = Path(__file__).parents[2] / ".venv-robot" / "bin" / "python"
ON_ROBOT = """
import sys, numpy
sys.path.insert(0, sys.argv[1])
from deploy import Policy, groups_in
golden = dict(numpy.load(sys.argv[2] + "/golden.npz"))
policy, groups = Policy(sys.argv[2]), groups_in(golden)
for step, starts in enumerate(golden["reset"]):
    if starts:
        policy.reset()
    actions = policy.step({name: values[step] for name, values in groups.items()})
    numpy.testing.assert_allclose(actions, golden["actions"][step], atol=1e-5)
print(sys.version_info[:2])
"""


@pytest.mark.long
@pytest.mark.skipif(not ROBOT.exists(), reason="the matrix has an environment with Python 3.8")
def test_its_file_alone_runs_on_python_3_8(bundle, tmp_path):
    shutil.copy(deploy.__file__, tmp_path / "deploy.py")
    command = [ROBOT, "-c", ON_ROBOT, tmp_path, bundle]
    assert subprocess.check_output(command, text=True).strip() == "(3, 8)"


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
def test_an_entry_of_another_form_is_named(bundle, tmp_path, name):
    value = WRONG_ENTRIES[name]
    folder = changed(bundle, tmp_path / "b", **{name: value}, versions={"rsl-tbptt": "7.1"})
    expected = "read it with rsl-tbptt 7.1" if name == "format" else "expected it as `rsl-tbptt exp"
    with pytest.raises(ValueError, match=f"{name} is .* in '.*policy.json', expected ") as error:
        Policy(folder)
    assert expected in str(error.value)


def test_a_model_of_another_policy_is_refused(bundle, tmp_path):
    folder = changed(bundle, tmp_path / "b", state_names=["g", "c"])
    with pytest.raises(
        ValueError, match=r"policy\.onnx' has the inputs .*: it is another policy's"
    ):
        Policy(folder)


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

"""Exported policies as teachers: the labels of each exporter's files, and files that do not fit."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rsl_rl.runners import OnPolicyRunner
from support import exported_policies as policies
from support.exported_policies import GROUPS, NUM_ACTIONS, WIDTHS, joined, observations, trained
from support.tolerances import WINDOW_FLOAT32
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.checkpoints.reading import read_checkpoint
from rsl_tbptt.models import ExportedTeacher

OBS = observations()


def load(path: str, obs: TensorDict = OBS, groups: Any = GROUPS, **options: Any) -> ExportedTeacher:
    teacher = ExportedTeacher(obs, groups, "teacher", NUM_ACTIONS, **options)
    teacher.load(path, obs)
    return teacher


def check_labels(path: str, expected: torch.Tensor, **options: Any) -> None:
    labels = load(path, **options)(OBS)
    torch.testing.assert_close(labels, expected.detach(), **WINDOW_FLOAT32)
    assert not labels.requires_grad
    assert expected.std(0).min() > 0.005  # labels of different rows differ


HEADS = ["GaussianDistribution", "HeteroscedasticGaussianDistribution", "BetaDistribution"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's exporter warns of itself
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("form", ["jit", "onnx"])
def test_labels_of_rsl_rls_exporters(form, head, tmp_path):
    actor = trained(head)
    runner: Any = SimpleNamespace(alg=SimpleNamespace(get_policy=lambda: actor))
    export = getattr(OnPolicyRunner, f"export_policy_to_{form}")
    name = "policy.pt" if form == "jit" else "policy.onnx"
    export(runner, str(tmp_path), name)
    check_labels(str(tmp_path / name), actor(OBS))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["jit", "onnx"])
def test_labels_of_isaac_labs_exporters(form, tmp_path):
    exporter = pytest.importorskip("isaaclab_rl.rsl_rl.exporter")
    model = trained(None)
    policy: Any = nn.Module()
    policy.actor, policy.is_recurrent = model.mlp, False
    name = "policy.pt" if form == "jit" else "policy.onnx"
    options = {"normalizer": model.obs_normalizer, "path": str(tmp_path), "filename": name}
    getattr(exporter, f"export_policy_as_{form}")(policy, **options)
    check_labels(str(tmp_path / name), model(OBS))


FORMS = {
    "FastSac": lambda net, folder: policies.write_onnx(net, folder / "a.onnx"),
    "FlashSac": lambda net, folder: policies.write_torchscript(net, folder / "a.pt"),
    "Skrl": lambda net, folder: policies.write_torchscript(net, folder / "a.jit", traced=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("network", FORMS)
def test_labels_of_files_of_other_libraries(network, tmp_path):
    """Their libraries, or those that their exporters need, are not in the tests' environments."""
    made = getattr(policies, network)()
    check_labels(FORMS[network](made, tmp_path), made.eval()(joined(OBS)))
    check_labels(policies.write_onnx(made, tmp_path / "b.onnx"), made(joined(OBS)))
    newest = {"dynamo": True, "opset_version": 18, "verbose": False}
    check_labels(policies.write_onnx(made, tmp_path / "c.onnx", **newest), made(joined(OBS)))


@pytest.mark.parametrize("write", ["onnx", "torchscript"])
def test_one_of_several_outputs_is_the_action(write, tmp_path):
    network = policies.RlGames()
    path = getattr(policies, f"write_{write}")(network, tmp_path / f"a.{write}")
    check_labels(path, network(joined(OBS))[0], output=0)
    for output in (None, 3):
        with pytest.raises(ValueError, match=f"has 3 outputs, expected .* which is {output}"):
            load(path, output=output)
    with pytest.raises(ValueError, match=r"returns \(1, 1\), expected actions of shape \(1, 2"):
        load(path, output=2)


ACTIVATIONS = "elu selu relu crelu lrelu tanh sigmoid softplus gelu swish mish"


def test_activations_of_rsl_rl(tmp_path):
    for name in ACTIVATIONS.split():
        actor = trained(activation=name)
        path = policies.write_onnx(actor.as_onnx(verbose=False), tmp_path / "a.onnx")
        check_labels(path, actor(OBS))


def in_form(form: str, network: nn.Module, folder: Any) -> str:
    if form == "onnx":
        return policies.write_onnx(network, folder / "a.onnx")
    return policies.write_torchscript(network, folder / "a.pt", traced=form == "traced")


@pytest.mark.parametrize("form", ["onnx", "scripted", "traced"])
def test_another_width_is_refused_with_both(form, tmp_path):
    path = in_form(form, policies.Skrl(), tmp_path)
    message = r"'.*' takes 7 observations, expected the 4 of the groups {'policy': 4}: name the gr"
    with pytest.raises(ValueError, match=message):
        load(path, groups={"teacher": ["policy"]})
    one = TensorDict({"policy": torch.zeros(3, 1)}, [3])  # would pass by broadcasting
    with pytest.raises(ValueError, match="takes 7 observations, expected the 1 of the groups"):
        load(path, one, {"teacher": ["policy"]})


@pytest.mark.parametrize("form", ["onnx", "scripted"])
def test_a_single_observation_is_enough_for_a_policy_that_takes_one(form, tmp_path, monkeypatch):
    monkeypatch.setattr(policies, "WIDTHS", {"policy": 1})
    network = nn.Sequential(nn.Linear(1, 8), nn.ELU(), nn.Linear(8, NUM_ACTIONS))
    path = in_form(form, network, tmp_path)
    obs = TensorDict({"policy": torch.randn(3, 1)}, [3])
    teacher = load(path, obs, {"teacher": ["policy"]})
    torch.testing.assert_close(teacher(obs), network(obs["policy"]).detach())


def test_groups_are_joined_in_their_order(tmp_path):
    path = in_form("onnx", policies.Skrl(), tmp_path)
    swapped = load(path, groups={"teacher": ["command", "policy"]})
    assert swapped.observed_groups == ["command", "policy"]
    assert not torch.allclose(swapped(OBS), load(path)(OBS))


@pytest.mark.parametrize("network", ["Remembers", "Counts"])
def test_a_state_in_torchscript_is_refused(network, tmp_path):
    path = policies.write_torchscript(getattr(policies, network)(), tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"a\.pt' acts differently on the same observations, exp"):
        load(path)


@pytest.mark.parametrize(
    ("network", "reason"),
    [("OneRow", "invalid for input of size 14"), ("Centred", "rows influence each other")],
)
@pytest.mark.parametrize("form", ["onnx", "scripted"])
def test_a_policy_of_a_single_row_is_refused(form, network, reason, tmp_path):
    path = in_form(form, getattr(policies, network)(), tmp_path)
    with pytest.raises(ValueError, match=rf"runs for one robot only \(.*{reason}\), expected any"):
        load(path)


@pytest.mark.filterwarnings("ignore")
def test_a_recurrent_onnx_file_is_refused_by_its_inputs(tmp_path):
    path = tmp_path / "a.onnx"
    arguments = torch.zeros(1, 1, 7), torch.zeros(1, 1, 4)
    options = {"input_names": ["obs", "h_in"], "dynamo": False}
    torch.onnx.export(nn.GRU(7, 4).eval(), arguments, str(path), **options)
    with pytest.raises(ValueError, match=r"a\.onnx' has the inputs \['obs', 'h_in'\], expected ob"):
        load(str(path))


def test_an_operator_of_other_networks_is_refused_by_its_name(tmp_path):
    network = nn.Sequential(nn.Unflatten(-1, (1, 7)), nn.AvgPool1d(2), nn.Flatten())
    path = policies.write_onnx(network, tmp_path / "a.onnx")
    with pytest.raises(ValueError, match=r"has the operator AveragePool, expected those of a mult"):
        load(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    path = tmp_path / "model_1.pt"
    with pytest.raises(ValueError, match=r"model_1\.pt' does not exist: check the path"):
        load(str(path))
    torch.save({"actor_state_dict": {}}, path)
    with pytest.raises(ValueError, match=r"model_1\.pt' cannot be read \(.*for a checkpoint set t"):
        load(str(path))
    network = tmp_path / "a.onnx"
    network.write_text("nothing")
    with pytest.raises(ValueError, match=r"a\.onnx' cannot be read \("):
        load(str(network))
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ValueError, match=r"a\.onnx' needs the package onnx: .*install.*\[tools\]"):
        load(str(network))


def test_a_file_that_takes_no_single_tensor_is_refused(tmp_path):
    path = policies.write_torchscript(nn.Bilinear(7, 7, NUM_ACTIONS), tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"cannot run on the 7 of the groups .* missing value for"):
        load(path)


def test_an_exported_file_of_another_model_names_the_class(tmp_path):
    script = policies.write_torchscript(policies.Skrl(), tmp_path / "a.pt")
    for path in (script, policies.write_onnx(policies.Skrl(), tmp_path / "a.onnx")):
        with pytest.raises(ValueError, match=r"is an exported policy: name.*models:ExportedTeache"):
            read_checkpoint(path, "cpu")


def test_arguments_of_networks_have_no_effect_and_others_are_refused():
    ExportedTeacher(OBS, GROUPS, "teacher", 2, hidden_dims=[8], activation="elu", rnn_type="gru")
    with pytest.raises(ValueError, match=r"has the arguments \['outptu'\], expected 'output' al"):
        ExportedTeacher(OBS, GROUPS, "teacher", NUM_ACTIONS, outptu=0)
    image = TensorDict({"policy": torch.zeros(2, 1, 4, 4)}, [2])
    with pytest.raises(ValueError, match=r"obs_groups\['teacher'\] is .*\[1, 4, 4\]}, expected ve"):
        ExportedTeacher(image, {"teacher": ["policy"]}, "teacher", NUM_ACTIONS)


def test_the_trial_draws_no_random_numbers(tmp_path):
    path = in_form("onnx", policies.Skrl(), tmp_path)
    before = torch.get_rng_state()
    load(path)
    assert torch.equal(torch.get_rng_state(), before)
    assert sum(WIDTHS.values()) == 7

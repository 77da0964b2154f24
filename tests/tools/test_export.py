"""Loading and exporting: what is exported acts as what was trained, state and reset included."""

import argparse
import copy
from typing import Any

import pytest
import torch
import yaml
from rsl_rl.utils.utils import resolve_class
from support.helpers import make_distillation, roll_out
from tensordict import TensorDict

from rsl_tbptt.algorithms import TbpttDistillation
from rsl_tbptt.algorithms.heads import saved_heads
from rsl_tbptt.checkpoints.describing import describe
from rsl_tbptt.models import CNNRNNModel
from rsl_tbptt.tools import export
from rsl_tbptt.tools.cli import image_size, main
from rsl_tbptt.tools.export import (
    export_onnx,
    export_torchscript,
    make_sequence,
    max_difference,
    run_onnx,
    run_policy,
    run_torchscript,
)
from rsl_tbptt.tools.policies import load_policy, split_into_groups

# rsl_rl and Isaac Lab export to TorchScript, which torch is giving up.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit")

GAUSSIAN = {"class_name": "GaussianDistribution", "init_std": 0.1, "std_range": (1e-6, 1e6)}
RECURRENT = {
    "class_name": "RNNModel",
    "hidden_dims": [16],
    "rnn_hidden_dim": 12,
    "distribution_cfg": GAUSSIAN,
}
MODELS = {
    "lstm": RECURRENT | {"rnn_type": "lstm", "obs_normalization": True},
    "gru": RECURRENT | {"rnn_type": "gru", "rnn_num_layers": 2},
    "mlp": {"class_name": "MLPModel", "hidden_dims": [16, 16], "distribution_cfg": GAUSSIAN},
    "no distribution": {"class_name": "MLPModel", "hidden_dims": [8]},
    "std from the state": {
        "class_name": "MLPModel",
        "hidden_dims": [8],
        "distribution_cfg": {"class_name": "HeteroscedasticGaussianDistribution"},
    },
}
OBS_GROUPS = {"student": ["policy", "camera"], "teacher": ["policy"]}
NUM_OBS, NUM_ACTIONS = 5, 3
TOLERANCE = 1e-5
"""float32 in another operation order, actions of order 1."""


def write_checkpoint(folder, config, part="student"):
    """Write what Isaac Lab leaves: a checkpoint and the agent's config with its Python tuples."""
    torch.manual_seed(0)
    model_class, options = resolve_class(copy.deepcopy(config))
    groups = {part: OBS_GROUPS["student"]}
    obs = split_into_groups(groups[part], torch.zeros(1, NUM_OBS))
    model = model_class(obs, groups, part, NUM_ACTIONS, **options)
    if config.get("obs_normalization"):
        model.update_normalization(split_into_groups(groups[part], 2 * torch.randn(50, NUM_OBS)))
    (folder / "params").mkdir(parents=True)
    agent = {"obs_groups": groups, part: config, "clip_actions": None}
    (folder / "params" / "agent.yaml").write_text(yaml.dump(agent))
    torch.save({f"{part}_state_dict": model.state_dict(), "iter": 4}, folder / "model_4.pt")
    return folder / "model_4.pt", model.eval()


SHOWN_IN_PART = {
    "no distribution": "student: {activation: elu, distribution_cfg: null}",
    "std from the state": "student: {activation: elu, distribution_cfg: "
    "{class_name: HeteroscedasticGaussianDistribution}}",
}


@pytest.mark.parametrize("kind", MODELS)
def test_loaded_policy_acts_as_the_trained_one(tmp_path, kind):
    checkpoint, model = write_checkpoint(tmp_path, MODELS[kind])
    (tmp_path / "told.yaml").write_text(SHOWN_IN_PART.get(kind, "student: {activation: elu}"))
    policies = [load_policy(checkpoint), load_policy(checkpoint, agent=tmp_path / "told.yaml")]
    obs, starts = make_sequence(model, 6, seed=0)
    assert obs["obs"].shape == (6, 1, NUM_OBS)
    (expected,) = run_policy(model, obs, starts)
    assert expected.shape == (6, 1, NUM_ACTIONS)
    for policy in policies:
        assert torch.equal(run_policy(policy, obs, starts)[0], expected)


def exported(policy, folder):
    """Export a policy; return a function that runs both files over a sequence."""
    export_torchscript(policy, folder / "policy.pt")
    export_onnx(policy, folder / "policy.onnx")

    def run(obs, starts):
        (scripted,) = run_torchscript(folder / "policy.pt", obs, starts)
        (onnx,) = run_onnx(folder / "policy.onnx", obs, starts)
        return {"torchscript": scripted, "onnx": onnx}

    return run


@pytest.mark.parametrize("kind", ["lstm", "gru", "mlp"])
def test_exports_act_as_the_trained_policy_and_a_forgotten_reset_shows(tmp_path, kind):
    policy = load_policy(write_checkpoint(tmp_path, MODELS[kind])[0])
    run = exported(policy, tmp_path)
    obs, starts = make_sequence(policy, 10, seed=1)
    (expected,) = run_policy(policy, obs, starts)
    for actions in run(obs, starts).values():
        assert actions.shape == expected.shape
        assert max_difference(actions, expected) < TOLERANCE
    for actions in run(obs, [True] + [False] * 9).values():
        differs = (actions - expected).abs().amax((1, 2))
        assert differs[:5].max() < TOLERANCE
        assert (differs[5].item() > 10 * TOLERANCE) is (kind != "mlp")


def test_a_torch_without_torchscript_still_exports_to_onnx(tmp_path, monkeypatch, capsys):
    checkpoint, _ = write_checkpoint(tmp_path, MODELS["lstm"])
    monkeypatch.delattr(torch.jit, "script")
    words = ["export", "--checkpoint", str(checkpoint), "--output", str(tmp_path / "out")]
    assert main(words) == 0
    assert "torchscript: not written" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"policy.onnx", "parity.json"}


def off(model):
    """Let a normaliser have seen observations far from mean 0 and deviation 1."""
    generator = torch.Generator().manual_seed(1)
    size = model.obs_normalizer._mean.shape
    model.obs_normalizer._mean.copy_(100.0 * torch.randn(size, generator=generator))
    model.obs_normalizer._std.copy_(torch.rand(size, generator=generator) + 0.01)
    return model


def ours():
    """Build a policy of two groups that are normalised, and of images."""
    torch.manual_seed(0)
    groups = {"policy": torch.zeros(1, 3), "goal": torch.zeros(1, 3)}
    groups["camera"] = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    return CNNRNNModel(
        TensorDict(groups, batch_size=[1]),
        {"student": [*groups]},
        "student",
        NUM_ACTIONS,
        hidden_dims=[8],
        rnn_hidden_dim=8,
        obs_normalization=True,
        cnn_cfg={"output_channels": [2], "kernel_size": 3},
        image_scale=1 / 255,
    ).eval()


def without_memory(policy):
    for name, weights in policy.rnn.rnn.named_parameters():
        if "weight_hh" in name:
            weights.data.zero_()


def with_groups_swapped(policy):
    """Read the second half of the observations where the first one was."""
    layers = policy.rnn.rnn.weight_ih_l0, policy.obs_normalizer._mean, policy.obs_normalizer._std
    for values in layers:
        half = policy.obs_dim // 2
        values.data[:, : 2 * half] = values.data[:, : 2 * half].roll(half, dims=-1)


@pytest.fixture(params=["rsl_rl", "ours"])
def far_off(request, tmp_path):
    """A policy whose normaliser has seen what is far from mean 0 and deviation 1."""
    if request.param == "rsl_rl":
        return off(load_policy(write_checkpoint(tmp_path, MODELS["lstm"])[0]))
    return off(ours())


@pytest.mark.parametrize("fault", [without_memory, with_groups_swapped])
def test_a_fault_shows_behind_a_normaliser(far_off, fault):
    obs, starts = make_sequence(far_off, 16, seed=0)
    (expected,) = run_policy(far_off, obs, starts)
    fault(far_off)
    assert max_difference(run_policy(far_off, obs, starts)[0], expected) > 1e-3


def test_observations_are_drawn_as_the_normaliser_has_seen_them():
    policy = off(ours())
    obs, _ = make_sequence(policy, 4000, seed=0)
    seen = torch.cat([obs["policy"], obs["goal"]], dim=-1).squeeze(1)
    normalizer: Any = policy.obs_normalizer
    assert (seen.mean(0) - normalizer.mean).abs().max() < 0.1
    assert (seen.std(0) / normalizer.std - 1.0).abs().max() < 0.1
    assert obs["camera"].dtype == torch.uint8
    assert obs["camera"].float().mean() == pytest.approx(127.5, abs=2.0)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_export_that_does_not_pass_replaces_nothing(tmp_path, monkeypatch, capsys):
    checkpoint, model = write_checkpoint(tmp_path / "run", MODELS["lstm"])
    torch.save({"student_state_dict": off(model).state_dict()}, checkpoint)
    words = ["export", "--checkpoint", str(checkpoint), "--output", str(tmp_path / "out")]
    assert main(words) == 0
    before = contents(tmp_path / "out")

    def broken(policy, *args):
        faulty = copy.deepcopy(policy)
        without_memory(faulty)
        export_onnx(faulty, *args)

    monkeypatch.setattr(export, "export_onnx", broken)
    assert main(words) == 1
    assert "is not within 1.0e-04: nothing is written" in capsys.readouterr().err
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize(
    ("kind", "told", "missing"),
    [
        ("lstm", "actor: {activation: elu}", "student.activation"),
        ("std from the state", "student: {activation: elu}", "student.distribution_cfg"),
    ],
)
def test_what_parameters_do_not_show_is_asked_for(tmp_path, kind, told, missing):
    checkpoint, _ = write_checkpoint(tmp_path, MODELS[kind])
    (tmp_path / "told.yaml").write_text(told)
    with pytest.raises(ValueError, match=f"{missing} is missing, expected the training's"):
        load_policy(checkpoint, agent=tmp_path / "told.yaml")


CNN = {
    "class_name": "CNNModel",
    "hidden_dims": [8],
    "cnn_cfg": {"output_channels": [3, 2], "kernel_size": 3, "stride": [2, 1], "norm": "layer"},
    "distribution_cfg": GAUSSIAN,
}
IMAGES = {"camera": (2, 9, 11), "depth": (1, 12, 8)}


def write_cnn(folder, vectors, known=True, **options):
    """Write the checkpoint of a CNN that sees images, and vectors or none; 5 numbers of each."""
    config, groups = CNN | options, {"actor": [*vectors, *IMAGES]}
    torch.manual_seed(0)
    obs = TensorDict({name: torch.randn(50, NUM_OBS) for name in vectors}, batch_size=[50])
    obs.update({name: torch.randn(50, *shape) for name, shape in IMAGES.items()})
    model_class, arguments = resolve_class(copy.deepcopy(config))
    model = model_class(obs, groups, "actor", NUM_ACTIONS, **arguments)
    model.update_normalization(obs)
    (folder / "params").mkdir(parents=True)
    agent = {"obs_groups": groups, "actor": config, "clip_actions": None}
    (folder / "params" / "agent.yaml").write_text(yaml.dump(agent))
    own = {"models": {"actor": describe(model, obs)}} if known else {}
    checkpoint = {"actor_state_dict": model.state_dict(), "iter": 4, "rsl_tbptt": own}
    torch.save(checkpoint, folder / "model_4.pt")
    return folder / "model_4.pt", model.eval()


@pytest.mark.parametrize(
    ("vectors", "options"), [(["policy", "goal"], {"obs_normalization": True}), ([], {})]
)
def test_a_cnn_is_exported_with_its_images(tmp_path, vectors, options):
    checkpoint, model = write_cnn(tmp_path, vectors, **options)
    policy = load_policy(checkpoint)
    run = exported(policy, tmp_path)
    obs, starts = make_sequence(policy, 4, seed=1)
    assert {name: group.shape[2:] for name, group in obs.items()} == {
        "obs": (NUM_OBS * len(vectors),),
        **IMAGES,
    }
    (expected,) = run_policy(policy, obs, starts)
    assert torch.equal(expected, run_policy(model, obs, starts)[0])
    for actions in run(obs, starts).values():
        assert max_difference(actions, expected) < TOLERANCE
    blind = {**obs, "depth": torch.zeros_like(obs["depth"])}
    assert max_difference(run(blind, starts)["onnx"], expected) > TOLERANCE


def test_image_sizes_that_rsl_rl_alone_does_not_write_are_asked_for(tmp_path):
    checkpoint, model = write_cnn(tmp_path, ["policy"], known=False)
    with pytest.raises(ValueError, match=r"images 'camera' is missing.*--image camera=3x64x64"):
        load_policy(checkpoint)
    images = dict(image_size(text) for text in ("camera=2x9x11", "depth=1x12x8"))
    policy = load_policy(checkpoint, images=images)
    obs, starts = make_sequence(policy, 2, seed=1)
    assert torch.equal(run_policy(policy, obs, starts)[0], run_policy(model, obs, starts)[0])
    with pytest.raises(ValueError, match=r"does not fit its params/agent\.yaml"):
        load_policy(checkpoint, images={**images, "depth": (1, 16, 8)})
    with pytest.raises(argparse.ArgumentTypeError, match="'camera=9x11', expected for example"):
        image_size("camera=9x11")


HEADS = {
    "velocity": {"target": "state", "columns": [1, 3], "hidden_dims": [4]},
    "contact": {"target": "state", "columns": [0], "loss": "bce"},
}


def trained_with_heads(student):
    algorithm = make_distillation(
        TbpttDistillation, 6, 4, student=student, gradient_length=3, auxiliary=HEADS
    )
    roll_out(algorithm, 0)
    algorithm.update()
    return algorithm


@pytest.mark.parametrize("student", ["lstm", "mlp", "cnn", "cnn-lstm", "cnn-gru"])
def test_heads_are_outputs_of_the_onnx_file_behind_the_state(tmp_path, student):
    algorithm, file = trained_with_heads(student), tmp_path / "policy.onnx"
    heads = saved_heads(algorithm.save()["rsl_tbptt"]["auxiliary"])
    assert [*heads] == ["auxiliary/velocity", "auxiliary/contact"]
    policy, latents = algorithm.student.eval(), []
    export_onnx(policy, file, heads)
    obs, starts = make_sequence(policy, 10, seed=1)
    hook = policy.mlp.register_forward_pre_hook(lambda _, inputs: latents.append(inputs[0]))
    (actions,) = run_policy(policy, obs, starts)
    hook.remove()
    with torch.no_grad():
        velocity, contact = (head(torch.stack(latents)) for head in algorithm._heads.module)
    expected = [actions, velocity, contact.sigmoid()]
    for outputs in (run_onnx(file, obs, starts), run_policy(policy, obs, starts, heads)):
        for got, want in zip(outputs, expected, strict=True):
            assert got.shape == want.shape
            assert max_difference(got, want) < TOLERANCE
            assert want.std() > 10 * TOLERANCE


def test_the_command_compares_heads(tmp_path, monkeypatch):
    algorithm, checkpoint = trained_with_heads("lstm"), tmp_path / "model_0.pt"
    torch.save({**algorithm.save(), "iter": 0, "infos": None}, checkpoint)
    parity = export.export(checkpoint, tmp_path / "out", parity_steps=6)
    names = {"onnx", "torchscript", "auxiliary/velocity", "auxiliary/contact"}
    assert names - {"torchscript"} <= parity["max_difference"].keys() <= names
    assert max(parity["max_difference"].values()) < TOLERANCE

    def others(*args):
        actions, *predictions = run_policy(*args)
        return [actions, *(each + 1.0 for each in predictions)]

    monkeypatch.setattr(export, "run_policy", others)
    assert not export.export(checkpoint, tmp_path / "out", parity_steps=6)["passed"]

"""Loading and exporting: what is exported acts as what was trained, state and reset included."""

import argparse
import copy
from typing import Any

import pytest
import torch
import yaml
from rsl_rl.utils.utils import resolve_class
from tensordict import TensorDict

from rsl_tbptt.checkpoints.describing import describe
from rsl_tbptt.models import CNNRNNModel, RecurrentModel
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
from rsl_tbptt.tools.policies import images_of, load_policy, split_into_groups

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


@pytest.mark.parametrize("kind", MODELS)
def test_loaded_policy_acts_as_the_trained_one(tmp_path, kind):
    checkpoint, model = write_checkpoint(tmp_path, MODELS[kind], "actor")
    policy = load_policy(checkpoint)
    obs, starts = make_sequence(policy, 6, seed=0)
    assert obs["obs"].shape == (6, 1, NUM_OBS)
    actions = run_policy(policy, obs, starts)
    assert actions.shape == (6, 1, NUM_ACTIONS)
    assert torch.equal(actions, run_policy(model, obs, starts))


@pytest.mark.parametrize("kind", ["lstm", "gru", "mlp"])
def test_exports_act_as_the_trained_policy(tmp_path, kind):
    checkpoint, _ = write_checkpoint(tmp_path, MODELS[kind])
    policy = load_policy(checkpoint)
    export_torchscript(policy, tmp_path / "policy.pt")
    export_onnx(policy, tmp_path / "policy.onnx")
    obs, starts = make_sequence(policy, 10, seed=1)
    expected = run_policy(policy, obs, starts)
    for exported in (
        run_torchscript(tmp_path / "policy.pt", obs, starts),
        run_onnx(tmp_path / "policy.onnx", obs, starts),
    ):
        assert exported.shape == expected.shape
        assert max_difference(exported, expected) < TOLERANCE
    assert not list(tmp_path.rglob(".*"))


def test_a_torch_without_torchscript_still_exports_to_onnx(tmp_path, monkeypatch, capsys):
    checkpoint, _ = write_checkpoint(tmp_path, MODELS["lstm"])
    monkeypatch.delattr(torch.jit, "script")
    words = ["export", "--checkpoint", str(checkpoint), "--output", str(tmp_path / "out")]
    assert main(words) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("onnx: largest difference")
    assert second == f"torchscript: not written, torch {torch.__version__} has given it up"
    assert third == f"wrote {tmp_path / 'out'}"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"policy.onnx", "parity.json"}


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_forgotten_reset_shows(tmp_path, kind):
    checkpoint, _ = write_checkpoint(tmp_path, MODELS[kind])
    policy = load_policy(checkpoint)
    export_torchscript(policy, tmp_path / "policy.pt")
    export_onnx(policy, tmp_path / "policy.onnx")
    obs, starts = make_sequence(policy, 10, seed=1)
    expected = run_policy(policy, obs, starts)
    forgotten = [True] + [False] * 9
    for run, name in ((run_torchscript, "policy.pt"), (run_onnx, "policy.onnx")):
        differs = (run(tmp_path / name, obs, forgotten) - expected).abs().amax((1, 2))
        assert differs[:5].max() < TOLERANCE
        assert differs[5] > 10 * TOLERANCE


def off(model):
    """Let a normaliser have seen observations far from mean 0 and deviation 1."""
    generator = torch.Generator().manual_seed(1)
    size = model.obs_normalizer._mean.shape
    model.obs_normalizer._mean.copy_(100.0 * torch.randn(size, generator=generator))
    model.obs_normalizer._std.copy_(torch.rand(size, generator=generator) + 0.01)
    return model


def ours(sees=False):
    """Build a policy of two groups that are normalised, and of images if asked for."""
    groups = {"policy": torch.zeros(1, 3), "goal": torch.zeros(1, 3)}
    model_class: Any = RecurrentModel
    options: dict[str, Any] = {}
    if sees:
        groups["camera"] = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
        cnn_cfg = {"output_channels": [2], "kernel_size": 3}
        model_class, options = CNNRNNModel, {"cnn_cfg": cnn_cfg, "image_scale": 1 / 255}
    torch.manual_seed(0)
    return model_class(
        TensorDict(groups, batch_size=[1]),
        {"student": [*groups]},
        "student",
        NUM_ACTIONS,
        hidden_dims=[8],
        rnn_hidden_dim=8,
        obs_normalization=True,
        **options,
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


@pytest.fixture(params=["rsl_rl", "ours", "seeing"])
def far_off(request, tmp_path):
    """A policy whose normaliser has seen what is far from mean 0 and deviation 1."""
    if request.param == "rsl_rl":
        return off(load_policy(write_checkpoint(tmp_path, MODELS["lstm"])[0]))
    return off(ours(request.param == "seeing"))


@pytest.mark.parametrize("fault", [without_memory, with_groups_swapped])
def test_a_fault_shows_behind_a_normaliser(far_off, fault):
    obs, starts = make_sequence(far_off, 16, seed=0)
    expected = run_policy(far_off, obs, starts)
    fault(far_off)
    assert max_difference(run_policy(far_off, obs, starts), expected) > 1e-3


def test_observations_are_drawn_as_the_normaliser_has_seen_them():
    policy = off(ours(sees=True))
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


def test_exports_lie_beside_their_checkpoint_and_keep_what_is_there(tmp_path, monkeypatch, capsys):
    checkpoint, _ = write_checkpoint(tmp_path / "run", MODELS["mlp"])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    folder = tmp_path / "run" / "exported"
    folder.mkdir()
    (folder / "policy.onnx").write_text("Isaac Lab's")
    (folder / "model_4").mkdir()
    (folder / "model_4" / "policy.onnx").write_text("compared before")
    assert main(["export", "--checkpoint", str(checkpoint)]) == 0
    assert capsys.readouterr().out.endswith(f"wrote {folder / 'model_4-2'}\n")
    assert {*contents(folder / "model_4-2")} >= {"policy.onnx", "parity.json"}
    assert (folder / "policy.onnx").read_text() == "Isaac Lab's"
    assert (folder / "model_4" / "policy.onnx").read_text() == "compared before"
    assert not [*(tmp_path / "elsewhere").iterdir()]


def test_an_export_that_cannot_be_written_is_refused_before_anything_is_run(
    tmp_path, monkeypatch, capsys
):
    checkpoint, _ = write_checkpoint(tmp_path / "run", MODELS["mlp"])
    (tmp_path / "file").touch()
    monkeypatch.setattr(export, "run_policy", None)
    words = ["export", "--checkpoint", str(checkpoint), "--output", str(tmp_path / "file" / "out")]
    assert main(words) == 1
    assert "expected a folder that can be written" in capsys.readouterr().err


SHOWN_IN_PART = {
    "no distribution": "student: {activation: elu, distribution_cfg: null}",
    "std from the state": "student: {activation: elu, distribution_cfg: "
    "{class_name: HeteroscedasticGaussianDistribution}}",
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_policy_of_rsl_rl_alone_is_built_from_its_parameters_and_what_is_told(tmp_path, kind):
    checkpoint, model = write_checkpoint(tmp_path, MODELS[kind])
    (tmp_path / "params" / "agent.yaml").unlink()
    told = tmp_path / "told.yaml"
    told.write_text(SHOWN_IN_PART.get(kind, "student: {activation: elu}"))
    policy = load_policy(checkpoint, agent=told)
    obs, starts = make_sequence(policy, 6, seed=0)
    assert torch.equal(run_policy(policy, obs, starts), run_policy(model, obs, starts))


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
    export_torchscript(policy, tmp_path / "policy.pt")
    export_onnx(policy, tmp_path / "policy.onnx")
    obs, starts = make_sequence(policy, 4, seed=1)
    assert {name: group.shape[2:] for name, group in obs.items()} == {
        "obs": (NUM_OBS * len(vectors),),
        **IMAGES,
    }
    expected = run_policy(policy, obs, starts)
    assert torch.equal(expected, run_policy(model, obs, starts))
    for run, name in ((run_torchscript, "policy.pt"), (run_onnx, "policy.onnx")):
        assert max_difference(run(tmp_path / name, obs, starts), expected) < TOLERANCE
    blind = {**obs, "depth": torch.zeros_like(obs["depth"])}
    assert max_difference(run_onnx(tmp_path / "policy.onnx", blind, starts), expected) > TOLERANCE


def test_image_sizes_that_rsl_rl_alone_does_not_write_are_asked_for(tmp_path):
    checkpoint, model = write_cnn(tmp_path, ["policy"], known=False)
    with pytest.raises(ValueError, match=r"images 'camera' is missing.*--image camera=3x64x64"):
        load_policy(checkpoint)
    images = dict(image_size(text) for text in ("camera=2x9x11", "depth=1x12x8"))
    policy = load_policy(checkpoint, images=images)
    obs, starts = make_sequence(policy, 2, seed=1)
    assert images_of(TensorDict({k: v[0] for k, v in obs.items()}, batch_size=[1])) == images
    assert torch.equal(run_policy(policy, obs, starts), run_policy(model, obs, starts))
    with pytest.raises(ValueError, match=r"does not fit its params/agent\.yaml"):
        load_policy(checkpoint, images={**images, "depth": (1, 16, 8)})
    with pytest.raises(argparse.ArgumentTypeError, match="'camera=9x11', expected for example"):
        image_size("camera=9x11")


class Evil:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return (open, ("ran", "w"))


def test_checkpoint_cannot_run_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoint, _ = write_checkpoint(tmp_path, MODELS["mlp"])
    torch.save({"student_state_dict": Evil()}, checkpoint)
    with pytest.raises(ValueError, match="cannot be read, it is damaged"):
        load_policy(checkpoint)
    assert not (tmp_path / "ran").exists()

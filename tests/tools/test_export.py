"""Loading and exporting: exports act like the trained policy, state and reset included."""

import argparse
import copy
import json
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import yaml
from rsl_rl.utils.utils import resolve_class
from support.helpers import MEMORIES, make_distillation, roll_out
from support.inside import networks_of_heads
from support.trained import load_policy
from tensordict import TensorDict

from rsl_tbptt.algorithms import TbpttDistillation
from rsl_tbptt.checkpoints.describing import describe
from rsl_tbptt.models import CNNRNNModel
from rsl_tbptt.models.one_step import OneStep
from rsl_tbptt.tools.commands.cli import main
from rsl_tbptt.tools.commands.commands import image_size
from rsl_tbptt.tools.robot import export as bundle
from rsl_tbptt.tools.robot.bundle import BundlePolicy
from rsl_tbptt.tools.robot.export import Recorded, write_bundle
from rsl_tbptt.tools.robot.golden import draw
from rsl_tbptt.tools.robot.robot_log import diagnose_log
from rsl_tbptt.tools.robot.verify import largest_difference, read_golden, verify
from rsl_tbptt.tools.simulate.policies import groups_of, saved_heads, split_into_groups

# rsl_rl and Isaac Lab export to TorchScript, which torch deprecates.
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
    **{
        kind: RECURRENT | {"class_name": "rsl_tbptt.models:RecurrentModel", "rnn_type": kind}
        for kind in MEMORIES
        if kind not in ("lstm", "gru")
    },
    "mlp": {"class_name": "MLPModel", "hidden_dims": [16, 16], "distribution_cfg": GAUSSIAN},
    "no distribution": {"class_name": "MLPModel", "hidden_dims": [8]},
    "std from the state": {
        "class_name": "MLPModel",
        "hidden_dims": [8],
        "distribution_cfg": {"class_name": "HeteroscedasticGaussianDistribution"},
    },
    "beta": {
        "class_name": "MLPModel",
        "hidden_dims": [8],
        "distribution_cfg": {"class_name": "BetaDistribution", "action_range": (-0.5, 2.0)},
    },
}
OBS_GROUPS = {"student": ["policy", "camera"], "teacher": ["policy"]}
NUM_OBS, NUM_ACTIONS = 5, 3
TOLERANCE = 1e-5
"""Tolerance for float32 in another operation order; actions are of order 1."""


def write_checkpoint(folder, config):
    """Write files as Isaac Lab does: a checkpoint and the agent's config with its Python tuples."""
    torch.manual_seed(0)
    model_class, options = resolve_class(copy.deepcopy(config))
    groups = {"student": OBS_GROUPS["student"]}
    obs = split_into_groups(groups["student"], torch.randn(50, NUM_OBS))
    model = model_class(obs, groups, "student", NUM_ACTIONS, **options)
    model.update_normalization(obs)
    (folder / "params").mkdir(parents=True)
    agent = {"obs_groups": groups, "student": config, "clip_actions": None}
    (folder / "params" / "agent.yaml").write_text(yaml.dump(agent))
    torch.save({"student_state_dict": model.state_dict(), "iter": 4}, folder / "model_4.pt")
    return folder / "model_4.pt", model.eval()


def drawn(policy, num_steps):
    """Return a policy's steps on drawn observations; groups of unknown width get any width."""
    shapes = getattr(policy, "group_shapes", None)
    if shapes is None:
        groups = split_into_groups(policy.obs_groups, torch.zeros(1, policy.obs_dim)).to_dict()
        images = getattr(policy, "obs_groups_2d", ())
        groups |= {name: torch.zeros(1, *IMAGES[name]) for name in images}
    else:
        groups = {n: torch.zeros(1, *shapes[n], dtype=policy.group_dtypes[n]) for n in shapes}
    return draw(policy, {}, groups, num_steps, seed=0)


@pytest.mark.parametrize("kind", MODELS)
def test_loaded_policy_acts_as_the_trained_one(tmp_path, kind):
    checkpoint, model = write_checkpoint(tmp_path, MODELS[kind])
    expected = drawn(model, 6)["actions"]
    assert expected.shape == (6, NUM_ACTIONS)
    np.testing.assert_array_equal(drawn(load_policy(checkpoint), 6)["actions"], expected)
    told = (tmp_path / "params" / "agent.yaml").rename(tmp_path / "told.yaml")
    np.testing.assert_array_equal(drawn(load_policy(checkpoint, told), 6)["actions"], expected)
    with pytest.raises(FileNotFoundError, match="as --agent FILE"):
        load_policy(checkpoint)


def run_export(checkpoint, output, *words):
    return main(["export", "--checkpoint", str(checkpoint), "--output", str(output), *words])


FILES = {"policy.onnx", "policy.pt", "policy.json", "README.md", "golden.npz"}


@pytest.mark.parametrize("kind", ["lstm", "mlp"])
def test_a_bundle_acts_as_the_trained_policy_and_a_forgotten_reset_shows(tmp_path, kind):
    checkpoint, model = write_checkpoint(tmp_path / "run", MODELS[kind])
    out = tmp_path / "out"
    assert run_export(checkpoint, out, "--steps", "30") == 0
    assert {path.name for path in out.iterdir()} == FILES
    golden = read_golden(out / "golden.npz")
    assert golden["reset"].nonzero()[0].tolist() == [0, 15]
    np.testing.assert_array_equal(golden["actions"], drawn(model, 30)["actions"])
    assert max(verify(out, [out]).values()) < TOLERANCE
    np.savez(out / "golden.npz", **{**golden, "reset": np.arange(30) == 0})
    assert [value > 10 * TOLERANCE for value in verify(out, [out]).values()] == [kind != "mlp"] * 2


def test_the_checkpoint_is_read_once(tmp_path, monkeypatch):
    checkpoint, _ = write_checkpoint(tmp_path / "run", MODELS["lstm"])
    read, load = [], torch.load

    def noted(file, *args, **options):
        read.append(file)
        return load(file, *args, **options)

    monkeypatch.setattr(torch, "load", noted)
    assert run_export(checkpoint, tmp_path / "out", "--steps", "4") == 0
    assert len(read) == 1


OWN_DISTRIBUTION = """
import torch
from rsl_rl.modules.distribution import Distribution

class OneStd(Distribution):
    def __init__(self, output_dim, limits):
        super().__init__(output_dim)
        if len(limits) != output_dim:
            raise ValueError(limits)
        self.limits = torch.tensor(limits)

    @property
    def input_dim(self):
        return self.output_dim + 1

    def update(self, mlp_output):
        mean, self.shared_std = self.deterministic_output(mlp_output), mlp_output[..., -1:].exp()
        self.normal = torch.distributions.Normal(mean, self.shared_std)

    def deterministic_output(self, mlp_output):
        return self.limits * torch.tanh(mlp_output[..., :-1])

    @property
    def std(self):
        return self.shared_std.expand(self.output_dim) if hasattr(self, "normal") else 1 / 0
"""


def test_a_distribution_of_the_users_is_exported(tmp_path, monkeypatch):
    """It has no module for exports, one option per action and another number of inputs."""
    (tmp_path / "my_distributions.py").write_text(OWN_DISTRIBUTION)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    own = {"class_name": "my_distributions:OneStd", "limits": [0.5, 1.0, 2.0]}
    checkpoint, model = write_checkpoint(
        tmp_path / "run", MODELS["lstm"] | {"distribution_cfg": own}
    )
    out, words = tmp_path / "out", ("--steps", "30", "--target", "c")
    assert run_export(checkpoint, out, *words, "--trust", "my_distributions") == 0
    golden = read_golden(out / "golden.npz")
    np.testing.assert_array_equal(golden["actions"], drawn(model, 30)["actions"])
    assert max(verify(out, [out]).values()) < TOLERANCE


def test_constants_are_folded_and_there_is_one_file(tmp_path):
    checkpoint, _ = write_checkpoint(tmp_path / "run", MODELS["lstm"] | {"rnn_hidden_dim": 300})
    assert run_export(checkpoint, tmp_path / "out", "--steps", "2") == 0
    graph = onnx.load(tmp_path / "out" / "policy.onnx").graph
    weights = {tensor.name for tensor in graph.initializer}
    assert all(set(node.input) - weights for node in graph.node if node.op_type != "Constant")
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES


def test_a_torch_without_torchscript_still_exports_to_onnx(tmp_path, monkeypatch, capsys):
    checkpoint, _ = write_checkpoint(tmp_path, MODELS["lstm"])
    monkeypatch.delattr(torch.jit, "script")
    assert run_export(checkpoint, tmp_path / "out") == 0
    assert "torchscript: not there" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES - {"policy.pt"}


def off(model):
    """Set a normaliser's statistics far from mean 0 and deviation 1."""
    generator = torch.Generator().manual_seed(1)
    size = model.obs_normalizer._mean.shape
    model.obs_normalizer._mean.copy_(100.0 * torch.randn(size, generator=generator))
    model.obs_normalizer._std.copy_(torch.rand(size, generator=generator) + 0.01)
    return model


def ours():
    """Build a policy with two normalised observation groups and images."""
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
    """Swap the two halves of the observations, with their weights and statistics."""
    layers = policy.rnn.rnn.weight_ih_l0, policy.obs_normalizer._mean, policy.obs_normalizer._std
    for values in layers:
        half = policy.obs_dim // 2
        values.data[:, : 2 * half] = values.data[:, : 2 * half].roll(half, dims=-1)


@pytest.fixture(params=["rsl_rl", "ours"])
def far_off(request, tmp_path):
    """A policy whose normaliser's statistics are far from mean 0 and deviation 1."""
    if request.param == "rsl_rl":
        return off(load_policy(write_checkpoint(tmp_path, MODELS["lstm"])[0]))
    return off(ours())


@pytest.mark.parametrize("fault", [without_memory, with_groups_swapped])
def test_a_fault_shows_behind_a_normaliser(far_off, fault):
    expected = drawn(far_off, 16)["actions"]
    fault(far_off)
    assert largest_difference(drawn(far_off, 16)["actions"], expected) > 1e-3


def test_observations_are_drawn_as_the_normaliser_has_seen_them():
    policy = off(ours())
    obs = drawn(policy, 4000)
    seen = np.concatenate([obs["obs/policy"], obs["obs/goal"]], axis=-1)
    normalizer: Any = policy.obs_normalizer
    assert np.abs(seen.mean(0) - normalizer.mean.numpy()).max() < 0.1
    assert np.abs(seen.std(0) / normalizer.std.numpy() - 1.0).max() < 0.1
    assert obs["obs/camera"].dtype == np.uint8
    assert obs["obs/camera"].mean() == pytest.approx(127.5, abs=2.0)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_failed_export_replaces_nothing(tmp_path, monkeypatch, capsys):
    checkpoint, model = write_checkpoint(tmp_path / "run", MODELS["lstm"])
    torch.save({"student_state_dict": off(model).state_dict()}, checkpoint)
    assert run_export(checkpoint, tmp_path / "out") == 0
    before = contents(tmp_path / "out")

    def broken(policy, *args, **options):
        faulty = copy.deepcopy(policy)
        without_memory(faulty)
        return OneStep(faulty, *args, **options)

    monkeypatch.setattr(bundle, "OneStep", broken)
    assert run_export(checkpoint, tmp_path / "out") == 1
    assert "is not within 1.0e-04: nothing is written" in capsys.readouterr().err
    assert contents(tmp_path / "out") == before


CNN = {
    "class_name": "CNNModel",
    "hidden_dims": [8],
    "cnn_cfg": {"output_channels": [3, 2], "kernel_size": 3, "stride": [2, 1], "norm": "layer"},
    "distribution_cfg": GAUSSIAN,
}
IMAGES = {"camera": (2, 9, 11), "depth": (1, 12, 8)}


def write_cnn(folder, vectors, known=True, **options):
    """Write the checkpoint of a CNN that sees images and any number of vectors of 5 numbers."""
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
    ("vectors", "options"),
    [
        (["policy", "goal"], {"obs_normalization": True}),
        ([], {"distribution_cfg": {"class_name": "BetaDistribution"}}),
    ],
)
def test_a_cnn_is_exported_with_its_images(tmp_path, vectors, options):
    checkpoint, _ = write_cnn(tmp_path / "run", vectors, **options)
    targets = ["--target", "legged_control2", "--target", "unitree_gym"]
    for words in ([], ["--single-input"]):
        out = tmp_path / f"out{len(words)}"
        assert run_export(checkpoint, out, "--steps", "4", *words, *targets) == 0
        assert verify(out, [out]).keys() == {
            "onnx",
            "torchscript",
            "legged_control2",
            "unitree_gym",
        }
        golden = read_golden(out / "golden.npz")
        shapes = {name: [NUM_OBS] for name in vectors} | {n: [*s] for n, s in IMAGES.items()}
        inputs = json.loads((out / "policy.json").read_text())["inputs"]
        joined = {"obs": [sum(map(np.prod, shapes.values()))]}
        assert {name: each["shape"] for name, each in inputs.items()} == (
            joined if words else shapes
        )
        assert {name: golden[f"obs/{name}"].shape[1:] for name in shapes} == {
            name: tuple(shape) for name, shape in shapes.items()
        }
        assert max(verify(out, [out]).values()) < TOLERANCE
        blind = {**golden, "obs/depth": np.zeros_like(golden["obs/depth"])}
        np.savez(out / "golden.npz", allow_pickle=False, **blind)
        assert min(verify(out, [out]).values()) > TOLERANCE


def test_a_target_of_an_earlier_export_does_not_stay_unseen(tmp_path, capsys):
    checkpoint, _ = write_checkpoint(tmp_path / "run", MODELS["lstm"])
    words = (tmp_path / "out", "--steps", "2")
    assert run_export(checkpoint, *words, "--target", "unitree_gym") == 0
    assert run_export(checkpoint, *words) == 1
    assert "has the folders ['unitree_gym'] of an earlier export" in capsys.readouterr().err
    assert run_export(checkpoint, *words, "--target", "unitree_gym") == 0


def test_names_may_have_dots(tmp_path, capsys):
    checkpoint, _ = write_checkpoint(tmp_path / "run", MODELS["lstm"])
    checkpoint = checkpoint.rename(checkpoint.with_name("policy_v1.2.pt"))
    assert main(["export", "--checkpoint", str(checkpoint), "--steps", "2"]) == 0
    assert (checkpoint.parent / "exported" / "policy_v1_2" / "policy.onnx").is_file()
    (tmp_path / "go1.v2").mkdir()
    assert run_export(checkpoint, tmp_path / "go1.v2", "--steps", "2") == 0
    assert (tmp_path / "go1.v2" / "policy.onnx").is_file()


def test_groups_of_unknown_width_are_joined(tmp_path):
    """A checkpoint of rsl_rl's own algorithms does not show the widths of several groups."""
    checkpoint, model = write_checkpoint(tmp_path / "run", MODELS["lstm"])
    out = tmp_path / "out"
    assert run_export(checkpoint, out, "--steps", "40", "--target", "c") == 0
    torch.manual_seed(1)
    groups = {"policy": torch.randn(4, 3), "camera": torch.randn(4, 2)}
    obs = TensorDict(groups, batch_size=[4])
    for form in ("onnx", "c"):
        model.reset()
        exported = BundlePolicy(out, form, OBS_GROUPS["student"])
        with torch.no_grad():
            torch.testing.assert_close(exported(obs), model(obs), atol=TOLERANCE, rtol=TOLERANCE)
    golden = read_golden(out / "golden.npz")
    found = diagnose_log(out, out / "golden.npz")
    assert (found.faults, golden.keys() >= {"obs/obs"}) == ([], True)
    assert found.differences["actions"] < TOLERANCE


def test_image_sizes_that_rsl_rl_alone_does_not_write_are_asked_for(tmp_path):
    checkpoint, model = write_cnn(tmp_path, ["policy"], known=False)
    with pytest.raises(ValueError, match=r"images 'camera' is missing.*--image camera=3x64x64"):
        load_policy(checkpoint)
    images = dict(image_size(text) for text in ("camera=2x9x11", "depth=1x12x8"))
    policy = load_policy(checkpoint, images=images)
    np.testing.assert_array_equal(drawn(policy, 2)["actions"], drawn(model, 2)["actions"])
    words = ["--image", "camera=2x9x11", "--image", "depth=1x12x8"]
    assert run_export(checkpoint, tmp_path / "out", *words) == 0
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


@pytest.mark.parametrize("student", ["lstm", "mlp", "cnn-gru"])
def test_heads_are_outputs_of_the_onnx_file_behind_the_state(tmp_path, student):
    algorithm = trained_with_heads(student)
    heads = saved_heads(algorithm.save()["rsl_tbptt"]["auxiliary"])
    policy, obs, latents = algorithm.student.eval(), algorithm.storage.observations[0, :1], []
    groups = {name: obs[name] for name in groups_of(policy)}
    hook = policy.mlp.register_forward_pre_hook(lambda _, inputs: latents.append(inputs[0]))
    golden = draw(policy, heads, groups, 10, seed=0)
    hook.remove()
    with torch.no_grad():
        velocity, contact = (head(torch.cat(latents)) for head in networks_of_heads(algorithm))
    for name, want in (("velocity", velocity), ("contact", contact.sigmoid())):
        np.testing.assert_allclose(golden[f"auxiliary/{name}"], want, atol=TOLERANCE)
        assert want.std() > 10 * TOLERANCE
    about = {"checkpoint": "model_0.pt", "iteration": 0}
    write_bundle(tmp_path, Recorded(policy, golden, ""), heads, {}, about)
    found = verify(tmp_path, [tmp_path])
    assert found.keys() == {"onnx", "torchscript", "auxiliary/velocity", "auxiliary/contact"}
    assert max(found.values()) < TOLERANCE
    np.savez(tmp_path / "golden.npz", **{**golden, "auxiliary/contact": 0 * contact})
    assert main(["verify", str(tmp_path)]) == 1

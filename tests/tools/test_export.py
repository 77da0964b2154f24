"""`rsl-tbptt export`: a checkpoint's policy, what it is compared on, and what is written."""

import contextlib
import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from rsl_rl.utils.utils import resolve_class
from support.helpers import make_distillation, roll_out
from support.inside import networks_of_heads
from tensordict import TensorDict

from rsl_tbptt.algorithms import TbpttDistillation
from rsl_tbptt.checkpoints.describing import describe
from rsl_tbptt.models.one_step import OneStep
from rsl_tbptt.tools.commands.cli import main
from rsl_tbptt.tools.robot import export as bundle
from rsl_tbptt.tools.robot.golden import draw, recorded_terms
from rsl_tbptt.tools.robot.verify import read_golden, verify
from rsl_tbptt.tools.simulate.policies import groups_of, saved_heads

GAUSSIAN = {"class_name": "GaussianDistribution", "init_std": 0.1}
LSTM = {
    "class_name": "RNNModel",
    "hidden_dims": [16],
    "rnn_type": "lstm",
    "rnn_hidden_dim": 12,
    "obs_normalization": True,
    "distribution_cfg": GAUSSIAN,
}
CNN = {
    "class_name": "CNNModel",
    "hidden_dims": [8],
    "cnn_cfg": {"output_channels": [3, 2], "kernel_size": 3, "stride": [2, 1], "norm": "layer"},
    "distribution_cfg": GAUSSIAN,
}
VECTORS = {"policy": (3,), "goal": (3,)}
IMAGES = {"camera": (2, 9, 11), "depth": (1, 12, 8)}
TOLERANCE = 1e-5
"""Tolerance for float32 in another operation order; actions are of order 1."""


def write_checkpoint(folder, config=LSTM, shapes=VECTORS, *, known=True):
    """Write a checkpoint, with its description unless an rsl_rl without our algorithms wrote it."""
    torch.manual_seed(0)
    model_class, options = resolve_class(copy.deepcopy(config))
    obs = TensorDict({name: torch.randn(50, *shapes[name]) for name in shapes}, batch_size=[50])
    groups = {"student": [*shapes]}
    model = model_class(obs, groups, "student", 3, **options)
    model.update_normalization(obs)
    (folder / "params").mkdir(parents=True)
    agent = {"obs_groups": groups, "student": config, "clip_actions": None}
    (folder / "params" / "agent.yaml").write_text(yaml.dump(agent))
    own = {"rsl_tbptt": {"models": {"student": describe(model, obs)}}} if known else {}
    saved = {"student_state_dict": model.state_dict(), "iter": 4, **own}
    torch.save(saved, folder / "model_4.pt")
    return folder / "model_4.pt", model.eval()


def drawn(policy, shapes=VECTORS, num_steps=30):
    """Return a policy's steps on drawn observations."""
    groups = {name: torch.zeros(1, *shape) for name, shape in shapes.items()}
    return draw(policy, {}, groups, num_steps, seed=0)


def run_export(checkpoint, output, *words):
    return main(["export", "--checkpoint", str(checkpoint), "--output", str(output), *words])


FILES = {"policy.onnx", "policy.json", "README.md", "golden.npz"}


def test_a_checkpoint_is_read_once_and_its_bundle_has_the_steps_of_the_trained_policy(
    tmp_path, monkeypatch
):
    checkpoint, model = write_checkpoint(tmp_path / "run")
    read, load = [], torch.load

    def noted(file, *args, **options):
        read.append(file)
        return load(file, *args, **options)

    monkeypatch.setattr(torch, "load", noted)
    out = tmp_path / "out"
    assert run_export(checkpoint, out, "--steps", "30") == 0
    assert ({path.name for path in out.iterdir()}, len(read)) == (FILES, 1)
    golden = read_golden(out / "golden.npz")
    np.testing.assert_array_equal(golden["actions"], drawn(model)["actions"])
    assert max(verify(out).values()) < TOLERANCE


def test_a_checkpoint_that_does_not_tell_its_shapes_needs_an_environment(tmp_path, capsys):
    checkpoint, _ = write_checkpoint(tmp_path / "run", known=False)
    assert run_export(checkpoint, tmp_path / "out") == 1
    assert "record the shapes of ['policy', 'goal'], expected an env" in capsys.readouterr().err


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
    distribution = {"class_name": "my_distributions:OneStd", "limits": [0.5, 1.0, 2.0]}
    checkpoint, model = write_checkpoint(
        tmp_path / "run", LSTM | {"distribution_cfg": distribution}
    )
    out, words = tmp_path / "out", ("--steps", "30", "--trust", "my_distributions")
    assert run_export(checkpoint, out, *words) == 0
    golden = read_golden(out / "golden.npz")
    np.testing.assert_array_equal(golden["actions"], drawn(model)["actions"])
    assert max(verify(out).values()) < TOLERANCE


def test_large_weights_are_in_the_one_file(tmp_path):
    checkpoint, _ = write_checkpoint(tmp_path / "run", LSTM | {"rnn_hidden_dim": 300})
    assert run_export(checkpoint, tmp_path / "out", "--steps", "2") == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES


def off(model):
    """Set a normaliser's statistics far from mean 0 and deviation 1."""
    generator = torch.Generator().manual_seed(1)
    size = model.obs_normalizer._mean.shape
    model.obs_normalizer._mean.copy_(100.0 * torch.randn(size, generator=generator))
    model.obs_normalizer._std.copy_(torch.rand(size, generator=generator) + 0.01)
    return model


def without_memory(policy):
    for name, weights in policy.rnn.rnn.named_parameters():
        if "weight_hh" in name:
            weights.data.zero_()


def test_observations_are_drawn_as_the_normaliser_has_seen_them(tmp_path):
    config = CNN | {"class_name": "rsl_tbptt.models:CNNRNNModel", "obs_normalization": True}
    config |= {"rnn_type": "gru", "rnn_hidden_dim": 8, "image_scale": 1 / 255}
    policy = off(write_checkpoint(tmp_path, config, VECTORS | IMAGES)[1])
    bytes_of = {"camera": torch.zeros(1, 2, 9, 11, dtype=torch.uint8)}
    groups = {name: torch.zeros(1, *shape) for name, shape in (VECTORS | IMAGES).items()}
    obs = draw(policy, {}, groups | bytes_of, 4000, seed=0)
    seen = np.concatenate([obs["obs/policy"], obs["obs/goal"]], axis=-1)
    normalizer: Any = policy.obs_normalizer
    assert np.abs(seen.mean(0) - normalizer.mean.numpy()).max() < 0.1
    assert np.abs(seen.std(0) / normalizer.std.numpy() - 1.0).max() < 0.1
    assert obs["obs/camera"].dtype == np.uint8
    assert obs["obs/camera"].mean() == pytest.approx(127.5, abs=2.0)


def test_an_environments_terms_are_recorded_and_then_its_own_again():
    own = SimpleNamespace(func=lambda env: env.clone(), clip=None)
    manager = SimpleNamespace(
        active_terms={"policy": ["x"]}, _group_obs_term_cfgs={"policy": [own]}
    )
    func = own.func
    for error in (None, ValueError):
        env = SimpleNamespace(observation_manager=manager)
        with contextlib.suppress(ValueError), recorded_terms(env) as terms:
            own.func(torch.ones(2)).mul_(3.0)  # managers scale in place
            assert terms["policy/x"].tolist() == [1.0, 1.0]
            if error is not None:
                raise error
        assert own.func is func
    with recorded_terms(object()) as terms:
        assert terms == {}


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_failed_export_replaces_nothing(tmp_path, monkeypatch, capsys):
    checkpoint, model = write_checkpoint(tmp_path / "run")
    torch.save(torch.load(checkpoint) | {"student_state_dict": off(model).state_dict()}, checkpoint)
    assert run_export(checkpoint, tmp_path / "out") == 0
    before = contents(tmp_path / "out")

    def broken(policy, *args):
        faulty = copy.deepcopy(policy)
        without_memory(faulty)
        return OneStep(faulty, *args)

    monkeypatch.setattr(bundle, "OneStep", broken)
    assert run_export(checkpoint, tmp_path / "out") == 1
    assert "is not within 1.0e-04: nothing is written" in capsys.readouterr().err
    assert contents(tmp_path / "out") == before


def test_a_policy_of_an_earlier_export_does_not_stay_unseen(tmp_path, capsys):
    checkpoint, _ = write_checkpoint(tmp_path / "run")
    words = (tmp_path / "out", "--steps", "2")
    assert run_export(checkpoint, *words, "--target", "unitree") == 0
    assert run_export(checkpoint, *words) == 1
    assert "has ['unitree'] of an earlier export" in capsys.readouterr().err
    (tmp_path / "out" / "c").mkdir()  # of a release that wrote more
    (tmp_path / "out" / "policy.pt").touch()
    assert run_export(checkpoint, *words, "--target", "unitree") == 1
    assert "has ['c', 'policy.pt'] of an earlier export" in capsys.readouterr().err


def test_names_may_have_dots(tmp_path):
    checkpoint, _ = write_checkpoint(tmp_path / "run")
    checkpoint = checkpoint.rename(checkpoint.with_name("policy_v1.2.pt"))
    assert main(["export", "--checkpoint", str(checkpoint), "--steps", "2"]) == 0
    assert (checkpoint.parent / "exported" / "policy_v1_2" / "policy.onnx").is_file()
    (tmp_path / "go1.v2").mkdir()
    assert run_export(checkpoint, tmp_path / "go1.v2", "--steps", "2") == 0
    assert (tmp_path / "go1.v2" / "policy.onnx").is_file()


HEADS = {
    "velocity": {"target": "state", "hidden_dims": [4]},
    "contact": {"target": "state", "loss": "bce"},
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
    about = {"checkpoint": "model_0.pt", "iteration": 0, "golden": "", "simulation": None}
    bundle.write_bundle(tmp_path, policy, golden, heads, {}, about)
    found = verify(tmp_path)
    assert found.keys() == {"onnx", "auxiliary/velocity", "auxiliary/contact"}
    assert max(found.values()) < TOLERANCE
    np.savez(tmp_path / "golden.npz", **{**golden, "auxiliary/contact": 0 * contact})
    assert main(["verify", str(tmp_path)]) == 1

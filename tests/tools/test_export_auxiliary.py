"""Auxiliary heads in exports: what the ONNX file predicts is what was trained."""

import pytest
import torch
from support.helpers import make_distillation, roll_out

from rsl_tbptt.algorithms import TbpttDistillation
from rsl_tbptt.algorithms.heads import saved_heads
from rsl_tbptt.tools import export
from rsl_tbptt.tools.export import (
    make_sequence,
    max_difference,
    run_onnx,
    run_onnx_outputs,
    run_policy,
)

# rsl_rl and Isaac Lab export to TorchScript, which torch is giving up.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit")

HEADS = {
    "velocity": {"target": "state", "columns": [1, 3], "hidden_dims": [4]},
    "contact": {"target": "state", "columns": [0], "loss": "bce"},
}
TOLERANCE = 1e-5
"""float32 in another operation order, outputs of order 1."""


def trained(student):
    algorithm = make_distillation(
        TbpttDistillation, 6, 4, student=student, gradient_length=3, auxiliary=HEADS
    )
    roll_out(algorithm, 0)
    algorithm.update()
    return algorithm


def predicted(algorithm, obs, starts):
    """Run the policy; return its actions, and what its heads say of what its MLP read."""
    policy, latents = algorithm.student.eval(), []
    hook = policy.mlp.register_forward_pre_hook(lambda _, inputs: latents.append(inputs[0]))
    actions = run_policy(policy, obs, starts)
    hook.remove()
    with torch.no_grad():
        velocity, contact = (head(torch.stack(latents)) for head in algorithm._heads.module)
    return actions, velocity, contact.sigmoid()


@pytest.mark.parametrize("student", ["lstm", "gru", "mlp", "cnn", "cnn-lstm", "cnn-gru"])
def test_heads_are_outputs_behind_the_state(tmp_path, student):
    algorithm, file = trained(student), tmp_path / "policy.onnx"
    heads = saved_heads(algorithm.save()["rsl_tbptt"]["auxiliary"])
    assert [*heads] == ["auxiliary/velocity", "auxiliary/contact"]
    export.export_onnx(algorithm.student.eval(), file, heads)
    obs, starts = make_sequence(algorithm.student, 10, seed=1)
    outputs, expected = run_onnx_outputs(file, obs, starts), predicted(algorithm, obs, starts)
    for got, want in zip(outputs, expected, strict=True):
        assert got.shape == want.shape
        assert max_difference(got, want) < TOLERANCE
        assert want.std() > 10 * TOLERANCE
    assert torch.equal(run_onnx(file, obs, starts), outputs[0])


@pytest.mark.parametrize("student", ["lstm", "mlp"])
def test_the_command_compares_heads(tmp_path, monkeypatch, student):
    algorithm, checkpoint = trained(student), tmp_path / "model_0.pt"
    torch.save({**algorithm.save(), "iter": 0, "infos": None}, checkpoint)
    parity = export.export(checkpoint, tmp_path / "out", parity_steps=6)
    names = {"onnx", "torchscript", "auxiliary/velocity", "auxiliary/contact"}
    assert names - {"torchscript"} <= parity["max_difference"].keys() <= names
    assert max(parity["max_difference"].values()) < TOLERANCE
    others = {f"auxiliary/{name}": torch.ones(6, 1, 1) for name in HEADS}
    monkeypatch.setattr(export, "run_heads", lambda *_: others)
    assert not export.export(checkpoint, tmp_path / "out", parity_steps=6)["passed"]

"""The example of a teacher from an exported policy, on files of the kinds that others publish."""

import warnings
from pathlib import Path

import pytest
import torch
from rsl_rl.runners import DistillationRunner
from support.fine_tuning import distillation_cfg
from torch import nn

from rsl_tbptt_tasks.memory import RecallEnv

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # exporters warn of themselves
    pytest.mark.usefixtures("_examples"),
]


@pytest.fixture
def _examples(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)


class Playground(nn.Module):
    """The form of MuJoCo Playground's files: a normaliser, swish, means and deviations, a tanh."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 2))
        self.register_buffer("mean", torch.tensor([0.1, 0.2, 0.3]))
        self.register_buffer("std", torch.tensor([0.5, 1.0, 2.0]))

    def forward(self, obs):
        loc, _ = self.net((obs - self.mean) / self.std).chunk(2, dim=-1)
        return torch.tanh(loc)


def of_legged_gym() -> nn.Module:
    """Return a network in the form of legged_gym's actors."""
    return nn.Sequential(nn.Linear(3, 8), nn.ELU(), nn.Linear(8, 4), nn.ELU(), nn.Linear(4, 1))


def write(network: nn.Module, file: Path) -> None:
    """Export a network for one robot."""
    obs = torch.zeros(1, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if file.suffix == ".onnx":
            torch.onnx.export(network, (obs,), str(file), input_names=["obs"], dynamo=False)
        else:
            torch.jit.trace(network, obs).save(str(file))


@pytest.mark.parametrize("make", [Playground, of_legged_gym])
@pytest.mark.parametrize(("name", "file"), [("TorchScript", "a.pt"), ("Onnx", "a.onnx")])
def test_its_outputs_are_the_labels(name, file, make, tmp_path):
    torch.manual_seed(0)
    network, file = make(), tmp_path / file
    write(network, file)
    named = {"class_name": f"exported_teacher:{name}", "file": str(file), "groups": ["privileged"]}
    runner = DistillationRunner(RecallEnv(4, 3), {**distillation_cfg(), "teacher": named})
    runner.learn(1)
    stored = runner.alg.storage
    expected = network(stored.observations["privileged"]).detach()
    torch.testing.assert_close(stored.privileged_actions, expected, atol=1e-6, rtol=1e-5)
    assert expected.std() > 0.005  # labels of different steps differ

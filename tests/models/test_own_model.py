"""The model of docs/reference/models.md, as printed, in both algorithms."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from rsl_rl.storage import RolloutStorage
from support import helpers
from support.helpers import ACTION_DIM, make_model, make_obs, parameters_of, train

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO
from rsl_tbptt.algorithms.replay import Replay
from rsl_tbptt.models.protocol import parts_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "models.md"
T, N = 8, 8

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")


@pytest.fixture
def model_class():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (code,) = (block for block in blocks if "class LidarModel" in block)
    assert len(code.splitlines()) <= 40
    names: dict[str, Any] = {}
    exec(code, names)
    return names["LidarModel"]


def obs_with_lidar(*_):
    obs = make_obs(N)
    obs["lidar"] = torch.rand(N, 36)
    return obs


def make(model_class, role):
    return model_class(
        obs_with_lidar(),
        {role: ["policy", "lidar"]},
        role,
        ACTION_DIM,
        hidden_dims=[8],
        rnn_type="gru",
        rnn_hidden_dim=6,
        distribution_cfg={"class_name": "GaussianDistribution", "init_std": 0.1},
    )


@pytest.fixture(autouse=True)
def _no_steps(monkeypatch):
    """Make a step-by-step replay fail, and let rollouts show the lidar."""
    monkeypatch.setattr(Replay, "_step_by_step", None)
    monkeypatch.setattr(helpers, "obs_like", obs_with_lidar)


def test_it_is_a_student(model_class):
    student = make(model_class, "student")
    assert parts_of(student) is not None
    storage = RolloutStorage("distillation", N, T, obs_with_lidar(), [ACTION_DIM], "cpu")
    teacher = make_model("teacher", "mlp", N, seed=2)
    algorithm = TbpttDistillation(student, teacher, storage, gradient_length=4)
    before = parameters_of(algorithm)
    train(algorithm, 0, 1)
    assert not torch.equal(before, parameters_of(algorithm))


def test_it_is_an_actor(model_class):
    actor = make(model_class, "actor")
    critic = make_model("critic", "lstm", N, seed=2, output_dim=1, distribution_cfg=None)
    storage = RolloutStorage("rl", N, T, obs_with_lidar(), [ACTION_DIM], "cpu")
    algorithm: Any = TbpttPPO(actor, critic, storage, gradient_length=4)
    before = parameters_of(algorithm)
    train(algorithm, 0)
    assert not torch.equal(before, parameters_of(algorithm))

"""The model of docs/reference/models.md, as printed, is trained and never replayed step by step."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from rsl_rl.storage import RolloutStorage
from support.helpers import ACTION_DIM, make_model, make_obs, ppo_parameters_of

from rsl_tbptt.algorithms import TbpttPPO
from rsl_tbptt.algorithms.replay import Replay

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


def obs_with_lidar():
    obs = make_obs(N)
    obs["lidar"] = torch.rand(N, 36)
    return obs


def test_it_is_an_actor(model_class, monkeypatch):
    monkeypatch.setattr(Replay, "_step_by_step", None)
    noise = {"class_name": "GaussianDistribution", "init_std": 0.1}
    options = {"hidden_dims": [8], "rnn_type": "gru", "rnn_hidden_dim": 6}
    groups = {"actor": ["policy", "lidar"]}
    obs = obs_with_lidar()
    actor = model_class(obs, groups, "actor", ACTION_DIM, distribution_cfg=noise, **options)
    critic = make_model("critic", "lstm", N, seed=2, output_dim=1, distribution_cfg=None)
    storage = RolloutStorage("rl", N, T, obs_with_lidar(), [ACTION_DIM], "cpu")
    algorithm: Any = TbpttPPO(actor, critic, storage, gradient_length=4)
    before = ppo_parameters_of(algorithm)
    with torch.inference_mode():
        for _ in range(T):
            obs = obs_with_lidar()
            algorithm.act(obs)
            algorithm.process_env_step(obs, torch.randn(N), torch.rand(N) < 0.2, {})
        algorithm.compute_returns(obs)
    algorithm.update()
    assert not torch.equal(before, ppo_parameters_of(algorithm))

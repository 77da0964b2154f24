"""The cell of docs/reference/models.md, as printed, learns the recall task."""

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from rsl_rl.runners import DistillationRunner
from support.perfect_teacher import PerfectTeacher
from support.scan_cases import assert_all_close, make_case, values_and_gradients
from support.tolerances import EXACT_FLOAT64

from rsl_tbptt.core.scan import CELLS, register
from rsl_tbptt_tasks.memory import RecallEnv

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "models.md"


@pytest.fixture
def cell():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (code,) = (block for block in blocks if "MGU = Cell(" in block)
    assert len(code.splitlines()) <= 40
    before, module = dict(CELLS), ModuleType("my_cells")
    exec(code, vars(module))
    sys.modules["my_cells"] = module
    register(module.MGU)
    yield "my_cells:MGU"
    del sys.modules["my_cells"]
    CELLS.clear()
    CELLS.update(before)


@pytest.mark.usefixtures("cell")
def test_its_engine_is_generated():
    case = make_case("MGU", 2, 6, 3, 0.3)
    expected = values_and_gradients(*case, "reference")
    assert_all_close(values_and_gradients(*case, "compiled"), expected, **EXACT_FLOAT64)


def test_it_learns_to_remember(cell):
    torch.manual_seed(0)
    cfg: dict[str, Any] = {
        "num_steps_per_env": 24,
        "save_interval": 1000,
        "obs_groups": {"student": ["policy"], "teacher": ["privileged"]},
        "algorithm": {
            "class_name": "rsl_tbptt.algorithms:TbpttDistillation",
            "gradient_length": 12,
            "learning_rate": 5e-3,
            "scan_engine": "compiled",
        },
        "student": {
            "class_name": "rsl_tbptt.models:RecurrentModel",
            "hidden_dims": [16],
            "rnn_type": cell,
            "rnn_hidden_dim": 16,
            "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 0.1},
        },
        "teacher": {"class_name": PerfectTeacher},
    }
    env = RecallEnv(num_envs=64, recall_length=8)
    runner = DistillationRunner(env, cfg, log_dir=None)
    runner.alg.teacher_loaded = True
    runner.learn(60)
    policy, obs, total = runner.get_inference_policy(), env.get_observations(), torch.zeros(2)
    with torch.inference_mode():
        for _ in range(90):
            obs, rewards, dones, _ = env.step(policy(obs))
            policy.reset(dones)
            total += torch.stack((rewards.sum(), dones.sum()))
    assert total[0] / total[1] > 0.8

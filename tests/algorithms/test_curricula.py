"""Curricula that count the environment's steps go on with a resume, a student and fine-tuning.

rsl_rl's own runners train here, as in Isaac Lab.
"""

import copy
from typing import Any

import pytest
import torch
from rsl_rl.runners import DistillationRunner, OnPolicyRunner

from rsl_tbptt_tasks.memory import RecallEnv

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")

STEPS = 6
"""Steps of a rollout."""
GAUSSIAN = {"class_name": "GaussianDistribution", "init_std": 0.3}
MLP = {"class_name": "MLPModel", "hidden_dims": [8], "distribution_cfg": GAUSSIAN}
LSTM = {**MLP, "class_name": "RNNModel", "rnn_type": "lstm", "rnn_hidden_dim": 8}
PPO = {"class_name": "rsl_tbptt.algorithms:TbpttPPO"}
STOCK = {"class_name": "PPO", "num_mini_batches": 2, "num_learning_epochs": 1}
STUDENT = {"class_name": "rsl_tbptt.algorithms:TbpttDistillation", "gradient_length": 3}


class Counting(RecallEnv):
    """An environment with Isaac Lab's counter, and a log of its values at the first steps."""

    common_step_counter = 0

    @property
    def unwrapped(self):
        return self

    def step(self, actions):
        self.common_step_counter += 1
        return super().step(actions)


class Bare(RecallEnv):
    """An environment without a counter."""


def trained(
    folder, algorithm, load=None, *, sees="policy", env_class: type[RecallEnv] = Counting, **options
):
    """Train for two iterations, from a checkpoint if one is named; return the environment."""
    models: Any = {
        "student": LSTM,
        "teacher": MLP,
        "actor": LSTM if sees == "policy" else MLP,
        "critic": {**MLP, "distribution_cfg": None},
    }
    cfg = {
        "num_steps_per_env": STEPS,
        "save_interval": 100,
        "obs_groups": {
            **{role: ["privileged"] for role in models},
            "student": ["policy"],
            "actor": [sees],
        },
        "algorithm": {"rnd_cfg": None, **algorithm, **options},
        "load_checkpoint": load,
        # rsl_rl removes entries from a config, so models must not share parts of theirs.
        **{role: copy.deepcopy(model) for role, model in models.items()},
    }
    env = env_class(4, recall_length=3)
    folder.mkdir()
    runner_class = DistillationRunner if algorithm is STUDENT else OnPolicyRunner
    runner = runner_class(env, cfg, str(folder))
    if load:
        runner.load(load)
    runner.learn(2)
    return env


def counter(folder, iteration):
    checkpoint = torch.load(folder / f"model_{iteration}.pt", weights_only=True)
    return checkpoint["rsl_tbptt"]["env_state"]["common_step_counter"]


@pytest.fixture
def teacher(tmp_path):
    """A teacher's checkpoint."""
    trained(tmp_path / "teacher", PPO, sees="privileged")
    return str(tmp_path / "teacher" / "model_1.pt")


def test_a_resume_goes_on_and_students_and_fine_tuning_too(teacher, tmp_path):
    assert counter(tmp_path / "teacher", 1) == 2 * STEPS
    resumed = trained(tmp_path / "resumed", PPO, teacher, sees="privileged")
    assert resumed.common_step_counter == counter(tmp_path / "resumed", 2) == 4 * STEPS
    for name, source in (("loading", {"load": teacher}), ("told", {"teacher_checkpoint": teacher})):
        env = trained(tmp_path / name, STUDENT, **source)
        assert env.common_step_counter == counter(tmp_path / name, 1) == 4 * STEPS
    student = str(tmp_path / "told" / "model_1.pt")
    resumed = trained(tmp_path / "goes on", STUDENT, student)
    assert resumed.common_step_counter == 6 * STEPS
    tuned = trained(tmp_path / "tuned", PPO, student)
    assert tuned.common_step_counter == 6 * STEPS


def test_without_a_counter_nothing_is_kept(teacher, tmp_path):
    env = trained(tmp_path / "student", STUDENT, teacher, env_class=Bare)
    assert not hasattr(env, "common_step_counter")
    saved = torch.load(tmp_path / "student" / "model_1.pt", weights_only=True)
    assert "env_state" not in saved["rsl_tbptt"]


def test_nothing_tells_the_stage_of_a_stock_checkpoint(tmp_path):
    trained(tmp_path / "teacher", STOCK, sees="privileged")
    env = trained(tmp_path / "student", STUDENT, str(tmp_path / "teacher" / "model_1.pt"))
    assert env.common_step_counter == 2 * STEPS

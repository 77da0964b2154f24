"""Curricula that count the environment's steps go on with a resume, a student and fine-tuning.

rsl_rl's own runners train here, as in Isaac Lab.
"""

from typing import Any

import pytest
import torch
from support.safe_runs import STEPS, STOCK, make_runner, teacher_cfg

from rsl_tbptt_tasks.memory import RecallEnv

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")


class Counting(RecallEnv):
    """An environment with Isaac Lab's counter, and a log of its values at the first steps."""

    common_step_counter = 0

    @property
    def unwrapped(self):
        return self

    def step(self, actions):
        self.common_step_counter += 1
        return super().step(actions)


def trained(folder, kind, load=None, env_class: Any = Counting, **config):
    """Train for two iterations, from a checkpoint if one is named; return the environment."""
    runner = make_runner(folder, kind, STOCK[kind], env=env_class(4, 3), **config)
    if load:
        runner.load(load)
    runner.learn(2)
    return runner.env


def counter(folder, iteration):
    checkpoint = torch.load(folder / f"model_{iteration}.pt", weights_only=True)
    return checkpoint["rsl_tbptt"]["env_state"]["common_step_counter"]


@pytest.fixture
def teacher(tmp_path):
    """A teacher's checkpoint."""
    trained(tmp_path / "teacher", "ppo", **teacher_cfg())
    return str(tmp_path / "teacher" / "model_1.pt")


def test_a_resume_goes_on_and_students_and_fine_tuning_too(teacher, tmp_path):
    assert counter(tmp_path / "teacher", 1) == 2 * STEPS
    resumed = trained(tmp_path / "resumed", "ppo", teacher, **teacher_cfg())
    assert resumed.common_step_counter == counter(tmp_path / "resumed", 2) == 4 * STEPS
    named = {"algorithm": {"teacher_checkpoint": teacher}}
    for name, source in (("loading", {"load": teacher}), ("told", named)):
        env = trained(tmp_path / name, "distillation", **source)
        assert env.common_step_counter == counter(tmp_path / name, 1) == 4 * STEPS
    student = str(tmp_path / "told" / "model_1.pt")
    for kind in STOCK:  # the student is resumed, or tuned
        assert trained(tmp_path / kind, kind, student).common_step_counter == 6 * STEPS


def test_without_a_counter_nothing_is_kept(teacher, tmp_path):
    env = trained(tmp_path / "student", "distillation", teacher, env_class=RecallEnv)
    assert not hasattr(env, "common_step_counter")
    saved = torch.load(tmp_path / "student" / "model_1.pt", weights_only=True)
    assert "env_state" not in saved["rsl_tbptt"]


def test_nothing_tells_the_stage_of_a_stock_checkpoint(teacher, tmp_path):
    checkpoint = torch.load(teacher, weights_only=True)
    del checkpoint["rsl_tbptt"]
    torch.save(checkpoint, teacher)
    env = trained(tmp_path / "student", "distillation", teacher)
    assert env.common_step_counter == 2 * STEPS

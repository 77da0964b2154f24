"""docs/howto/isaaclab.md: its commands run in Isaac Lab, its code builds, its links exist."""

import importlib.util
import re

import pytest

pytest.importorskip("isaaclab_rl", reason="Isaac Lab 3.0 needs Python 3.12")

import torch
from isaaclab.utils import to_dict
from support.isaaclab_page import DOCS, NEEDS_GPUS, PAGE, commands

from rsl_tbptt_tasks.isaaclab.cartpole_agents import CartpoleTeacherCfg

RUNS = [comment for comment in commands() if comment != NEEDS_GPUS]


@pytest.mark.isaaclab
@pytest.mark.parametrize("comment", RUNS)
def test_command_runs(page, comment):
    if comment == "wandb" and not importlib.util.find_spec("wandb"):
        pytest.skip("wandb is not installed")
    assert page(comment).folder.exists()


@pytest.mark.isaaclab
def test_student_is_recurrent_and_was_trained_with_the_configs_teacher(page):
    teacher = torch.load(page("the teacher").checkpoint, weights_only=True)
    student = torch.load(page("the student").checkpoint, weights_only=True)
    assert "rnn.rnn.weight_hh_l0" in student["student_state_dict"]
    assert optimizer_steps(student) == {2 * 8 * 2}  # two passes, eight mini-batches, two windows
    loaded, trained = student["teacher_state_dict"], teacher["actor_state_dict"]
    assert loaded.keys() == trained.keys()
    assert all(torch.equal(loaded[name], trained[name]) for name in trained)


@pytest.mark.isaaclab
def test_a_teacher_with_another_activation_is_refused(page):
    words = [*commands()["the student"].words, "agent.teacher.activation=relu"]
    assert "teacher.activation is ReLU, expected ELU" in page.run(words, succeeds=False).printed


@pytest.mark.isaaclab
def test_options_on_the_command_line_change_the_training_and_set_the_teacher(page):
    student = torch.load(page("options").checkpoint, weights_only=True)
    assert optimizer_steps(student) == {2 * 8 * 2}  # 32 steps in groups of 16
    teacher = torch.load(page("the teacher").checkpoint, weights_only=True)["actor_state_dict"]
    loaded = student["teacher_state_dict"]
    assert all(torch.equal(loaded[name], teacher[name]) for name in teacher)


@pytest.mark.isaaclab
def test_fine_tuning_starts_from_the_student(page):
    student = torch.load(page("the student").checkpoint, weights_only=True)["student_state_dict"]
    tuned = torch.load(page("fine-tuning").checkpoint, weights_only=True)["actor_state_dict"]
    assert all(torch.equal(tuned[name], student[name]) for name in student if "std" not in name)
    assert tuned["distribution.std_param"].item() == pytest.approx(0.2)


def optimizer_steps(checkpoint):
    """Return how many steps the optimiser has taken, one number for all parameters."""
    return {int(state["step"]) for state in checkpoint["optimizer_state_dict"]["state"].values()}


@pytest.mark.parametrize("name", ["MyStudentCfg", "MyRecurrentCfg"])
def test_configs_of_the_page_build(name):
    names = {"MyTeacherCfg": CartpoleTeacherCfg}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        assert len(block.split("):\n")[1].splitlines()) <= 10
        exec(compile(block, "isaaclab.md", "exec"), names)  # the second continues from the first
    cfg = names[name]()
    assert cfg.algorithm.gradient_length == 24
    if name == "MyStudentCfg":
        steps = cfg.algorithm.num_learning_epochs * cfg.algorithm.num_mini_batches
        assert f"takes {steps} optimiser steps per iteration" in PAGE
    assert "MISSING" not in str(to_dict(cfg))


def test_linked_files_exist():
    for link in re.findall(r"\]\(([^)#]+)", PAGE):
        assert (DOCS / "howto" / link).exists(), link

"""Resuming as in docs/howto/isaaclab.md: what is lost and what continues."""

import pytest

pytest.importorskip("isaaclab_rl", reason="Isaac Lab 3.0 needs Python 3.12")

import torch
from support.isaaclab_page import commands

pytestmark = pytest.mark.isaaclab


def interrupted_training(arguments):
    """Run ``isaaclab train``, and press Ctrl+C in its fourth update."""
    from isaaclab.cli import train

    from rsl_tbptt.algorithms import TbpttDistillation

    update = TbpttDistillation.update

    def interrupted(self):
        if self.num_updates == 3:
            raise KeyboardInterrupt
        return update(self)

    TbpttDistillation.update = interrupted
    try:
        train(arguments)
    finally:
        TbpttDistillation.update = update


STEPS = 2 * 8 * 2
"""Optimiser steps of one iteration: two passes, eight mini-batches, two windows."""


def steps(checkpoint):
    return {int(state["step"]) for state in checkpoint["optimizer_state_dict"]["state"].values()}


def test_an_interrupted_run_keeps_its_checkpoints_and_continues_from_them(page, isaaclab, tmp_path):
    teacher = str(page("the teacher").checkpoint)
    words = commands()["a run to interrupt"].words[1:]
    words = [teacher if word == "TEACHER" else word for word in words]
    words += ["--num_envs", "32", "agent.save_interval=2"]  # the last of several counts
    isaaclab.call(f"{__file__}:interrupted_training", words, folder=tmp_path)
    (run,) = tmp_path.glob("logs/rsl_rl/*/*")
    assert sorted(path.name for path in run.glob("model_*")) == ["model_0.pt", "model_2.pt"]

    words = [str(run / "model_2.pt") if word == teacher else word for word in words]
    resumed = page.run(["train", *words, "--run_name", "student_resumed"])
    assert resumed.folder.name.endswith("_student_resumed")
    assert [path.name for path in resumed.folder.glob("model_*")] == ["model_2.pt"]
    before = torch.load(run / "model_2.pt", weights_only=True)
    after = torch.load(resumed.folder / "model_2.pt", weights_only=True)
    assert steps(after) == {step + STEPS for step in steps(before)}
    assert after["rsl_tbptt"]["num_updates"] == before["rsl_tbptt"]["num_updates"] + 1 == 4


def test_the_command_of_the_page_continues_with_student_optimizer_and_teacher(page):
    student = torch.load(page("the student").checkpoint, weights_only=True)
    resumed = torch.load(page("resuming").checkpoint, weights_only=True)
    assert steps(resumed) == {step + STEPS for step in steps(student)}
    old, new = student["teacher_state_dict"], resumed["teacher_state_dict"]
    assert all(torch.equal(new[name], old[name]) for name in old)

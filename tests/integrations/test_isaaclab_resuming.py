"""Resuming in Isaac Lab as docs/isaaclab.md says: what is lost, what goes on, what is no option."""

import json
import logging
from pathlib import Path

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
"""Of the optimiser in one iteration: two passes, eight mini-batches, two windows."""


def parse(arguments):
    """Return what Isaac Lab makes of arguments."""
    from isaaclab_rl.entrypoints.backends.train_rsl_rl import _parse_args

    parsed = _parse_args(arguments)
    return {"checkpoint": parsed.checkpoint, "optimizer": parsed.resume_optimizer_state}


def steps(checkpoint):
    return {int(state["step"]) for state in checkpoint["optimizer_state_dict"]["state"].values()}


def test_an_interrupted_run_keeps_what_it_saved_and_goes_on_from_there(page, isaaclab, tmp_path):
    teacher = str(page("the teacher").checkpoint)
    words = commands()["a run to interrupt"].words[1:]
    words = [teacher if word == "TEACHER" else word for word in words]
    words += ["--num_envs", "32", "agent.save_interval=2"]  # of several, the last counts
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


def test_the_command_of_the_page_goes_on_with_student_optimizer_and_teacher(page):
    student = torch.load(page("the student").checkpoint, weights_only=True)
    resumed = torch.load(page("resuming").checkpoint, weights_only=True)
    assert steps(resumed) == {step + STEPS for step in steps(student)}
    old, new = student["teacher_state_dict"], resumed["teacher_state_dict"]
    assert all(torch.equal(new[name], old[name]) for name in old)


def test_resume_is_an_abbreviation_of_another_option(isaaclab):
    parsed, _ = isaaclab.call(
        f"{__file__}:parse", ["--task", "Tbptt-Cartpole-Occluded", "--resume"]
    )
    assert parsed == {"checkpoint": None, "optimizer": True}


ROBOTS = ["--rl_library", "rsl_rl", "--task", "Tbptt-Cartpole-Occluded", "--num_envs", "256"]
CPU = ["physics=newton_mjwarp", "--device", "cpu", "agent.device=cpu"]


def train_on(agent, iterations, seed, checkpoint=None):
    """Run ``isaaclab train`` from a checkpoint on; return the newest one."""
    from isaaclab.cli import train

    words = ["--agent", agent, "--max_iterations", str(iterations), "--seed", str(seed)]
    words += [] if checkpoint is None else ["--checkpoint", checkpoint]
    train([*ROBOTS, *CPU, *words, "--run_name", f"{seed}"])
    checkpoints = Path().glob(f"logs/rsl_rl/*/*_{seed}/model_*.pt")
    return str(max(checkpoints, key=lambda path: path.stat().st_mtime).resolve())


@pytest.mark.soak
@pytest.mark.parametrize(
    ("agent", "iterations", "teaches"),
    [
        ("rsl_rl_distillation_recurrent_cfg_entry_point", 10, 40),
        ("rsl_rl_recurrent_cfg_entry_point", 25, 0),
    ],
    ids=["distillation", "ppo"],
)
def test_the_return_does_not_fall_after_a_resume(agent, iterations, teaches, isaaclab, tmp_path):
    """On the occluded cartpole, which cannot be put back: against the interval of before."""

    def run(*arguments):
        return isaaclab.call(f"{__file__}:train_on", *arguments, folder=tmp_path)[0]

    def evaluate(checkpoint):
        output = tmp_path / "result.json"
        words = ["evaluate", "--checkpoint", checkpoint, "--episodes", 256, "--output", output]
        assert isaaclab.call("rsl_tbptt.tools.cli:main", [*map(str, words)])[0] == 0
        return json.loads(output.read_text())

    teacher = run("rsl_rl_cfg_entry_point", teaches, 1) if teaches else None
    stopped = run(agent, iterations, 2, teacher)
    resumed = [run(agent, 1, 3, stopped), run(agent, 5, 4, stopped)]
    before, after = evaluate(stopped), [evaluate(checkpoint) for checkpoint in resumed]
    whole = evaluate(run(agent, iterations + 1, 2, teacher))  # what one more does by itself
    untrained = evaluate(run(agent, 1, 5, teacher))
    low, high = before["confidence_interval"]
    logging.getLogger(__name__).info(
        "%s: untrained %.2f; before %.2f (%.2f to %.2f); 1 and 5 iterations after %.2f, %.2f;"
        " 1 iteration further without a resume %.2f",
        *(agent, untrained["mean_return"], before["mean_return"], low, high),
        *(each["mean_return"] for each in (*after, whole)),
    )
    learned = before["mean_return"] - untrained["mean_return"]
    assert untrained["confidence_interval"][1] < low  # there is something to lose
    # Where all robots stand, the interval is narrower than what any update moves.
    least = min(low, before["mean_return"] - 0.05 * learned)
    assert all(each["mean_return"] >= least for each in after)

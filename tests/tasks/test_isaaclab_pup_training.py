"""The small quadruped in training: a few robots, a few iterations, by Isaac Lab's own command."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.isaaclab

ROBOTS = ["--task", "Tbptt-Velocity-Flat-Pup", "--num_envs", "32", "physics=newton_mjwarp"]
DEVICE = ["--device", "cpu", "agent.device=cpu"]


def train(arguments):
    """Run ``isaaclab train`` and return the losses of its updates."""
    from isaaclab.cli import train as isaaclab_train

    from rsl_tbptt.algorithms import TbpttDistillation

    losses, original = [], TbpttDistillation.update

    def update(self):
        losses.append(original(self))
        return losses[-1]

    TbpttDistillation.update = update
    try:
        isaaclab_train(["--rl_library", "rsl_rl", *ROBOTS, *DEVICE, *arguments])
    finally:
        TbpttDistillation.update = original
    checkpoints = Path().glob("logs/rsl_rl/tbptt_pup_flat/*/model_*.pt")
    checkpoint = max(checkpoints, key=lambda path: path.stat().st_mtime)
    return {"checkpoint": str(checkpoint.resolve()), "losses": losses}


def run(isaaclab, agent, iterations, *arguments):
    words = ["--agent", agent, "--max_iterations", str(iterations)]
    return isaaclab.call(f"{__file__}:train", [*words, *arguments])[0]


def test_blind_recurrent_student_learns_from_the_teacher(isaaclab):
    teacher = run(isaaclab, "rsl_rl_cfg_entry_point", 3)
    student = run(
        isaaclab,
        "rsl_rl_distillation_recurrent_cfg_entry_point",
        6,
        "--checkpoint",
        teacher["checkpoint"],
    )
    losses = [update["behavior"] for update in student["losses"]]
    assert len(losses) == 6
    assert losses[-1] < 0.7 * losses[0]

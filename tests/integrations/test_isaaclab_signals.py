"""A signal in Isaac Lab's own training command saves a file and sets a status to continue by."""

import os
import signal

import pytest

pytest.importorskip("isaaclab_rl", reason="Isaac Lab 3.0 needs Python 3.12")

import torch
from support.isaaclab_page import SMALL

pytestmark = pytest.mark.isaaclab

STEPS = 6
STUDENT = [
    *["--rl_library", "rsl_rl", "--task", "Tbptt-Cartpole-Occluded", "physics=newton_mjwarp"],
    *["--agent", "rsl_rl_distillation_recurrent_cfg_entry_point"],
    *["--device", "cpu", "agent.device=cpu", f"agent.num_steps_per_env={STEPS}"],
    "agent.algorithm.safe_checkpoint_interval=100",
    *SMALL["train"],
]


def signalled_training(arguments, in_step):
    """Run ``isaaclab train`` with a signal in one of its steps; return the status it ends with."""
    from isaaclab.cli import train
    from isaaclab_rl.entrypoints.backends import train_rsl_rl

    class Signalled(train_rsl_rl.RslRlVecEnvWrapper):
        num_steps = 0

        def step(self, actions):
            self.num_steps += 1
            if self.num_steps == in_step:
                os.kill(os.getpid(), signal.SIGUSR1)
            return super().step(actions)

    original = train_rsl_rl.RslRlVecEnvWrapper
    train_rsl_rl.RslRlVecEnvWrapper = Signalled
    try:
        train(arguments)
    except SystemExit as ended:
        return ended.code
    finally:
        train_rsl_rl.RslRlVecEnvWrapper = original
    return 0


def read(path):
    return torch.load(path, weights_only=True)


def test_after_a_signal_in_a_rollout_the_same_command_continues_from_a_file(
    page, isaaclab, tmp_path
):
    train = f"{__file__}:signalled_training"
    words = [*STUDENT, "--max_iterations", "5"]
    teacher = ["--checkpoint", str(page("the teacher").checkpoint)]
    status, printed = isaaclab.call(train, [*words, *teacher], 2 * STEPS + 3, folder=tmp_path)
    assert status == 85
    assert "SIGUSR1: a checkpoint is written after this iteration" in printed
    (run,) = tmp_path.glob("logs/rsl_rl/*/*")
    assert sorted(path.name for path in run.glob("safe_*")) == ["safe_0.pt", "safe_2.pt"]
    file = read(run / "safe_2.pt")
    assert (file["iter"], file["rsl_tbptt"]["num_updates"]) == (2, 3)

    checkpoint = ["--checkpoint", str(run / "safe_2.pt"), "--run_name", "resumed"]
    assert isaaclab.call(train, [*words, *checkpoint], 0, folder=tmp_path)[0] == 0
    (resumed,) = tmp_path.glob("logs/rsl_rl/*/*_resumed")
    (last,) = resumed.glob("model_6.pt")  # five iterations, numbered from 2 on as in rsl_rl
    assert read(last)["rsl_tbptt"]["num_updates"] == 3 + 5

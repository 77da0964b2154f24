"""Isaac Lab's own train command on the occluded cartpole: a teacher, then its student."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.isaaclab

TASK = "Tbptt-Cartpole-Occluded"
STUDENT = ["--agent", "rsl_rl_distillation_recurrent_cfg_entry_point"]


def train(folder, *arguments):
    """Run ``isaaclab train`` for one iteration and return the checkpoint it left."""
    command = [str(Path(sys.executable).parent / "isaaclab"), "train", "--rl_library", "rsl_rl"]
    command += ["--task", TASK, "--num_envs", "16", "--max_iterations", "1", *arguments]
    command += ["physics=newton_mjwarp", "--device", "cpu", "agent.device=cpu"]
    folder.mkdir()
    result = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    (path,) = folder.glob("logs/rsl_rl/*/*/model_0.pt")
    return path, torch.load(path, weights_only=True)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    pytest.importorskip("isaaclab_tasks", reason="Isaac Lab 3.0 needs Python 3.12")
    folder = tmp_path_factory.mktemp("train")
    path, teacher = train(folder / "teacher")
    option = f"agent.algorithm.teacher_checkpoint={path}"
    return teacher, train(folder / "student", *STUDENT, option)[1]


def test_student_is_recurrent_and_was_trained(checkpoints):
    _, student = checkpoints
    assert "rnn.rnn.weight_hh_l0" in student["student_state_dict"]
    steps = {int(state["step"]) for state in student["optimizer_state_dict"]["state"].values()}
    assert steps == {4}  # one window, four epochs


def test_teacher_checkpoint_alone_loads_the_teacher(checkpoints):
    teacher, student = checkpoints
    loaded, trained = student["teacher_state_dict"], teacher["actor_state_dict"]
    assert loaded.keys() == trained.keys()
    assert all(torch.equal(loaded[name], trained[name]) for name in trained)

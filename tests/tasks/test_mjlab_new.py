"""The package that ``rsl-tbptt new`` writes for mjlab: the commands of its README, shorter."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mjlab", reason="mjlab has an environment of its own")

import torch
from support.new_package import readme_commands

from rsl_tbptt.tools.commands.new import new

TESTS = Path(__file__).parents[1]
NAME = "pole_balance"
SHORT = {
    "train": ("--env.scene.num-envs", "8", "--agent.max-iterations", "2"),
    "rsl-tbptt": ("--episodes", "3"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the commands ran, each for two iterations with few cartpoles."""
    folder = tmp_path_factory.mktemp("new")
    package = new(NAME, "mjlab", folder / NAME)
    code = "from setuptools import build_meta; build_meta.build_wheel('.')"
    subprocess.run([sys.executable, "-c", code], cwd=package, check=True, capture_output=True)
    (wheel,) = package.glob("*.whl")
    lines = [re.sub(r"model_\d+", "model_1", line) for line in readme_commands(package)]
    commands = [([*words, *SHORT[words[0]]], {}) for words in map(shlex.split, lines)]
    (folder / "commands.json").write_text(json.dumps(commands))
    result = subprocess.run(
        [sys.executable, TESTS / "support" / "mjlab_process.py", "commands.json"],
        cwd=folder,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(wheel), os.environ.get("PYTHONPATH", "")]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def checkpoint(folder):
    def read(run_name):
        found = folder.glob(f"logs/rsl_rl/{NAME}/*_{run_name}/model_*.pt")
        return torch.load(max(found, key=os.path.getmtime), weights_only=True)

    return read


def test_the_student_has_memory_and_its_teacher(checkpoint):
    teacher, student = checkpoint("teacher"), checkpoint("student")
    assert student["student_state_dict"]["rnn.rnn.weight_ih_l0"].shape[1] == 3  # no velocities
    loaded, trained = student["teacher_state_dict"], teacher["actor_state_dict"]
    assert all(torch.equal(loaded[name], trained[name]) for name in trained)


def test_ppo_from_scratch_has_memory_and_its_critic_needs_none(checkpoint):
    recurrent = checkpoint("recurrent")
    assert "rnn.rnn.weight_hh_l0" in recurrent["actor_state_dict"]
    assert not any(name.startswith("rnn") for name in recurrent["critic_state_dict"])


def test_fine_tuning_starts_from_the_student(checkpoint):
    """The first updates train the critic alone."""
    student, tuned = checkpoint("student"), checkpoint("finetune")["actor_state_dict"]
    given = student["student_state_dict"]
    assert all(torch.equal(tuned[name], given[name]) for name in given if "std" not in name)
    assert tuned["distribution.std_param"].item() == pytest.approx(0.2)


def test_the_student_was_evaluated(folder):
    assert len([*folder.glob(f"logs/rsl_rl/{NAME}/*_student/evaluation.json")]) == 1

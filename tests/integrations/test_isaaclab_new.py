"""The package that ``rsl-tbptt new`` writes for Isaac Lab: the commands of its README, shorter."""

import pytest

pytest.importorskip("isaaclab_rl", reason="Isaac Lab 3.0 needs Python 3.12")

import torch
from support.isaaclab_page import MY_TASK
from support.new_package import readme_commands
from support.tutorial_pages import arguments

from rsl_tbptt.tools.commands.new import new

pytestmark = pytest.mark.isaaclab

NAME = "pole_balance"


@pytest.fixture(scope="module")
def folder(isaaclab, tmp_path_factory):
    """The folder in which the commands ran, each for one iteration with few cartpoles."""
    folder = tmp_path_factory.mktemp("new")
    isaaclab.call(f"{MY_TASK}:install", str(new(NAME, "isaaclab", folder / NAME)), NAME)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for line in readme_commands(folder / NAME):
            command, *words = arguments(line)
            if line.startswith("isaaclab"):
                assert command == "train"
                words += ["--max_iterations", "1", "--num_envs", "32"]
                isaaclab.call("isaaclab.cli:train", words, folder=folder)
            else:
                words = [command, *words, "--episodes", "4"]
                status, printed = isaaclab.call(
                    "rsl_tbptt.tools.commands.cli:main", words, folder=folder
                )
                assert status == 0, printed
    return folder


@pytest.fixture(scope="module")
def checkpoint(folder):
    def read(run_name):
        (path,) = folder.glob(f"logs/rsl_rl/{NAME}/*_{run_name}/model_0.pt")
        return torch.load(path, weights_only=True)

    return read


def test_the_student_has_memory_and_its_teacher(checkpoint):
    teacher, student = checkpoint("teacher"), checkpoint("student")
    assert student["student_state_dict"]["rnn.rnn.weight_ih_l0"].shape[1] == 2  # no velocities
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

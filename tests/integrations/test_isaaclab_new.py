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


def test_the_commands_of_the_readme_train_and_evaluate(isaaclab, tmp_path):
    """Each runs for one iteration with few cartpoles."""
    folder = tmp_path
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
    teacher, student, recurrent, tuned = (
        torch.load(path, weights_only=True)
        for name in ("teacher", "student", "recurrent", "finetune")
        for path in folder.glob(f"logs/rsl_rl/{NAME}/*_{name}/model_0.pt")
    )
    assert student["student_state_dict"]["rnn.rnn.weight_ih_l0"].shape[1] == 2  # no velocities
    loaded, trained = student["teacher_state_dict"], teacher["actor_state_dict"]
    assert all(torch.equal(loaded[name], trained[name]) for name in trained)
    assert "rnn.rnn.weight_hh_l0" in recurrent["actor_state_dict"]
    assert not any(name.startswith("rnn") for name in recurrent["critic_state_dict"])
    given = student["student_state_dict"]  # the first updates train the critic alone
    assert all(torch.equal(tuned["actor_state_dict"][n], given[n]) for n in given if "std" not in n)
    assert len([*folder.glob(f"logs/rsl_rl/{NAME}/*_student/evaluation.json")]) == 1

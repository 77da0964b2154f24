"""Run every line of the tutorials with Isaac Lab, with one iteration and few robots."""

import pytest

pytest.importorskip("isaaclab_rl", reason="Isaac Lab 3.0 needs Python 3.12")

import torch
from support.isaaclab_page import EXAMPLE, INSTALL
from support.pages import arguments, follow, rsl_tbptt

from scripts.notebooks import ROOT

pytestmark = [pytest.mark.isaaclab, pytest.mark.long]

SHORT = ["env.episode_length_s=0.2"]
"""Six steps, so that episodes end and rewards are printed."""
CAMERA_TASK = ("cartpole_camera.py", "cartpole_camera_agents.py")


def follow_in(isaaclab, folder, name, quoted, train=(), overrides=()):
    """Follow a page in a folder; its simulations run in the process of Isaac Lab."""

    def isaac_lab(line):
        words = arguments(line)
        assert words.pop(0) == "train"
        more = ["--max_iterations", "1", *train]
        return isaaclab.call("isaaclab.cli:train", [*words, *more], folder=folder)[1]

    def run(words):
        return isaaclab.call("rsl_tbptt.tools.commands.cli:main", words, folder=folder)

    programs = {"isaaclab": isaac_lab, "rsl-tbptt": rsl_tbptt(run, 4, overrides)}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return follow(name, programs, "\n".join(path.read_text() for path in quoted))


@pytest.fixture(scope="module")
def task(isaaclab, tmp_path_factory):
    """The folder in which isaaclab_task.md was followed."""
    folder = tmp_path_factory.mktemp("task")
    isaaclab.call(INSTALL, str(EXAMPLE))
    package = [path for path in EXAMPLE.rglob("*") if path.suffix in (".py", ".toml")]
    follow_in(isaaclab, folder, "isaaclab_task.md", package, ["--num_envs", "32"])
    return folder


def newest(folder, run):
    (checkpoint,) = folder.glob(f"logs/rsl_rl/*/*_{run}/model_0.pt")
    return torch.load(checkpoint, weights_only=True)


def test_your_own_task_has_noisy_observations(task):
    robot = newest(task, "student")["rsl_tbptt"]["robot"]
    terms = {name: group["terms"] for name, group in robot["observation_groups"].items()}
    assert [term["noisy"] for term in terms["policy"]] == [True]
    assert not any(term["noisy"] for term in terms["teacher"])


def test_a_bundle_runs_and_its_log_names_the_planted_faults(isaaclab, task):
    follow_in(isaaclab, task, "robot.md", [])


def test_a_student_with_a_camera(isaaclab, tmp_path):
    quoted = [ROOT / "tasks" / "isaaclab" / name for name in CAMERA_TASK]
    train = [*SHORT, "--num_envs", "4", "agent.num_steps_per_env=8"]
    follow_in(isaaclab, tmp_path, "camera_student.md", quoted, train, SHORT)
    student = newest(tmp_path, "student")
    assert student["rsl_tbptt"]["models"]["student"]["groups"]["camera"]["shape"] == [1, 40, 96]
    assert "rnn.rnn.weight_hh_l0" in student["student_state_dict"]
    memoryless = newest(tmp_path, "student_memoryless")["student_state_dict"]
    assert not any(name.startswith("rnn") for name in memoryless)

"""The platforms' training commands, as they are written, and finding what they left."""

import os
import shlex

import pytest

from rsl_tbptt.platforms import load_platform
from rsl_tbptt.platforms.commands import shown
from scripts.pipeline.presets import DEMO, Policy, load_preset
from scripts.pipeline.training import find_checkpoint, train_command

ISAACLAB = load_preset(DEMO).model_copy(update={"task": "Tbptt-Task", "num_envs": 5})
MJLAB = ISAACLAB.model_copy(update={"platform": "mjlab", "task": "Task"})
POLICY = Policy(title="", agent="an_entry_point", iterations=7, seed=3, expected_seconds=1.0)
STUDENT = POLICY.model_copy(update={"agent": "Student"})
CHECKPOINT = "logs/rsl_rl/experiment/2026-01-01_00-00-00_teacher/model_6.pt"
RESUME = (
    "--agent.resume True --agent.load-run 2026-01-01_00-00-00_teacher --agent.load-checkpoint"
    " model_6.pt"
)


def isaaclab(policy=POLICY, device="cpu", checkpoint=None):
    return train_command(ISAACLAB, policy, run_name="t", device=device, checkpoint=checkpoint)


def mjlab(policy=STUDENT, device="cpu", checkpoint=None):
    return train_command(MJLAB, policy, run_name="t", device=device, checkpoint=checkpoint)


def test_isaac_labs_command_without_checkpoint():
    assert shown(isaaclab(device="cuda:0")) == (
        "isaaclab train --rl_library rsl_rl --task Tbptt-Task --agent an_entry_point --num_envs 5"
        " --max_iterations 7 --seed 3 --run_name t physics=newton_mjwarp --device cuda:0"
        " agent.device=cuda:0"
    )


def test_mjlabs_command_without_checkpoint():
    assert shown(mjlab()) == (
        "train Task-Student --env.scene.num-envs 5 --agent.max-iterations 7 --agent.seed 3"
        " --agent.run-name t --gpu-ids None"
    )


@pytest.mark.parametrize("command", [isaaclab, mjlab])
def test_a_policy_may_have_a_number_of_environments_of_its_own(command):
    line = command(POLICY.model_copy(update={"num_envs": 9}))
    assert [a for a, b in zip(line[1:], line, strict=False) if b.endswith("envs")] == ["9"]


@pytest.mark.parametrize("command", [isaaclab, mjlab])
def test_overrides_come_last(command):
    policy = POLICY.model_copy(update={"overrides": ["env.a=true", "agent.b=1"]})
    assert command(policy)[-2:] == ["env.a=true", "agent.b=1"]


@pytest.mark.parametrize("command", [isaaclab, mjlab])
def test_a_checkpoint_goes_where_an_override_says_and_nowhere_else(command):
    policy = POLICY.model_copy(update={"overrides": ["a=1", "agent.teacher={checkpoint}"]})
    line = command(policy, checkpoint="a/model_1.pt")
    assert line[-1] == "agent.teacher=a/model_1.pt"
    assert "model_1.pt" not in " ".join(line[:-1])


def test_isaac_labs_checkpoint_survives_a_shell():
    command = isaaclab(checkpoint="a b/model_1.pt")
    assert command[command.index("--checkpoint") + 1] == "a b/model_1.pt"
    assert shlex.split(shown(command)) == command


def test_mjlabs_gpu_is_named_by_its_index():
    assert mjlab(device="cuda:1")[-2:] == ["--gpu-ids", "[1]"]


def test_mjlabs_checkpoint_of_this_run_folder_is_resumed_by_run_and_file():
    assert RESUME in shown(mjlab(checkpoint=CHECKPOINT))
    assert "--log-root" not in mjlab(checkpoint=CHECKPOINT)


def test_mjlabs_checkpoint_elsewhere_takes_the_log_root_along():
    words = mjlab(checkpoint=f"/elsewhere/{CHECKPOINT}")
    assert words[words.index("--log-root") + 1] == "/elsewhere/logs/rsl_rl"
    assert RESUME in shown(words)


def test_agents_share_isaac_labs_task_and_end_mjlabs_id():
    assert load_platform("isaaclab").task_id("Tbptt-Task", "an_entry_point") == "Tbptt-Task"
    assert load_platform("mjlab").task_id("Task", "Teacher") == "Task-Teacher"


def checkpoint(folder, timestamp, run_name, iteration, mtime):
    path = (
        folder
        / "logs/rsl_rl/experiment"
        / f"2026-01-01_00-00-0{timestamp}_{run_name}"
        / f"model_{iteration}.pt"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (mtime, mtime))
    return path


def test_newest_finished_checkpoint_is_found(tmp_path):
    checkpoint(tmp_path, "1", "student", 6, 100)
    newest = checkpoint(tmp_path, "2", "student", 6, 200)
    checkpoint(tmp_path, "3", "student", 5, 300)
    checkpoint(tmp_path, "4", "student_other", 6, 400)
    checkpoint(tmp_path, "5", "big_student", 6, 500)
    assert find_checkpoint(tmp_path, "student", 6) == newest


def test_interrupted_or_older_training_is_not_taken_for_finished(tmp_path):
    checkpoint(tmp_path, "1", "student", 6, 100)
    with pytest.raises(FileNotFoundError, match="did not reach its last iteration"):
        find_checkpoint(tmp_path, "student", 6, since=150)
    with pytest.raises(FileNotFoundError, match=r"model_9\.pt"):
        find_checkpoint(tmp_path, "student", 9)

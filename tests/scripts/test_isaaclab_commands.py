"""Isaac Lab's commands: what is written, what is found afterwards, what the child inherits."""

import dataclasses
import os
import shlex

import pytest
from _isaaclab import child_environment, executable, find_checkpoint, shown, train_command
from _preset import Policy

POLICY = Policy(title="", agent="some_entry_point", iterations=7, seed=3, expected_seconds=1.0)


def test_train_command_without_checkpoint():
    command = train_command(POLICY, task="Task", num_envs=5, run_name="teacher", device="cuda:0")
    assert shown(command) == (
        "isaaclab train --rl_library rsl_rl --task Task --agent some_entry_point --num_envs 5"
        " --max_iterations 7 --seed 3 --run_name teacher physics=newton_mjwarp --device cuda:0"
        " agent.device=cuda:0"
    )


def test_overrides_come_last():
    policy = dataclasses.replace(POLICY, overrides=["env.a=true", "agent.b=1"])
    command = train_command(policy, task="Task", num_envs=5, run_name="t", device="cpu")
    assert command[-2:] == ["env.a=true", "agent.b=1"]


def test_train_command_with_checkpoint_survives_a_shell():
    command = train_command(
        POLICY, task="Task", num_envs=5, run_name="s", device="cpu", checkpoint="a b/model_1.pt"
    )
    assert command[command.index("--checkpoint") + 1] == "a b/model_1.pt"
    assert shlex.split(shown(command)) == command


def checkpoint(folder, timestamp, run_name, iteration, mtime):
    path = folder / "logs/rsl_rl/experiment" / f"{timestamp}_{run_name}" / f"model_{iteration}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (mtime, mtime))
    return path


def test_newest_finished_checkpoint_is_found(tmp_path):
    checkpoint(tmp_path, "1", "student", 6, 100)
    newest = checkpoint(tmp_path, "2", "student", 6, 200)
    checkpoint(tmp_path, "3", "student", 5, 300)
    checkpoint(tmp_path, "4", "student_other", 6, 400)
    assert find_checkpoint(tmp_path, "student", 6) == newest


def test_interrupted_or_older_training_is_not_taken_for_finished(tmp_path):
    checkpoint(tmp_path, "1", "student", 6, 100)
    with pytest.raises(FileNotFoundError, match="did not reach its last iteration"):
        find_checkpoint(tmp_path, "student", 6, since=150)
    with pytest.raises(FileNotFoundError, match=r"model_9\.pt"):
        find_checkpoint(tmp_path, "student", 9)


def test_cpu_children_get_one_thread_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert child_environment("cpu")["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in child_environment("cuda:0")
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert child_environment("cpu")["OMP_NUM_THREADS"] == "8"


def test_missing_program_names_the_remedy():
    with pytest.raises(FileNotFoundError, match="isaaclab extra"):
        executable(["no-such-program"])

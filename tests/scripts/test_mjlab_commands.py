"""mjlab's commands, as they are written."""

import dataclasses

import pytest
from _commands import shown
from _mjlab import simulated_env, task_id, train_command
from _preset import Policy

POLICY = Policy(title="", agent="Student", iterations=7, seed=3, expected_seconds=1.0)
CHECKPOINT = "logs/rsl_rl/experiment/2026-01-01_00-00-00_teacher/model_6.pt"
RESUME = (
    "--agent.resume True --agent.load-run 2026-01-01_00-00-00_teacher --agent.load-checkpoint"
    " model_6.pt"
)


def command(policy=POLICY, device="cpu", checkpoint=None):
    return train_command(
        policy, task="Task", num_envs=5, run_name="student", device=device, checkpoint=checkpoint
    )


def test_train_command_without_checkpoint():
    assert shown(command()) == (
        "train Task-Student --env.scene.num-envs 5 --agent.max-iterations 7 --agent.seed 3"
        " --agent.run-name student --gpu-ids None"
    )


def test_gpu_is_named_by_its_index():
    assert command(device="cuda:1")[-2:] == ["--gpu-ids", "[1]"]


def test_overrides_come_last():
    policy = dataclasses.replace(POLICY, overrides=["--agent.algorithm.gradient-length", "8"])
    assert command(policy)[-2:] == policy.overrides


def test_checkpoint_of_this_run_folder_is_resumed_by_run_and_file():
    assert RESUME in shown(command(checkpoint=CHECKPOINT))
    assert "--log-root" not in command(checkpoint=CHECKPOINT)


def test_checkpoint_elsewhere_takes_the_log_root_along():
    words = command(checkpoint=f"/elsewhere/{CHECKPOINT}")
    assert words[words.index("--log-root") + 1] == "/elsewhere/logs/rsl_rl"
    assert RESUME in shown(words)


def test_agent_ends_the_id():
    assert task_id("Task", "Teacher") == "Task-Teacher"


def test_overrides_of_a_task_are_refused():
    sizes = {"num_envs": 1, "seed": 0, "device": "cpu", "clip_actions": None}
    simulated = simulated_env("Task", **sizes, overrides=["presets=depth"])
    with pytest.raises(ValueError, match=r"overrides is \['presets=depth'\], expected none"):
        simulated.__enter__()

"""Isaac Lab's commands, as they are written."""

import dataclasses
import shlex

from _commands import shown
from _isaaclab import task_id, train_command
from _preset import Policy

POLICY = Policy(title="", agent="some_entry_point", iterations=7, seed=3, expected_seconds=1.0)


def test_train_command_without_checkpoint():
    command = train_command(
        POLICY, task="Tbptt-Task", num_envs=5, run_name="teacher", device="cuda:0"
    )
    assert shown(command) == (
        "isaaclab train --rl_library rsl_rl --task Tbptt-Task --agent some_entry_point --num_envs 5"
        " --max_iterations 7 --seed 3 --run_name teacher physics=newton_mjwarp --device cuda:0"
        " agent.device=cuda:0"
    )


def test_overrides_come_last():
    policy = dataclasses.replace(POLICY, overrides=["env.a=true", "agent.b=1"])
    command = train_command(policy, task="Tbptt-Task", num_envs=5, run_name="t", device="cpu")
    assert command[-2:] == ["env.a=true", "agent.b=1"]


def test_train_command_with_checkpoint_survives_a_shell():
    command = train_command(
        POLICY,
        task="Tbptt-Task",
        num_envs=5,
        run_name="s",
        device="cpu",
        checkpoint="a b/model_1.pt",
    )
    assert command[command.index("--checkpoint") + 1] == "a b/model_1.pt"
    assert shlex.split(shown(command)) == command


def test_agents_share_the_task():
    assert task_id("Task", "some_entry_point") == "Task"

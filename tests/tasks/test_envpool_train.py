"""EnvPool's tasks from a teacher to a bundle, by the commands that users type."""

import json
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml

pytest.importorskip("envpool", reason="EnvPool needs Python 3.11")

from rsl_tbptt.checkpoints.reading import latest_checkpoint
from rsl_tbptt.tools.commands.cli import main as rsl_tbptt
from rsl_tbptt_tasks.envpool import __main__ as training
from rsl_tbptt_tasks.envpool import go1_agents
from rsl_tbptt_tasks.envpool.go1 import Faults, Go1Env

TASK = "Tbptt-Go1-Rough-Real"
SMALL = ["--num-envs", "8", "--iterations", "2", "env.num_threads=1"]


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Run the training command in a folder of its own; return the new run's last checkpoint."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("envpool"))

        def run(agent, *words):
            name = f"{agent.split(':')[-1]}{len(list(Path().glob('logs/*/*/*')))}"
            patch.setattr(sys, "argv", ["-", TASK, agent, *SMALL, *words, "--run-name", name])
            training.main()
            (folder,) = Path("logs", "rsl_rl").glob(f"*/*_{name}")
            return latest_checkpoint(folder)

        yield run


@pytest.fixture(scope="module")
def teacher(train):
    return train("teacher")


@pytest.fixture(scope="module")
def student(train, teacher):
    return train("student", "--checkpoint", str(teacher))


def weights(checkpoint, part):
    state = torch.load(checkpoint, weights_only=True)[f"{part}_state_dict"]
    return {name: value for name, value in state.items() if name.startswith(("mlp", "rnn"))}


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def evaluated(output, *words):
    sizes = ["--episodes=4", "--max-steps=20", f"--output={output}"]
    rsl_tbptt(["evaluate", *words, *sizes])
    return json.loads(Path(output).read_text())


@pytest.mark.filterwarnings("ignore:.*episodes had not ended:UserWarning")
def test_a_student_learns_and_its_bundle_acts_as_its_checkpoint_does(teacher, student, tmp_path):
    assert equal(weights(student, "teacher"), weights(teacher, "actor"))
    noted = yaml.safe_load((student.parent / "params" / "env.yaml").read_text())
    assert noted["envpool"] == TASK
    rsl_tbptt(["export", f"--checkpoint={student}", f"--output={tmp_path / 'bundle'}"])
    by_checkpoint = evaluated(tmp_path / "a.json", f"--checkpoint={student}")
    by_bundle = evaluated(tmp_path / "b.json", f"--policy={tmp_path / 'bundle'}")
    assert by_checkpoint["task"] == by_bundle["task"] == TASK
    assert by_checkpoint["returns"] == pytest.approx(by_bundle["returns"], rel=1e-3)
    assert {"tracking_lin_vel", "orientation"} <= by_checkpoint["reward_terms"].keys()
    assert by_checkpoint["velocity_error"] > 0.0
    assert by_checkpoint["jitter"] > 0.0
    described = json.loads((tmp_path / "bundle" / "policy.json").read_text())
    assert described["control_hz"] == 50.0
    assert described["robot"]["clip_actions"] == 1.0
    assert len(described["robot"]["joint_names"]) == 12


def test_ppo_continues_with_a_student(train, student):
    warm_up = "agent.algorithm.critic_warmup_iterations=2"  # of both iterations: the actor stays
    finetuned = train("recurrent", "--checkpoint", str(student), warm_up)
    assert equal(weights(finetuned, "actor"), weights(student, "student"))


def test_a_mistyped_setting_is_named(train, capsys):
    with pytest.raises(SystemExit):
        train("teacher", "history=5")
    assert "the setting is 'history=5', expected env.NAME=VALUE" in capsys.readouterr().err
    with pytest.raises(ValueError, match="histroy is no setting of Go1Joystick"):
        train("teacher", "env.histroy=5")


def test_a_training_goes_on_from_its_checkpoint_with_other_episodes(train, student, monkeypatch):
    seeds, seed = [], Go1Env.seed
    monkeypatch.setattr(Go1Env, "seed", lambda env, new: (seeds.append(new), seed(env, new)))
    resumed = train("student", "--checkpoint", str(student))
    assert len(set(seeds)) == 2  # of the first part, whose episodes are not repeated, and its own
    newest = torch.load(resumed, weights_only=True)
    steps = [
        {int(state["step"]) for state in checkpoint["optimizer_state_dict"]["state"].values()}
        for checkpoint in (torch.load(student, weights_only=True), newest)
    ]
    assert steps[1] == {2 * step for step in steps[0]}


def test_settings_reach_task_and_agent(train, teacher):
    words = ["env.history=5", "agent.student.hidden_dims=[8]", "--checkpoint", str(teacher)]
    checkpoint = train("memoryless", *words)
    first = weights(checkpoint, "student")["mlp.0.weight"]
    assert first.shape == (8, 5 * 45)


def own_agent():
    agent = go1_agents.memoryless()
    return agent | {"student": {**agent["student"], "hidden_dims": [6]}}


def test_an_agent_and_a_task_of_ones_own_are_trained(train, teacher, monkeypatch):
    tasks = {TASK: partial(Go1Env, "Flat", faults=Faults())}
    monkeypatch.setattr(training, "registered_tasks", lambda: tasks)
    checkpoint = train(f"{__name__}:own_agent", "--checkpoint", str(teacher))
    assert weights(checkpoint, "student")["mlp.0.weight"].shape == (6, 45)
    with pytest.raises(ValueError, match="Could not resolve 'techer'"):
        train("techer")


def test_students_are_compared(teacher, tmp_path):
    sizes = ["--num-envs=8", "--iterations=1", "--seeds=1", "--gradient-length=4"]
    where = [f"--output={tmp_path}", "--overrides", "env.num_threads=1", "env.max_episode_steps=9"]
    rsl_tbptt(["compare", f"--teacher={teacher}", *sizes, *where])
    found = json.loads((tmp_path / "compare.json").read_text())
    assert found["plan"]["task"] == TASK
    assert [max(each["lengths"]) for each in found["students"]] == [9, 9, 9]
    assert all(each.keys() >= {"jitter", "power_above_5_hz"} for each in found["students"])

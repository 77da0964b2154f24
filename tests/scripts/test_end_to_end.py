"""The whole pipeline with Isaac Lab's own commands and real physics, as small as possible."""

import json
import re

import pytest

from scripts.pipeline.experiments import FINETUNE, load_experiment
from scripts.pipeline.training import train_command

pytestmark = [pytest.mark.isaaclab, pytest.mark.long]

ITERATIONS = 3


@pytest.fixture(scope="module")
def train(isaaclab, tmp_path_factory):
    """Train a policy of an experiment by Isaac Lab's command; return its output and checkpoint."""
    folder, experiment = tmp_path_factory.mktemp("run"), load_experiment(FINETUNE)

    def trained(name, start=None, *overrides):
        small = {"num_envs": 16, "iterations": ITERATIONS}
        policy = experiment.policies[name].model_copy(update=small)
        start = start and str(start)
        words = train_command(experiment, policy, run_name=name, device="cpu", checkpoint=start)
        assert words[:2] == ["isaaclab", "train"]
        output = isaaclab.call("isaaclab.cli:train", [*words[2:], *overrides], folder=folder)[1]
        (checkpoint,) = folder.glob(f"logs/rsl_rl/*/*_{name}/model_{ITERATIONS - 1}.pt")
        return output, checkpoint

    return trained


@pytest.fixture(scope="module")
def teacher(train):
    return train("teacher")[1]


@pytest.fixture(scope="module")
def student(train, teacher):
    output, checkpoint = train("student", teacher)
    assert "Mean behavior loss" in output
    return checkpoint


@pytest.fixture(scope="module")
def finetuned(train, student):
    warmup = "agent.algorithm.critic_warmup_iterations=1"
    output, checkpoint = train("finetuned", student, warmup)
    assert "Mean surrogate loss" in output
    return checkpoint


def test_a_policy_is_evaluated_on_the_same_starts_again(isaaclab, finetuned, tmp_path):
    files = tmp_path / "first.json", tmp_path / "again.json"
    for file in files:
        words = ("--checkpoint", finetuned, "--episodes", 8, "--output", file)
        isaaclab.tool("evaluate", *words)
    result, again = (json.loads(file.read_text()) for file in files)
    assert result == again
    assert result["episodes"] == len(result["returns"]) == 8
    assert len(set(result["returns"])) == 8
    assert sum(result["ended_by"].values()) >= 1
    assert sum(result["reward_terms"].values()) == pytest.approx(result["mean_return"], rel=1e-4)


def test_the_memory_of_a_student_is_measured_in_its_task(isaaclab, student):
    printed = isaaclab.tool("memory", student, "--num-envs", 16, "--steps", 60)
    assert re.search(r"^ +lag +policy\n +0 +\d+\.\d{3}\n +1 ", printed, re.MULTILINE)
    assert re.search(r"The (policy looks back \d+ steps|memory is not used)", printed)


def test_students_are_compared_in_their_teachers_task(isaaclab, teacher, tmp_path):
    sizes = ("--num-envs", 8, "--iterations", 1, "--seeds", 1, "--gradient-length", 4)
    isaaclab.tool("compare", "--teacher", teacher, *sizes, "--output", tmp_path)
    found = json.loads((tmp_path / "compare.json").read_text())
    assert found["plan"]["task"] == load_experiment(FINETUNE).task
    assert [len(each["returns"]) for each in found["students"]] == [8, 8, 8]

"""The whole pipeline with Isaac Lab's own commands and real physics, as small as possible."""

import json
import re
import subprocess

import numpy as np
import pytest
from PIL import Image

from rsl_tbptt.tools.platforms import child_environment, executable
from rsl_tbptt.tools.simulate.play import HEADING, SIZE
from scripts.pipeline.experiments import FINETUNE, load_experiment
from scripts.pipeline.training import train_command

pytestmark = [pytest.mark.isaaclab, pytest.mark.long]

ITERATIONS = 3


def run(*command, folder=None):
    """Run a program as a user does; its output is shown if it fails."""
    result = subprocess.run(
        executable([*map(str, command)]),
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=child_environment("cpu"),
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Train a policy of an experiment by Isaac Lab's command; return its output and checkpoint."""
    folder, experiment = tmp_path_factory.mktemp("run"), load_experiment(FINETUNE)

    def trained(name, start=None, *overrides):
        small = {"num_envs": 16, "iterations": ITERATIONS}
        policy = experiment.policies[name].model_copy(update=small)
        start = start and str(start)
        words = train_command(experiment, policy, run_name=name, device="cpu", checkpoint=start)
        output = run(*words, *overrides, folder=folder)
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


@pytest.fixture(scope="module")
def evaluate(isaaclab):
    """Evaluate a checkpoint on eight episodes, without another start of the simulator."""

    def evaluated(checkpoint, output):
        words = ["evaluate", "--checkpoint", checkpoint, "--episodes", 8, "--output", output]
        status, printed = isaaclab.call("rsl_tbptt.tools.commands.cli:main", [*map(str, words)])
        assert status == 0, printed
        return json.loads(output.read_text())

    return evaluated


def test_a_policy_is_evaluated_on_the_same_starts_again(evaluate, finetuned, tmp_path):
    result = evaluate(finetuned, tmp_path / "finetuned.json")
    assert result["episodes"] == len(result["returns"]) == 8
    assert result == evaluate(finetuned, tmp_path / "again.json")
    assert len(set(result["returns"])) == 8
    assert sum(result["ended_by"].values()) >= 1
    assert sum(result["reward_terms"].values()) == pytest.approx(result["mean_return"], rel=1e-4)


def test_the_memory_of_a_student_is_measured_in_its_task(isaaclab, student):
    words = ["memory", str(student), "--num-envs", "16", "--steps", "60"]
    status, printed = isaaclab.call("rsl_tbptt.tools.commands.cli:main", words)
    assert status == 0, printed
    assert re.search(r"^ +lag +policy\n +0 +\d+\.\d{3}\n +1 ", printed, re.MULTILINE)
    assert re.search(r"The (policy looks back \d+ steps|memory is not used)", printed)


def test_policies_are_filmed_on_the_same_starts(isaaclab, teacher, student, tmp_path):
    words = ["play", "--video", tmp_path / "video.webp", "--num-envs", 2]
    words += ["--checkpoint", teacher, "--checkpoint", student]
    status, printed = isaaclab.call("rsl_tbptt.tools.commands.cli:main", [*map(str, words)])
    assert status == 0, printed
    with Image.open(tmp_path / "video.webp") as video:
        first = np.asarray(video.convert("RGB"), dtype=int)[HEADING + 30 :]
    width, height = SIZE
    assert first.shape == (2 * height - 30, 2 * width, 3)
    left, right = first[:, :width], first[:, width:]
    assert np.abs(left - right).mean() < 1  # what the compression leaves
    upper, lower = left[: height - 30], left[height:]
    assert not np.array_equal(upper, lower)
    blue, orange = (left[..., i] - left[..., 2 - i] > 60 for i in (2, 0))
    assert blue.sum() > 100  # carts
    assert orange.sum() > 100  # poles


def test_student_is_exported(student, tmp_path):
    run("rsl-tbptt", "export", "--checkpoint", student, "--output", tmp_path)
    exported = json.loads((tmp_path / "policy.json").read_text())
    assert max(exported["max_difference"].values()) < 1e-4
    assert "one robot of Tbptt-Cartpole-Occluded" in exported["golden"]
    with np.load(tmp_path / "golden.npz") as golden:
        terms = exported["observation_groups"]["policy"]["terms"]
        raw = [golden[f"raw/policy/{term['name']}"] for term in terms]
        scales = [1.0 if term["scale"] is None else term["scale"] for term in terms]
        seen = np.concatenate([each * scale for each, scale in zip(raw, scales, strict=True)], 1)
        np.testing.assert_allclose(seen, golden["obs/policy"], atol=0.3)  # the noise

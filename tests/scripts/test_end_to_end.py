"""The whole pipeline with Isaac Lab's own commands and real physics, as small as possible."""

import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from rsl_tbptt.tools.platforms import child_environment, executable
from rsl_tbptt.tools.simulate.play import HEADING, SIZE

pytestmark = [pytest.mark.isaaclab, pytest.mark.long]

ITERATIONS = 3


def run(*command):
    """Run a program as a user does; its output is shown if it fails."""
    result = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        env=child_environment("cpu"),
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout


def run_script(repository, name, *arguments):
    """Run a script of this repository."""
    return run(sys.executable, repository / "scripts" / f"{name}.py", *arguments)


def checkpoint(folder, run_name):
    """Return the checkpoint of a finished training."""
    (found,) = folder.glob(f"logs/rsl_rl/*/*_{run_name}/model_{ITERATIONS - 1}.pt")
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def size(folder):
    return ("--num-envs", 16, "--iterations", ITERATIONS, "--output", folder)


@pytest.fixture(scope="module")
def repository(request):
    return request.config.rootpath


@pytest.fixture(scope="module")
def teacher(repository, folder, size):
    run_script(repository, "train", *size)
    return checkpoint(folder, "teacher")


@pytest.fixture(scope="module")
def student(repository, folder, size, teacher):
    output = run_script(repository, "distill", "--teacher", teacher, *size)
    assert "Mean behavior loss" in output
    return checkpoint(folder, "student")


@pytest.fixture(scope="module")
def finetuned(repository, folder, size, student):
    warmup = "agent.algorithm.critic_warmup_iterations=1"
    output = run_script(repository, "finetune", "--student", student, *size, warmup)
    assert "Mean surrogate loss" in output
    return checkpoint(folder, "finetuned")


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
    found = json.loads((student.parent / "memory.json").read_text())
    assert (found["task"], found["gradient_length"]) == ("Tbptt-Cartpole-Occluded", 16)
    assert [*found["groups"]] == ["policy"]
    assert 31 <= len(found["influence"]) <= 60
    assert max(found["influence"]) > 0
    assert found["units"] == 64


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
    run(*executable(["rsl-tbptt", "export"]), "--checkpoint", student, "--output", tmp_path)
    exported = json.loads((tmp_path / "policy.json").read_text())
    assert max(exported["max_difference"].values()) < 1e-4
    assert "one robot of Tbptt-Cartpole-Occluded" in exported["golden"]
    with np.load(tmp_path / "golden.npz") as golden:
        terms = exported["observation_groups"]["policy"]["terms"]
        raw = [golden[f"raw/policy/{term['name']}"] for term in terms]
        scales = [1.0 if term["scale"] is None else term["scale"] for term in terms]
        seen = np.concatenate([each * scale for each, scale in zip(raw, scales, strict=True)], 1)
        np.testing.assert_allclose(seen, golden["obs/policy"], atol=0.3)  # the noise

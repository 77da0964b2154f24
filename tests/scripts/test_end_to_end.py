"""The whole way through Isaac Lab's own commands, on real physics, as small as it goes."""

import json
import subprocess
import sys

import pytest

from rsl_tbptt.platforms.commands import child_environment, executable
from scripts.pipeline.training import find_checkpoint

pytestmark = pytest.mark.isaaclab

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
    return find_checkpoint(folder, "teacher", ITERATIONS - 1)


@pytest.fixture(scope="module")
def student(repository, folder, size, teacher):
    output = run_script(repository, "distill", "--teacher", teacher, *size)
    assert "Mean behavior loss" in output
    return find_checkpoint(folder, "student", ITERATIONS - 1)


@pytest.fixture(scope="module")
def finetuned(repository, folder, size, student):
    output = run_script(
        repository,
        "finetune",
        "--student",
        student,
        *size,
        "agent.algorithm.critic_warmup_iterations=1",
    )
    assert "Mean surrogate loss" in output
    return find_checkpoint(folder, "finetuned", ITERATIONS - 1)


@pytest.fixture(scope="module")
def evaluate(isaaclab):
    """Evaluate a checkpoint on eight episodes, without another start of the simulator."""

    def evaluated(checkpoint, output):
        words = ["evaluate", "--checkpoint", checkpoint, "--episodes", 8, "--output", output]
        status, printed = isaaclab.call("rsl_tbptt.cli:main", [*map(str, words)])
        assert status == 0, printed
        return json.loads(output.read_text())

    return evaluated


def starts(evaluation):
    return [(r["slider_to_cart"][0], r["cart_to_pole"][0]) for r in evaluation["recorded"]]


def test_policies_are_evaluated_on_the_same_starts(evaluate, teacher, student, tmp_path):
    result = evaluate(student, tmp_path / "student.json")
    assert result["episodes"] == len(result["returns"]) == 8
    for robot, length in zip(result["recorded"], result["lengths"], strict=False):
        assert len(robot["slider_to_cart"]) == len(robot["cart_to_pole"]) == length
    assert starts(result) == starts(evaluate(teacher, tmp_path / "teacher.json"))
    assert starts(result)[0] != starts(result)[1]


def test_finetuned_student_is_evaluated(evaluate, finetuned, tmp_path):
    assert evaluate(finetuned, tmp_path / "finetuned.json")["episodes"] == 8


def test_student_is_exported(student, tmp_path):
    run(*executable(["rsl-tbptt", "export"]), "--checkpoint", student, "--output", tmp_path)
    parity = json.loads((tmp_path / "parity.json").read_text())
    assert max(parity["max_difference"].values()) < parity["tolerance"]

"""Run docs/howto/mjlab.md from its first to its last line: the package to copy and its commands.

The commands are mjlab's own train and play, shortened; then the study's on the published bundle of
Go1, and the study itself in small.
"""

# mjlab is in a separate environment that the type checker does not see.
# pyright: reportMissingImports=false

import json
import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import requires, version
from pathlib import Path

import onnx
import pytest
import torch
import yaml

pytest.importorskip("mjlab", reason="mjlab has an environment of its own")

from support.mjlab_page import build_package, runs, smaller
from support.pages import Command

ROOT = Path(__file__).resolve().parents[2]
RESUMED = "your student, 100 iterations more"
OWN, CARTPOLE, GO1 = "my_task", "tbptt_cartpole_occluded", "tbptt_go1_flat"


def plays(agent, run_name):
    """Return a command that plays a run of the occluded cartpole."""
    checkpoint = f"logs/rsl_rl/{CARTPOLE}/*_{run_name}/model_1.pt"
    words = ["play", f"Tbptt-Cartpole-Occluded-{agent}", "--checkpoint-file", checkpoint]
    return smaller(Command(words, {}))


def tool(name, *extra):
    """Return a command of this package on the student of the occluded cartpole."""
    checkpoint = f"logs/rsl_rl/{CARTPOLE}/*_student/model_1.pt"
    where = ["--task", "Tbptt-Cartpole-Occluded-Student", "--checkpoint", checkpoint]
    return Command(["rsl-tbptt", name, *where, *extra], {})


def compares():
    """Return a small comparison of students of the occluded cartpole's teacher."""
    teacher = f"logs/rsl_rl/{CARTPOLE}/*_teacher/model_1.pt"
    task = ["--task", "Tbptt-Cartpole-Occluded-Student", "--overrides", "env.episode_length_s=0.5"]
    sizes = ["--num-envs", "8", "--iterations", "1", "--seeds", "1", "--output", "compared"]
    return Command(["rsl-tbptt", "compare", "--teacher", teacher, *task, *sizes], {})


def published(name, *extra):
    """Return the study's command on the bundle of a Go1, which needs no checkpoint."""
    lines = (ROOT / "docs" / "studies" / "go1.md").read_text().splitlines()
    (line,) = (line for line in lines if f"{name} --policy examples/go1_flat_student" in line)
    return Command([*shlex.split(line, comments=True), *extra], {})


needs_the_rsl_rl_of_mjlab = pytest.mark.skipif(
    f"rsl-rl-lib=={version('rsl-rl-lib')}" not in (requires("mjlab") or []),
    reason="mjlab's own export asks rsl_rl's logger for what the release that it pins has",
)

RUNS = runs()
FURTHER = {  # not on the page, whose task plays without end
    "student plays": plays("Student", "student"),
    "PPO plays": plays("Recurrent", "finetuned"),
    "the student is evaluated": tool("evaluate", "--episodes", "3"),
    "the student is exported": tool("export", "--steps", "3"),
    "students are compared": compares(),
    "the published bundle is evaluated": published(
        "evaluate", "--episodes", "2", "--max-steps", "3", "--output", "go1.json"
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("mjlab")


@pytest.fixture(scope="module")
def outputs(folder):
    """Output of every command, by its name above."""
    wheel = build_package(folder / "package")
    (folder / "examples").symlink_to(ROOT / "examples")
    given = {**RUNS, **FURTHER}
    (folder / "commands.json").write_text(
        json.dumps([(command.words, command.environment) for command in given.values()])
    )
    result = subprocess.run(
        [sys.executable, ROOT / "tests" / "support" / "mjlab_process.py", "commands.json"],
        cwd=folder,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(wheel), os.environ.get("PYTHONPATH", "")]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    texts = re.split(r"^COMMAND \d+: .*$", result.stdout, flags=re.MULTILINE)[1:]
    return dict(zip(given, texts, strict=True))


@pytest.fixture(scope="module")
def checkpoint(folder, outputs):
    def read(experiment, run_name):
        (path,) = folder.glob(f"logs/rsl_rl/{experiment}/*_{run_name}/model_1.pt")
        return torch.load(path, weights_only=True)

    return read


def test_commands_train_to_their_end(outputs):
    for name, command in RUNS.items():
        last = "2/3" if name == RESUMED else "1/2"
        assert command.words[0] != "train" or f"Learning iteration {last}" in outputs[name], name


def steps_of(checkpoint):
    """Return how many steps the optimiser has taken, one number for all parameters."""
    return {int(state["step"]) for state in checkpoint["optimizer_state_dict"]["state"].values()}


def counter(checkpoint):
    """Return how many steps the environment has made."""
    return checkpoint["infos"]["env_state"]["common_step_counter"]


def equal(loaded, trained):
    assert loaded.keys() == trained.keys()
    return all(torch.equal(loaded[name], trained[name]) for name in trained)


def test_resumed_run_gives_the_student_its_teacher(checkpoint):
    for experiment in (OWN, CARTPOLE, GO1):
        teacher, student = checkpoint(experiment, "teacher"), checkpoint(experiment, "student")
        assert equal(student["teacher_state_dict"], teacher["actor_state_dict"])
        assert "rnn.rnn.weight_hh_l0" in student["student_state_dict"]
        assert min(steps_of(student)) > 1


def test_resumed_student_continues_where_it_stopped(folder, checkpoint):
    (path,) = folder.glob(f"logs/rsl_rl/{OWN}/*_student/model_2.pt")
    teacher, before = checkpoint(OWN, "teacher"), checkpoint(OWN, "student")
    after = torch.load(path, weights_only=True)
    assert equal(after["teacher_state_dict"], before["teacher_state_dict"])
    assert counter(after) - counter(before) == counter(before) - counter(teacher) > 0
    assert steps_of(after) == {2 * step for step in steps_of(before)}


def test_ppo_continues_with_the_student(checkpoint):
    finetuned = checkpoint(CARTPOLE, "finetuned")
    assert finetuned["rsl_tbptt"]["fine_tuning"]["num_updates"] == 2
    student = checkpoint(CARTPOLE, "student")["student_state_dict"]
    assert finetuned["actor_state_dict"].keys() == student.keys()


def test_a_student_is_evaluated_and_exported(folder, outputs):
    [file] = folder.glob("logs/rsl_rl/*/*/evaluation.json")
    evaluation = json.loads(file.read_text())
    assert evaluation["episodes"] == 3
    [file] = folder.glob("logs/rsl_rl/*/*/exported/*/policy.json")
    exported = json.loads(file.read_text())
    assert max(exported["max_difference"].values()) < 1e-4
    task = "Tbptt-Cartpole-Occluded-Student"
    assert exported["simulation"] == {"platform": "mjlab", "task": task}


def test_students_are_compared(folder):
    found = json.loads((folder / "compared" / "compare.json").read_text())
    assert found["plan"]["obs"] == ["actor"]
    assert [each["name"] for each in found["students"]] == ["mlp", "history", "lstm"]
    assert all(max(each["lengths"]) <= 26 for each in found["students"])


@pytest.mark.parametrize("name", ["student plays", "PPO plays"])
def test_played_policy_remembers_until_its_episode_ends(outputs, name):
    (line,) = re.findall(r"^PLAYED (.*)$", outputs[name], flags=re.MULTILINE)
    steps = json.loads(line)
    assert any(any(step["starts"]) for step in steps[1:])  # some episode ended while watching
    for step in steps:
        assert step["blank"] == step["starts"]


@needs_the_rsl_rl_of_mjlab
def test_checkpoints_describe_go1_like_mjlabs_export_at_every_save(folder, outputs, checkpoint):
    assert not [name for name, text in outputs.items() if "ONNX export failed" in text]
    (path,) = folder.glob(f"logs/rsl_rl/{GO1}/*_student/*_student.onnx")
    written = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    robot = checkpoint(GO1, "student")["rsl_tbptt"]["robot"]
    terms = robot["observation_groups"]["actor"]["terms"]
    [action] = robot["actions"]
    ours = {name: robot[name] for name in robot.keys() & written.keys()}
    ours |= {"observation_names": [t["name"] for t in terms], "action_scale": action["scale"]}
    assert ours.keys() >= {"joint_names", "joint_stiffness", "joint_damping", "default_joint_pos"}
    for name, values in ours.items():
        texts = [value if isinstance(value, str) else f"{value:.3f}" for value in values]
        assert ",".join(texts) == written[name]


def test_the_published_student_of_go1_is_evaluated_without_its_checkpoint(folder, outputs):
    found = json.loads((folder / "go1.json").read_text())
    assert (found["form"], found["checkpoint"], found["lengths"]) == ("onnx", "model_50.pt", [3, 3])
    assert found["task"] == "Tbptt-Velocity-Flat-Unitree-Go1-Student"
    assert 0 < found["mean_return"] < 1  # a step of a standing robot earns about 0.1


STUDIED = ("teacher", "student", "history5", "rsl_rl_scratch")
"""One of each kind: a longer history in its task, an algorithm of rsl_rl."""
TIME_IS_UP = 75


@pytest.mark.long
def test_the_study_of_go1_runs_in_slices_and_reports_every_policy(tmp_path):
    """On flat ground, where commands start sooner."""
    sweep = yaml.safe_load((ROOT / "configs" / "go1_curves.yaml").read_text())
    sweep["policies"] = {name: sweep["policies"][name] for name in STUDIED}
    sweep["tasks"] = {"randomized": {"task": "Tbptt-Velocity-Flat-Unitree-Go1-Randomized"}}
    sweep["experiment"] = str(ROOT / "configs" / "go1.yaml")
    study, output = tmp_path / "study.yaml", tmp_path / "run"
    study.write_text(yaml.safe_dump(sweep, sort_keys=False))
    command = [sys.executable, "-m", "scripts.pipeline.curves", study, "--quick"]
    for slices, status in (["--minutes", "0.1"], TIME_IS_UP), ([], 0):
        done = subprocess.run(
            [*command, *slices, "--output", output], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == status, done.stdout + done.stderr
        assert ("the time is up" in done.stdout + done.stderr) == bool(status)
    report = (output / "randomized" / "report.md").read_text()
    assert "8 of 8 stages are finished" in report
    for name in STUDIED:
        assert report.count(f"| {name} ") == 3  # return, costs, and its seed
    assert "velocity error, m/s" in report

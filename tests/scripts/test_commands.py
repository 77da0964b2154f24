"""Every script explains itself, and one policy is trained as in the pipeline."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.pipeline import one_policy
from scripts.pipeline.presets import DEMO, FINETUNE, load_preset
from scripts.pipeline.run_folder import RunFolder
from scripts.pipeline.stages import policy_stages

SCRIPTS = ("train", "distill", "finetune", "report", "recall")
MODULES = ("scripts.pipeline", "scripts.pipeline.curves")


@pytest.mark.parametrize("name", SCRIPTS)
def test_help(repository, monkeypatch, capsys, name):
    monkeypatch.setattr("sys.argv", [f"{name}.py", "--help"])
    monkeypatch.setattr("sys.path", [str(repository / "scripts"), *sys.path])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(repository / "scripts" / f"{name}.py"), run_name="__main__")
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: {name}.py")
    assert len(shown.splitlines()) > 5


@pytest.mark.parametrize("name", MODULES)
def test_help_of_a_module(repository, name):
    shown = subprocess.run(
        [sys.executable, "-m", name, "--help"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert shown.startswith(f"usage: python -m {name} ")
    assert len(shown.splitlines()) > 5


def test_a_script_runs_from_any_folder(repository, tmp_path):
    command = [sys.executable, repository / "scripts" / "distill.py", "--policy", "x"]
    shown = subprocess.run(
        [*command, "--teacher", "m.pt"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert shown.returncode == 2
    assert "--policy is 'x', expected one of ['student', 'finetuned']" in shown.stderr


@pytest.fixture
def run_one(monkeypatch, repository):
    """Run a script that trains one policy; return its command and its folder."""
    monkeypatch.setattr("sys.path", [str(repository / "scripts"), *sys.path])

    def run(name, *arguments):
        seen = []
        monkeypatch.setattr(
            one_policy, "run_shown", lambda command, folder, _: seen.append((command, folder)) or 0
        )
        monkeypatch.setattr("sys.argv", [f"{name}.py", *arguments])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(repository / "scripts" / f"{name}.py"), run_name="__main__")
        assert end.value.code == 0
        return seen[0]

    return run


@pytest.mark.parametrize(("given", "number"), [((), "256"), (("--num-envs", "9"), "9")])
def test_number_of_environments_is_the_command_lines_before_the_policys(run_one, given, number):
    seek = str(DEMO.with_name("demo-seek.yaml"))
    command, _ = run_one("distill", "--config", seek, "--teacher", "model_1.pt", *given)
    assert command[command.index("--num_envs") + 1] == number


def test_train_passes_further_arguments_on(run_one):
    command, folder = run_one("train", "--iterations", "3", "agent.algorithm.gamma=0.9")
    assert command[-1] == "agent.algorithm.gamma=0.9"
    assert command[command.index("--max_iterations") + 1] == "3"
    assert "--checkpoint" not in command
    assert folder.as_posix() == "runs/finetune"


@pytest.mark.parametrize(
    ("arguments", "agent"),
    [
        (["train"], "rsl_rl_cfg_entry_point"),
        (["train", "--policy", "scratch"], "rsl_rl_recurrent_cfg_entry_point"),
        (["distill", "--teacher", "m.pt"], "rsl_rl_distillation_recurrent_cfg_entry_point"),
        (["finetune", "--student", "m.pt"], "rsl_rl_finetune_cfg_entry_point"),
    ],
)
def test_one_policy_is_trained_as_in_the_pipeline(run_one, tmp_path, arguments, agent):
    command, _ = run_one(*arguments)
    assert command[command.index("--agent") + 1] == agent
    preset = load_preset(FINETUNE)
    run_name = command[command.index("--run_name") + 1]
    run = RunFolder(tmp_path)
    stage = next(s for s in policy_stages(run, preset, "cpu") if s.name == run_name)
    start = str(Path("m.pt").resolve())
    assert command == stage.command({"teacher": start, "student": start})


def test_another_preset_is_read(run_one):
    config = ("--config", str(DEMO), "--policy", "memoryless")
    command, folder = run_one("distill", "--teacher", "model_1.pt", *config)
    assert command[command.index("--agent") + 1] == "rsl_rl_distillation_cfg_entry_point"
    assert command[command.index("--checkpoint") + 1].endswith("/model_1.pt")
    assert folder.as_posix() == "runs/demo"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--policy", "student"], r"expected one of ['teacher', 'scratch']"),
        (["distill", "--teacher", "m.pt", "--policy", "scratch"], "['student', 'finetuned']"),
        (["distill"], "--teacher"),
        (["finetune"], "--student"),
        (["train", "--config", "absent.yaml"], "absent.yaml cannot be read"),
    ],
)
def test_wrong_command_line_is_refused(repository, monkeypatch, capsys, arguments, message):
    monkeypatch.setattr("sys.argv", arguments)
    monkeypatch.setattr("sys.path", [str(repository / "scripts"), *sys.path])
    with pytest.raises(SystemExit):
        runpy.run_path(str(repository / "scripts" / f"{arguments[0]}.py"), run_name="__main__")
    assert message in capsys.readouterr().err

"""Every script explains itself, and doctor finds what is wrong."""

import runpy
from pathlib import Path

import _one_policy
import doctor
import pytest
from _pipeline_stages import policy_stages
from _preset import DEMO, FINETUNE, load_preset
from _stages import RunFolder

SCRIPTS = (
    "recall",
    "pipeline",
    "curves",
    "train",
    "distill",
    "finetune",
    "play",
    "evaluate",
    "export",
    "report",
    "doctor",
)


@pytest.mark.parametrize("name", SCRIPTS)
def test_help(repository, monkeypatch, capsys, name):
    monkeypatch.setattr("sys.argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(repository / "scripts" / f"{name}.py"), run_name="__main__")
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: {name}.py")
    assert len(shown.splitlines()) > 5


def test_doctor_passes_here(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("sys.argv", ["doctor.py", "--output", str(tmp_path / "run")])
    assert doctor.main() == 0
    assert "WRONG" not in capsys.readouterr().out


def test_doctor_names_every_fault(monkeypatch, tmp_path, capsys):
    (tmp_path / "file").touch()
    folder = str(tmp_path / "file" / "run")
    monkeypatch.setattr("sys.argv", ["doctor.py", "--output", folder, "--device", "cuda:99"])
    monkeypatch.setattr(doctor, "entry_points", lambda group: [])
    monkeypatch.setattr(doctor.sys, "version_info", (3, 11, 0))
    monkeypatch.setattr(doctor, "versions", lambda *_: {"python": "3.11.0", "torch": None})
    assert doctor.main() == 1
    wrong = [
        line.split("WRONG")[0].strip()
        for line in capsys.readouterr().out.splitlines()
        if "  WRONG  " in line
    ]
    assert wrong == ["python", "packages", "tasks", "device", "run folder"]


@pytest.fixture
def run_one(monkeypatch, repository):
    """Run a script that trains one policy; return its command and its folder."""

    def run(name, *arguments):
        seen = []
        monkeypatch.setattr(
            _one_policy, "run_shown", lambda command, folder, _: seen.append((command, folder)) or 0
        )
        monkeypatch.setattr("sys.argv", [f"{name}.py", *arguments])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(repository / "scripts" / f"{name}.py"), run_name="__main__")
        assert end.value.code == 0
        return seen[0]

    return run


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
    with pytest.raises(SystemExit):
        runpy.run_path(str(repository / "scripts" / f"{arguments[0]}.py"), run_name="__main__")
    assert message in capsys.readouterr().err


def test_play_takes_task_and_agent_from_the_run(monkeypatch, tmp_path):
    import play

    manifest = '{"library": "rsl_rl", "task": "T", "metadata": {"agent": "a"}}'
    (tmp_path / "run.json").write_text(manifest)
    seen = []
    monkeypatch.setattr(play, "run_shown", lambda command, *_: seen.append(command) or 0)
    monkeypatch.setattr("sys.argv", ["play.py", "--checkpoint", str(tmp_path / "model_1.pt")])
    assert play.main() == 0
    assert seen[0][:8] == [
        "isaaclab",
        "play",
        "--rl_library",
        "rsl_rl",
        "--task",
        "T",
        "--agent",
        "a",
    ]


def test_play_without_a_run_says_so(monkeypatch, tmp_path, capsys):
    import play

    monkeypatch.setattr("sys.argv", ["play.py", "--checkpoint", str(tmp_path / "model_1.pt")])
    with pytest.raises(SystemExit):
        play.main()
    assert "run.json is missing" in capsys.readouterr().err

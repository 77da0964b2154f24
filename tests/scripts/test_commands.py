"""Every script explains itself, and doctor finds what is wrong."""

import subprocess
import sys

import doctor
import pytest
from _isaaclab import child_environment

SCRIPTS = ("demo", "train", "distill", "play", "evaluate", "export", "report", "doctor")


@pytest.mark.parametrize("name", SCRIPTS)
def test_help(repository, name):
    result = subprocess.run(
        [sys.executable, repository / "scripts" / f"{name}.py", "--help"],
        capture_output=True,
        text=True,
        check=False,
        env=child_environment("cpu"),
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"usage: {name}.py")
    assert len(result.stdout.splitlines()) > 5


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
    monkeypatch.setattr(doctor, "versions", lambda: {"python": "3.11.0", "torch": None})
    assert doctor.main() == 1
    wrong = [
        line.split("WRONG")[0].strip()
        for line in capsys.readouterr().out.splitlines()
        if "  WRONG  " in line
    ]
    assert wrong == ["python", "packages", "tasks", "device", "run folder"]


def test_train_passes_further_arguments_on(monkeypatch, tmp_path):
    import train

    seen = []
    monkeypatch.setattr(train, "run_shown", lambda command, *_: seen.append(command) or 0)
    monkeypatch.setattr("sys.argv", ["train.py", "--iterations", "3", "agent.algorithm.gamma=0.9"])
    assert train.main() == 0
    assert seen[0][-1] == "agent.algorithm.gamma=0.9"
    assert seen[0][seen[0].index("--max_iterations") + 1] == "3"


def test_distill_reads_the_presets_student(monkeypatch, tmp_path):
    import distill

    seen = []
    monkeypatch.setattr(distill, "run_shown", lambda command, *_: seen.append(command) or 0)
    monkeypatch.setattr(
        "sys.argv", ["distill.py", "--teacher", "model_1.pt", "--student", "memoryless"]
    )
    assert distill.main() == 0
    command = seen[0]
    assert command[command.index("--agent") + 1] == "rsl_rl_distillation_cfg_entry_point"
    assert command[command.index("--checkpoint") + 1].endswith("/model_1.pt")


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

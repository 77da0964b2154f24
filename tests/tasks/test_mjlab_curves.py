"""The study of Go1 in small, on a CPU: the file that a GPU runs, with few of its policies."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytest.importorskip("mjlab", reason="mjlab has an environment of its own")

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIGS = REPOSITORY / "configs"
POLICIES = ("teacher", "student", "history5", "rsl_rl_scratch")
"""One of each kind: a longer history in its task, an algorithm of rsl_rl."""
TIME_IS_UP = 75


@pytest.fixture
def study(tmp_path):
    """Write the study with few of its policies, on flat ground, where commands start sooner."""
    sweep = yaml.safe_load((CONFIGS / "go1_curves.yaml").read_text())
    sweep["policies"] = {name: sweep["policies"][name] for name in POLICIES}
    sweep["tasks"] = {"randomized": {"task": "Tbptt-Velocity-Flat-Unitree-Go1-Randomized"}}
    sweep["experiment"] = str(CONFIGS / "go1.yaml")
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(sweep, sort_keys=False))
    return file


def curves(study, *options):
    command = [sys.executable, "-m", "scripts.pipeline.curves", str(study), "--quick", *options]
    command += ["--output", str(study.parent / "run")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.long
def test_the_study_runs_in_slices_and_reports_every_policy(study):
    status, printed = curves(study, "--minutes", "0.1")
    assert (status, "the time is up" in printed) == (TIME_IS_UP, True)
    status, printed = curves(study)
    assert status == 0, printed
    report = (study.parent / "run" / "randomized" / "report.md").read_text()
    assert "8 of 8 stages are finished" in report
    for name in POLICIES:
        assert report.count(f"| {name} ") == 3  # return, costs, and its seed
    assert "velocity error, m/s" in report

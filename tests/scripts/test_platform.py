"""Platforms: each offers what the scripts ask for, and finished trainings are found."""

import inspect
import os
import subprocess
import sys

import pytest
from _platform import PLATFORMS, Platform, find_checkpoint, load_platform

ASKED_FOR = {
    name: function for name, function in vars(Platform).items() if inspect.isfunction(function)
}


@pytest.mark.parametrize("name", PLATFORMS)
def test_every_platform_offers_what_is_asked_for(name):
    platform = load_platform(name)
    for function_name, asked_for in ASKED_FOR.items():
        if function_name.startswith("_"):
            continue
        offered = inspect.signature(getattr(platform, function_name)).parameters
        assert [*inspect.signature(asked_for).parameters][1:] == [*offered], function_name
    assert platform.PACKAGES


@pytest.mark.parametrize("name", PLATFORMS)
def test_writing_commands_loads_no_simulator(repository, name):
    code = f"import sys, _{name}; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=repository / "scripts",
        capture_output=True,
        text=True,
        check=True,
    )
    assert {"torch", "warp", "mujoco"}.isdisjoint(result.stdout.split())


def checkpoint(folder, timestamp, run_name, iteration, mtime):
    path = folder / "logs/rsl_rl/experiment" / f"{timestamp}_{run_name}" / f"model_{iteration}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (mtime, mtime))
    return path


def test_newest_finished_checkpoint_is_found(tmp_path):
    checkpoint(tmp_path, "1", "student", 6, 100)
    newest = checkpoint(tmp_path, "2", "student", 6, 200)
    checkpoint(tmp_path, "3", "student", 5, 300)
    checkpoint(tmp_path, "4", "student_other", 6, 400)
    assert find_checkpoint(tmp_path, "student", 6) == newest


def test_interrupted_or_older_training_is_not_taken_for_finished(tmp_path):
    checkpoint(tmp_path, "1", "student", 6, 100)
    with pytest.raises(FileNotFoundError, match="did not reach its last iteration"):
        find_checkpoint(tmp_path, "student", 6, since=150)
    with pytest.raises(FileNotFoundError, match=r"model_9\.pt"):
        find_checkpoint(tmp_path, "student", 9)

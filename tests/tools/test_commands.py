"""How commands are run: what the child inherits, and what is said where a program is missing."""

import os
import sys

import pytest

from rsl_tbptt.tools.doctor import machine
from rsl_tbptt.tools.platforms import child_environment, executable


def test_cpu_children_get_one_thread_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert child_environment("cpu")["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in child_environment("cuda:0")
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert child_environment("cpu")["OMP_NUM_THREADS"] == "8"


def test_missing_program_names_the_remedy():
    with pytest.raises(FileNotFoundError, match=r"isaaclab extra.*mjlab extra"):
        executable(["no-such-program"])


def test_a_program_is_looked_for_beside_this_python_then_on_the_path(tmp_path, monkeypatch):
    beside, elsewhere = tmp_path / "beside", tmp_path / "elsewhere"
    for folder in (beside, elsewhere):
        folder.mkdir()
        (folder / "isaaclab").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(beside / "python"))
    monkeypatch.setenv("PATH", str(elsewhere))
    assert executable(["isaaclab", "train"]) == [str(beside / "isaaclab"), "train"]
    (beside / "isaaclab").unlink()
    assert executable(["isaaclab", "train"]) == [str(elsewhere / "isaaclab"), "train"]


def test_the_machine_is_described_where_the_system_has_no_sysconf(monkeypatch):
    assert machine("cpu")["memory"].endswith(" GB")
    monkeypatch.delattr(os, "sysconf")
    assert machine("cpu")["memory"] == "memory unknown"

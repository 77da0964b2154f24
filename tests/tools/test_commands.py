"""How commands are run: what the child inherits, and what is said where a program is missing."""

import pytest

from rsl_tbptt.platforms.commands import child_environment, executable


def test_cpu_children_get_one_thread_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert child_environment("cpu")["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in child_environment("cuda:0")
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert child_environment("cpu")["OMP_NUM_THREADS"] == "8"


def test_missing_program_names_the_remedy():
    with pytest.raises(FileNotFoundError, match=r"isaaclab extra.*mjlab extra"):
        executable(["no-such-program"])

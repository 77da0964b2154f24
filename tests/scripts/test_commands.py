"""Every study has help, also as a script."""

import runpy
import sys

import pytest


@pytest.mark.parametrize(
    "name", ["gait", "memory_length", "recall", "weight_average", "what_matters"]
)
def test_help(repository, monkeypatch, capsys, name):
    monkeypatch.setattr("sys.path", [str(repository / "scripts"), *sys.path])
    monkeypatch.setattr("sys.argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(repository / "scripts" / f"{name}.py"), run_name="__main__")
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: ")
    assert len(shown.splitlines()) > 5

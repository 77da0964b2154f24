"""``rsl-tbptt doctor`` on a robot, and on a GPU, whose engine a CPU stands in for here."""

import re
import warnings

import pytest

from rsl_tbptt.core import scan
from rsl_tbptt.installation import install
from rsl_tbptt.tools.commands import doctor
from rsl_tbptt.tools.commands.doctor import check_engine, diagnose


def test_engine_and_precision_are_named():
    found = check_engine("cpu")
    assert found.startswith("compiled, products in float32; steps run as they are (device")


def test_an_engine_that_does_not_work_is_named_with_its_reason(monkeypatch):
    def broken(*_):
        warnings.warn("'triton' failed a comparison", stacklevel=2)
        return "reference"

    monkeypatch.setattr(scan, "fastest_engine", broken)
    with pytest.raises(ValueError, match=r"scan_engine is 'reference'.*failed a comparison"):
        check_engine("cpu")


@pytest.fixture
def on_a_robot(monkeypatch, tmp_path):
    """Hide what a robot does not install."""
    find = doctor.importlib.util.find_spec
    monkeypatch.setattr(
        doctor.importlib.util, "find_spec", lambda name: None if name == "torch" else find(name)
    )
    monkeypatch.setattr(doctor, "installed_version", lambda name: None)
    monkeypatch.chdir(tmp_path)


def test_a_robot_that_only_runs_policies_is_well(on_a_robot, capsys):
    assert diagnose()
    shown = capsys.readouterr().out
    assert re.search(
        r"^policies     ok     rsl_tbptt.deploy, numpy \S+, onnxruntime \S+$", shown, re.M
    )
    assert f"training     -      not installed: {install('tools')}" in shown
    assert "Isaac Lab" not in shown


def test_a_robot_without_onnxruntime_is_told_the_extra_for_robots(on_a_robot, monkeypatch, capsys):
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    assert not diagnose()
    assert (
        f"policies     WRONG  onnxruntime is missing: {install('deploy')}"
        in capsys.readouterr().out
    )

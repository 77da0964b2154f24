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


@pytest.mark.parametrize("lacks", [(), ("onnxruntime",)])
def test_a_robot_runs_policies_without_what_trains_and_is_told_its_extra(
    monkeypatch, tmp_path, capsys, lacks
):
    find, hidden = doctor.importlib.util.find_spec, ("torch", "rsl_rl", *lacks)
    monkeypatch.setattr(
        doctor.importlib.util, "find_spec", lambda name: None if name in hidden else find(name)
    )
    monkeypatch.setattr(doctor, "installed_version", lambda name: None)
    monkeypatch.chdir(tmp_path)
    assert diagnose() is (not lacks)
    shown = capsys.readouterr().out
    line = rf"WRONG  onnxruntime is missing: {re.escape(install('deploy'))}"
    if not lacks:
        line = r"ok     rsl_tbptt.deploy, numpy \S+, onnxruntime \S+"
    assert re.search(rf"^policies     {line}$", shown, re.M)
    assert f"training     -      not installed: {install('tools')}" in shown
    assert "Isaac Lab" not in shown

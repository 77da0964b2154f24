"""CI runs everything, fails if anything fails, and ends with one line for all tests."""

import os
import shutil
import subprocess
import sys
from collections import Counter

import pytest

from scripts.ci.stats import ROOT
from scripts.ci.summary import read

MAKE = """#!/bin/bash
echo "make $*" >> "$LOG"
suite() {
  suite="testsuite tests='$2' failures='$3' skipped='$4' errors='0' time='$5'"
  echo "<testsuites><$suite/></testsuites>" > "$REPORTS/$1.xml"
}
case "$1" in
  test) suite test 7 0 2 60.25 ;;
  test-matrix) [ -n "${BREAKS:-}" ] || { suite row-a 3 0 1 0.25; suite row-b 2 1 0 0.25; } ;;
esac
[ "$1" != "${FAILS:-}" ]
"""


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def run_ci(tmp_path, **variables):
    """Run .ci/run with a stand-in for make; return what it called and the finished process."""
    program(tmp_path / "bin" / "make", MAKE)
    log = tmp_path / "log"
    path = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "LOG": str(log)}
    environment = os.environ | {"VENV": sys.prefix} | path | variables
    result = run(["bash", ROOT / ".ci" / "run"], env=environment)
    return log.read_text().splitlines(), result


@pytest.mark.parametrize(
    ("variables", "last"),
    [
        ({}, "1 failed, 8 passed, 3 skipped in 60.75s"),
        ({"FAILS": "types"}, "1 failed, 8 passed, 3 skipped in 60.75s"),
        # A run without a report is an error.
        ({"FAILS": "test-matrix", "BREAKS": "yes"}, "5 passed, 2 skipped, 1 error in 60.25s"),
        ({"FAILS": "test", "VENV": "/absent"}, "1 error in 0.00s"),
    ],
)
def test_ci_runs_everything_and_fails_if_anything_fails(tmp_path, variables, last):
    calls, result = run_ci(tmp_path, **variables)
    assert calls == ["make test", "make test-matrix", "make lint", "make types"]
    assert result.stdout.splitlines()[-1] == last
    assert result.returncode == bool(variables)


INTERPRETER = """#!/bin/bash
case "$1" in
  -c) echo ${RSL_RL:-5.5.1} 2.11.0; echo "$PYTHONPATH" > path ;;
  -m) echo "$*"; [ -z "$SUITE" ] || echo "<testsuite $SUITE time='1'/>" > "${3#--junitxml=}"
      exit ${STATUS:-0} ;;
esac
"""


@pytest.fixture
def row(tmp_path):
    """Return a function that runs a row in a separate checkout with a stand-in for Python."""
    shutil.copy(ROOT / "noxfile.py", tmp_path)
    shutil.copytree(ROOT / "scripts" / "ci", tmp_path / "scripts" / "ci")
    program(tmp_path / "python" / "bin" / "python", INTERPRETER)
    for name in ("integrations/test_mjlab.py", "tasks/test_mjlab_a.py", "tasks/test_mjlab_b.py"):
        program(tmp_path / "tests" / name, "")

    def session(name="mjlab-5.5.1", tests=3, skipped=0, failures=0, **variables):
        suite = f"tests='{tests}' failures='{failures}' errors='0' skipped='{skipped}'"
        places = {"REPORTS": str(tmp_path), "MJLAB": "python", "SUITE": suite}
        environment = os.environ | places | variables
        command = [sys.executable, "-m", "nox", "--session", f"tests({name})"]
        result = run(command, cwd=tmp_path, env=environment)
        return result, read(tmp_path / f"row-{name}.xml")[0]

    return session


def test_a_row_runs_the_files_of_its_patterns_with_its_releases(row, tmp_path):
    result, outcomes = row()
    assert result.returncode == 0, result.stderr
    assert outcomes == Counter(passed=3)
    files = (
        "tests/integrations/test_mjlab.py tests/tasks/test_mjlab_a.py tests/tasks/test_mjlab_b.py"
        " tests/tasks/test_configs.py"
    )
    assert f"xml {files}\n" in result.stdout
    assert (tmp_path / "path").read_text() == f"{tmp_path / '.rsl_rl' / '5.5.1'}\n"


@pytest.mark.parametrize(
    ("run", "counted", "message"),
    [
        ({"failures": 1, "STATUS": "1"}, Counter(failed=1, passed=2), "exit code 1"),
        ({"SUITE": "", "STATUS": "139"}, Counter(error=1), "exit code 139"),
        ({"tests": 2, "skipped": 2}, Counter(error=1), "no test passed"),
        ({"RSL_RL": "5.4.2"}, Counter(error=1), "rsl_rl is 5.4.2 and torch 2.11.0, expected 5.5.1"),
    ],
)
def test_a_row_fails_if_a_test_fails_or_none_passed_with_its_releases(row, run, counted, message):
    result, outcomes = row(**run)
    assert result.returncode == 1
    assert +outcomes == counted
    assert message in result.stderr

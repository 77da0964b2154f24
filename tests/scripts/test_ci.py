"""CI runs everything, fails if anything fails, and ends with one line for all tests."""

import os
import shutil
import subprocess
import sys
from collections import Counter

import pytest

from scripts.ci.summary import closing_line, read, write

MAKE = """#!/bin/bash
echo "make $*" >> "$LOG"
suite() {
  suite="testsuite tests='$2' failures='$3' skipped='$4' errors='0' time='$5'"
  echo "<testsuites><$suite/></testsuites>" > "$REPORTS/$1.xml"
}
case "$1" in
  test) suite test 7 0 2 60.25 ;;
  test-matrix) [ -n "${BREAKS:-}" ] || suite matrix 5 1 1 0.5 ;;
esac
[ "$1" != "${FAILS:-}" ]
"""
TESTS = """
import pytest

def test_passes(): pass

def test_fails(): assert False

@pytest.mark.skip
def test_is_skipped(): pass

@pytest.fixture
def broken(): raise OSError

def test_needs_it(broken): pass
"""


def run_ci(tmp_path, repository, **variables):
    """Run .ci/run with a stand-in for make; return what it called and the finished process."""
    (tmp_path / "bin").mkdir()
    make = tmp_path / "bin" / "make"
    make.write_text(MAKE)
    make.chmod(0o755)
    log = tmp_path / "log"
    path = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "LOG": str(log)}
    result = subprocess.run(
        ["bash", repository / ".ci" / "run"],
        env=os.environ | {"VENV": sys.prefix} | path | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    return log.read_text().splitlines(), result


@pytest.mark.parametrize("fails", ["", "test", "test-matrix", "lint", "types"])
def test_ci_runs_everything_and_fails_if_anything_fails(tmp_path, repository, fails):
    calls, result = run_ci(tmp_path, repository, FAILS=fails)
    assert calls == ["make test", "make test-matrix", "make lint", "make types"]
    assert result.stdout.splitlines()[-1] == "1 failed, 8 passed, 3 skipped in 60.75s"
    assert (result.returncode == 0) is (not fails)


def test_ci_counts_a_run_that_broke_off_as_an_error(tmp_path, repository):
    _, result = run_ci(tmp_path, repository, FAILS="test-matrix", BREAKS="yes")
    assert result.stdout.splitlines()[-1] == "5 passed, 2 skipped, 1 error in 60.25s"
    assert result.returncode == 1


def test_ci_without_an_environment_ends_with_an_error(tmp_path, repository):
    _, result = run_ci(tmp_path, repository, FAILS="test", VENV=str(tmp_path / "absent"))
    assert result.stdout.splitlines()[-1] == "1 error in 0.00s"
    assert result.returncode == 1


def test_the_numbers_are_pytests(tmp_path):
    (tmp_path / "test_four.py").write_text(TESTS)
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", f"--junitxml={report}", f"--rootdir={tmp_path}"]
    subprocess.run(
        [*command, "-p", "no:dash", tmp_path], capture_output=True, check=False, cwd=tmp_path
    )
    outcomes, seconds = read(report)
    assert outcomes == Counter(passed=1, failed=1, skipped=1, error=1)
    assert seconds > 0


def test_what_is_written_is_read(tmp_path):
    outcomes = Counter(passed=120, failed=3, skipped=7, error=1)
    write(tmp_path / "all.xml", outcomes, 95.25)
    assert read(tmp_path / "all.xml") == (outcomes, 95.25)


def test_a_file_that_is_no_report_is_an_error(tmp_path):
    (tmp_path / "half.xml").write_text("<testsuites><testsuite tests='3'")
    assert read(tmp_path / "half.xml") == (Counter(error=1), 0.0)


def test_closing_lines():
    outcomes = Counter(error=1, skipped=7, passed=120, failed=3)
    assert closing_line(outcomes, 95.214) == "3 failed, 120 passed, 7 skipped, 1 error in 95.21s"
    assert closing_line(Counter(), 1.0) == "no tests ran in 1.00s"


@pytest.mark.skipif(not shutil.which("make"), reason="make is missing")
def test_the_folder_of_a_run_may_hold_spaces(repository):
    command = ["make", "--dry-run", "demo", "RUN=a folder"]
    shown = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True)
    assert "--output 'a folder'" in shown.stdout

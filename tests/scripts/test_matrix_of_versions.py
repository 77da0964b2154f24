"""The matrix of versions counts what ran and takes no row without tests for a good one."""

from collections import Counter

import pytest

from scripts.ci import matrix
from scripts.ci.matrix import Row, rows, run_matrix
from scripts.ci.summary import read, write

INTERPRETER = """#!/bin/bash
case "$1" in
  -c) [ -d "${{PYTHONPATH%%:*}}" ] && echo other 2.11.0 || echo 5.5.1 2.11.0 ;;
  -m) echo "$*"; cp "{report}" "${{3#--junitxml=}}"; exit {status} ;;
esac
"""
THREE = Counter(passed=3)


@pytest.fixture
def make_row(tmp_path, monkeypatch):
    """Builds a row in a checkout of its own whose interpreter leaves a report, or none."""
    monkeypatch.setattr(matrix, "ROOT", tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_one.py").touch()

    def make(outcomes=THREE, status=0, tests=("tests/test_one.py",), **options):
        path = tmp_path / f"python{len(list(tmp_path.iterdir()))}"
        report = path.with_suffix(".xml")
        if outcomes is not None:
            write(report, outcomes, 1.0)
        path.write_text(INTERPRETER.format(report=report, status=status))
        path.chmod(0o755)
        return Row(name="row", rsl_rl="5.5.1", python=str(path), tests=tests, **options)

    return make


@pytest.fixture
def table():
    pythons = ("main", "mjlab", "isaaclab2")
    return rows(dict(zip(pythons, pythons, strict=True)))


def test_rows_cover_the_supported_releases_and_environments(table):
    contract = {(row.rsl_rl, row.python) for row in table if row.tests == ["tests/contract"]}
    assert contract == {
        ("3.1.2", "isaaclab2"),
        ("5.0.1", "main"),
        ("5.4.2", "main"),
        ("5.5.1", "main"),
    }
    assert {row.python for row in table} == {"main", "mjlab", "isaaclab2"}
    # mjlab 1.6 pins the one, and its next release the other.
    assert {row.rsl_rl for row in table if row.python == "mjlab"} == {"5.4.2", "5.5.1"}


def test_what_the_rows_name_exists(table, repository):
    named = {test.removeprefix("--ignore=") for row in table for test in row.tests}
    assert {name for name in named if not list(repository.glob(name))} == {"-m", "package"}


def test_one_line_for_each_row_and_one_for_all(make_row, capsys, tmp_path):
    matrix_of_two = [make_row(), make_row(Counter(passed=2, skipped=1))]
    assert run_matrix(matrix_of_two, tmp_path / "all.xml") == 0
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.endswith("3 passed in 1.00s")
    assert second.endswith("2 passed, 1 skipped in 1.00s")
    assert last.startswith("5 passed, 1 skipped in ")
    outcomes, _ = read(tmp_path / "all.xml")
    assert outcomes == Counter(passed=5, skipped=1)


@pytest.mark.parametrize(
    ("outcomes", "status", "line", "last"),
    [
        (Counter(failed=1, passed=2), 1, "1 failed, 2 passed in", "1 failed, 5 passed in "),
        (Counter(error=1), 2, "1 error in", "3 passed, 1 error in "),
        (Counter(), 5, "no tests ran in", "3 passed, 1 error in "),
        (Counter(passed=2), 3, "2 passed in", "5 passed, 1 error in "),
        (Counter(skipped=2), 0, "2 skipped in", "3 passed, 2 skipped, 1 error in "),
        (None, 139, "pytest did not finish", "3 passed, 1 error in "),
    ],
)
def test_a_bad_row_fails_the_matrix_and_the_others_still_run(
    make_row, capsys, outcomes, status, line, last
):
    assert run_matrix([make_row(outcomes, status), make_row()]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"WRONG: {line}" in lines[0]
    assert lines[-2].endswith("3 passed in 1.00s")
    assert lines[-1].startswith(last)


def test_pattern_without_files_is_no_run_of_everything(make_row, capsys):
    assert run_matrix([make_row(tests=("tests/test_none_*.py", "-m", "package"))]) == 1
    assert "no file is like tests/test_none_*.py" in capsys.readouterr().out


def test_pattern_stands_for_its_files(make_row, capsys, tmp_path):
    (tmp_path / "tests" / "test_two.py").touch()
    failed = Counter(failed=1)
    assert run_matrix([make_row(failed, status=1, tests=("tests/test_*.py",))]) == 1
    assert "xml tests/test_one.py tests/test_two.py" in capsys.readouterr().out


def test_another_release_than_named_is_refused(make_row, capsys, tmp_path):
    (tmp_path / ".rsl_rl" / "5.5.1").mkdir(parents=True)
    assert run_matrix([make_row()]) == 1
    assert "rsl_rl is other, expected 5.5.1" in capsys.readouterr().out


def test_another_torch_than_named_is_refused(make_row, capsys):
    assert run_matrix([make_row(torch="2.11.0")]) == 0
    assert run_matrix([make_row(torch="2.15.0")]) == 1
    assert "torch is 2.11.0, expected 2.15.0" in capsys.readouterr().out


def test_the_newest_torch_runs_the_algorithms_and_is_what_make_installs(table, repository):
    (row,) = [row for row in table if row.torch is not None]
    assert {"tests/algorithms", "tests/runners", "tests/core"} <= set(row.tests)
    assert row.torch in row.name
    assert f".torch/{row.torch}/.installed" in (repository / "Makefile").read_text()

"""The matrix of versions counts what ran and takes no row without tests for a good one."""

from collections import Counter

import pytest

from scripts.ci import matrix as test_matrix
from scripts.ci.matrix import Row, closing_line, outcome, rows, run_matrix

INTERPRETER = """#!/bin/bash
case "$1" in
  -c) [ -d "${{PYTHONPATH%%:*}}" ] && echo other 2.11.0 || echo 5.5.1 2.11.0 ;;
  -m) echo "$*"; echo "{closing}"; exit {status} ;;
esac
"""


@pytest.fixture
def make_row(tmp_path, monkeypatch):
    """Builds a row in a checkout of its own whose interpreter ends with a given line."""
    monkeypatch.setattr(test_matrix, "ROOT", tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_one.py").touch()

    def make(closing="3 passed in 1.00s", status=0, tests=("tests/test_one.py",), **options):
        path = tmp_path / f"python{len(list(tmp_path.iterdir()))}"
        path.write_text(INTERPRETER.format(closing=closing, status=status))
        path.chmod(0o755)
        return Row(name="row", rsl_rl="5.5.1", python=str(path), tests=tests, **options)

    return make


def test_rows_cover_the_supported_releases_and_environments():
    table = rows("main", "mjlab", "isaaclab2")
    contract = {(row.rsl_rl, row.python) for row in table if row.tests == test_matrix.CONTRACT}
    assert contract == {
        ("3.1.2", "isaaclab2"),
        ("5.0.1", "main"),
        ("5.4.2", "main"),
        ("5.5.1", "main"),
    }
    assert {row.python for row in table} == {"main", "mjlab", "isaaclab2"}
    # mjlab 1.6 pins the one, and its next release the other.
    assert {row.rsl_rl for row in table if row.python == "mjlab"} == {"5.4.2", "5.5.1"}


def test_one_line_for_each_row_and_one_for_all(make_row, capsys):
    assert run_matrix([make_row(), make_row("2 passed, 1 skipped in 2.00s")]) == 0
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.endswith("3 passed in 1.00s")
    assert second.endswith("2 passed, 1 skipped in 2.00s")
    assert last.startswith("5 passed, 1 skipped in ")


@pytest.mark.parametrize(
    ("closing", "status", "last"),
    [
        ("1 failed, 2 passed in 1.00s", 1, "1 failed, 5 passed in "),
        ("1 error in 1.00s", 2, "3 passed, 1 error in "),
        ("no tests ran in 0.01s", 5, "3 passed, 1 error in "),
        ("2 skipped in 0.01s", 0, "3 passed, 2 skipped, 1 error in "),
        ("Segmentation fault", 139, "3 passed, 1 error in "),
    ],
)
def test_a_bad_row_fails_the_matrix_and_the_others_still_run(
    make_row, capsys, closing, status, last
):
    assert run_matrix([make_row(closing, status), make_row()]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "WRONG" in lines[0]
    assert lines[-2].endswith("3 passed in 1.00s")
    assert lines[-1].startswith(last)


def test_pattern_without_files_is_no_run_of_everything(make_row, capsys):
    assert run_matrix([make_row(tests=("tests/test_none_*.py", "-m", "package"))]) == 1
    assert "no file is like tests/test_none_*.py" in capsys.readouterr().out


def test_pattern_stands_for_its_files(make_row, capsys, tmp_path):
    (tmp_path / "tests" / "test_two.py").touch()
    assert run_matrix([make_row("failed here", status=1, tests=("tests/test_*.py",))]) == 1
    assert "-m pytest tests/test_one.py tests/test_two.py" in capsys.readouterr().out


def test_another_release_than_named_is_refused(make_row, capsys, tmp_path):
    (tmp_path / ".rsl_rl" / "5.5.1").mkdir(parents=True)
    assert run_matrix([make_row()]) == 1
    assert "rsl_rl is other, expected 5.5.1" in capsys.readouterr().out


def test_another_torch_than_named_is_refused(make_row, capsys):
    assert run_matrix([make_row(torch="2.11.0")]) == 0
    assert run_matrix([make_row(torch="2.15.0")]) == 1
    assert "torch is 2.11.0, expected 2.15.0" in capsys.readouterr().out


def test_the_newest_torch_runs_the_algorithms_and_is_what_make_installs(repository):
    (row,) = [row for row in rows("main", "mjlab", "isaaclab2") if row.torch is not None]
    assert set(test_matrix.ALGORITHMS) <= set(row.tests)
    assert f".torch/{row.torch}/.installed" in (repository / "Makefile").read_text()


def test_closing_lines():
    assert outcome("..\n12 passed, 3 skipped, 1 deselected in 1.5s (0:00:01)\n") == (
        Counter(passed=12, skipped=3),
        "12 passed, 3 skipped, 1 deselected in 1.5s (0:00:01)",
    )
    assert outcome("killed") == (Counter(), "pytest did not finish")
    assert closing_line(Counter(), 1.0) == "no tests ran in 1.00s"

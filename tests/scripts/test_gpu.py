"""``make gpu``: portions in order, each within its time, and not again once they have passed."""

import sys
import time
from pathlib import Path

from scripts.benchmark.suite import load_rows
from scripts.gpu import BENCHMARK, TRAINED, Portion, portions, run_all


def python(name, code, minutes=1.0):
    return Portion(name, minutes, (sys.executable, "-c", code))


def test_portions_that_passed_are_not_run_again(tmp_path, capsys):
    count = tmp_path / "count"
    count.write_text("")
    once = python("once", f"open({str(count)!r}, 'a').write('x'); print('found')")
    missing = tmp_path / "missing"
    later = python("later", f"open({str(missing)!r})")
    assert not run_all([once, later], "cpu", tmp_path / "out")
    assert "FileNotFoundError" in (tmp_path / "out" / "later.txt").read_text()
    missing.write_text("")
    assert run_all([once, later], "cpu", tmp_path / "out")
    assert count.read_text() == "x"
    assert run_all([python("once", "print('changed')")], "cpu", tmp_path / "out")
    assert "2/2 later, about 1.0 minutes left" in capsys.readouterr().out
    report = (tmp_path / "out" / "report.md").read_text()
    assert "| once | passed |" in report
    assert "## once\n\n```text\nchanged\n```" in report


def test_a_portion_that_takes_too_long_is_stopped_with_its_children_and_the_next_runs(tmp_path):
    ended = tmp_path / "ended"
    slow = Portion("slow", 0.01, ("sh", "-c", f"echo began; (sleep 3; touch {ended}) & wait"))
    todo = [slow, python("next", "print(1)"), python("study", "raise SystemExit(75)")]
    assert not run_all(todo, "cpu", tmp_path)
    report = (tmp_path / "report.md").read_text()
    for row in ("slow | ran out of time", "next | passed", "study | goes on next time"):
        assert f"| {row} |" in report
    assert (tmp_path / "slow.txt").read_text() == "began\n"
    time.sleep(3)
    assert not ended.exists()


def test_four_minutes_are_planned_for_the_tests_and_what_people_train(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda _: "nvidia-smi")
    todo = [*portions("cuda:0", tmp_path, quick=False)]
    names = [portion.name for portion in todo]
    for rows in (*TRAINED, *BENCHMARK):
        assert any(rows in row.name for row in load_rows("rows"))
    first = 1 + max(names.index(name) for name in names if "trained" in name)
    assert names[:4] == ["nvidia-smi", "doctor", "recorded", "tests-marked"]
    assert {f"bench-{rows}" for rows in TRAINED} < {*names[:first]}
    assert sum(portion.minutes for portion in todo[:first]) <= 4.0
    marked = {path for path in Path("tests").rglob("*.py") if "mark.gpu\n" in path.read_text()}
    (tests,) = (portion.command for portion in todo if portion.name == "tests-marked")
    folders = [Path(word) for word in tests if word.startswith("tests/")]
    assert all(any(path.is_relative_to(folder) for folder in folders) for path in marked)

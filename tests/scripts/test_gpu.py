"""``make gpu``: portions in order, each within its time, and not again once they have passed."""

import subprocess
import sys
import time

import pytest

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
    assert "2/2 later, about 1.0 minutes left" in capsys.readouterr().out
    report = (tmp_path / "out" / "report.md").read_text()
    assert "| once | passed |" in report
    assert "## once\n\n```text\nfound\n```" in report


def test_a_portion_with_more_to_do_goes_on_next_time(tmp_path):
    todo = [python("study", "raise SystemExit(75)")]
    assert not run_all(todo, "cpu", tmp_path)
    assert "| study | goes on next time |" in (tmp_path / "report.md").read_text()


def test_another_command_of_the_same_name_has_not_passed(tmp_path):
    assert run_all([python("row", "print('quick')")], "cpu", tmp_path)
    assert run_all([python("row", "print('whole')")], "cpu", tmp_path)
    assert (tmp_path / "row.txt").read_text() == "whole\n"


def test_an_interrupted_portion_ends(tmp_path, monkeypatch):
    ended = tmp_path / "ended"

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_all([Portion("long", 1, ("sh", "-c", f"sleep 1; touch {ended}"))], "cpu", tmp_path)
    time.sleep(2)
    assert not ended.exists()


def test_a_portion_that_takes_too_long_is_stopped_and_the_next_runs(tmp_path):
    slow = python("slow", "import time; print('began', flush=True); time.sleep(60)", 0.02)
    assert not run_all([slow, python("next", "print(1)")], "cpu", tmp_path)
    report = (tmp_path / "report.md").read_text()
    assert "| slow | ran out of time |" in report
    assert "| next | passed |" in report
    assert (tmp_path / "slow.txt").read_text() == "began\n"


def test_children_of_a_portion_end_with_it(tmp_path):
    ended = tmp_path / "ended"
    slow = Portion("slow", 0.01, ("sh", "-c", f"(sleep 3; touch {ended}) & wait"))
    assert not run_all([slow], "cpu", tmp_path)
    time.sleep(3)
    assert not ended.exists()


def test_a_portion_that_might_take_too_long_is_not_begun(tmp_path):
    todo = [python("long", "print(1)", 5), python("short", "print(2)", 1)]
    assert not run_all(todo, "cpu", tmp_path, minutes=2)
    assert {path.name for path in tmp_path.glob("*.txt")} == {"short.txt"}
    assert run_all(todo, "cpu", tmp_path)


def test_the_results_stay_small(tmp_path):
    names = [each.name for each in portions("cpu", tmp_path, quick=True)]
    loud = [Portion(name, 1, ("sh", "-c", "yes | head -c 5000000")) for name in names]
    assert run_all(loud, "cpu", tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*")) < 1e6


def test_each_portion_of_the_benchmark_has_rows():
    for rows in (*TRAINED, *BENCHMARK):
        assert any(rows in row.name for row in load_rows("rows"))


def test_four_minutes_are_planned_for_the_tests_and_what_people_train(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda _: "nvidia-smi")
    todo = [*portions("cuda:0", tmp_path, quick=False)]
    names = [portion.name for portion in todo]
    first = 1 + max(names.index(name) for name in names if "tests" in name or "trained" in name)
    assert {f"bench-{rows}" for rows in TRAINED} | {"tests-scan"} < {*names[:first]}
    assert sum(portion.minutes for portion in todo[:first]) <= 4.0


def test_no_portion_takes_what_is_not_left(tmp_path):
    slow = python("slow", "import time; time.sleep(60)", 0.02)
    assert not run_all([slow], "cpu", tmp_path, minutes=0.03)
    assert "| slow | ran out of time | 1." in (tmp_path / "report.md").read_text()


@pytest.mark.long
def test_a_portion_on_a_cpu(tmp_path):
    (host,) = (each for each in portions("cpu", tmp_path, quick=True) if each.name == "host")
    assert run_all([host], "cpu", tmp_path), (tmp_path / "host.txt").read_text()

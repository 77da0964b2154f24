"""Stages: run once, run again when what they depend on changed, never finished by half."""

import os
import signal
import subprocess
import sys
import time

import pytest

from scripts.pipeline import run as pipeline
from scripts.pipeline.run import Stage, StageError, read_record, run_stages


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def make_stage(folder, name, *needs, code="pass", args=()):
    """Build a stage whose command appends its name to runs.txt and writes <name>.out."""
    body = f"open('runs.txt', 'a').write('{name} '); open('{name}.out', 'w'); {code}"

    def output(since):
        path = folder / f"{name}.out"
        if not path.exists():
            raise FileNotFoundError(f"{path} was not written.")
        return path

    return Stage(
        name=name,
        needs=needs,
        command=lambda outputs: ["python", "-c", body, *args, *(outputs[need] for need in needs)],
        output=output,
    )


def run(folder, *stages, jobs=1):
    """Run stages; return the names of those whose command ran."""
    ran = folder / "runs.txt"
    ran.unlink(missing_ok=True)
    records = run_stages(stages, folder, "cpu", jobs)
    assert [*records] == [stage.name for stage in stages]
    return ran.read_text().split() if ran.exists() else []


def chain(folder, *teacher_args):
    return (
        make_stage(folder, "teacher", args=teacher_args),
        make_stage(folder, "student", "teacher"),
        make_stage(folder, "other"),
        make_stage(folder, "last", "student"),
    )


def test_second_run_reuses_everything(folder, capsys):
    assert run(folder, *chain(folder)) == ["teacher", "student", "other", "last"]
    assert run(folder, *chain(folder)) == []
    assert capsys.readouterr().out.count("reused") == 4


def test_changed_settings_rerun_the_stage_and_what_reads_it(folder):
    run(folder, *chain(folder, "1"))
    assert run(folder, *chain(folder, "2")) == ["teacher", "student", "last"]
    assert run(folder, *chain(folder, "2")) == []


def test_lost_output_reruns_the_stage_and_what_reads_it(folder):
    run(folder, *chain(folder))
    (folder / "student.out").unlink()
    assert run(folder, *chain(folder)) == ["student", "last"]


@pytest.mark.parametrize("text", ['{"command": ', "4", '{"fingerprint": "of an older release"}'])
def test_unreadable_record_counts_as_unfinished(folder, text):
    run(folder, *chain(folder))
    (folder / "stages" / "teacher.json").write_text(text)
    assert run(folder, *chain(folder)) == ["teacher", "student", "last"]


def test_failed_stage_is_repeated_and_earlier_ones_reused(folder):
    bad = make_stage(folder, "bad", code="raise SystemExit('broken')")
    with pytest.raises(StageError, match=r"broken\n\nbad failed with status 1: see .*bad\.log"):
        run(folder, make_stage(folder, "good"), bad)
    assert run(folder, make_stage(folder, "good"), make_stage(folder, "bad")) == ["bad"]


@pytest.mark.parametrize(
    ("code", "message"),
    [("raise SystemExit(3)", "status 3"), ("__import__('os').remove('a.out')", "left no result")],
)
def test_rerun_that_fails_leaves_no_old_record(folder, code, message):
    run(folder, make_stage(folder, "a", args=["1"]))
    with pytest.raises(StageError, match=message):
        run(folder, make_stage(folder, "a", code=code, args=["2"]))
    assert read_record(folder, "a") is None


def test_record_tells_command_duration_and_memory(folder):
    run(folder, *chain(folder), make_stage(folder, "big", code="x = bytearray(200_000_000)"))
    record, student = read_record(folder, "big"), read_record(folder, "student")
    assert record is not None
    assert record.seconds > 0
    assert record.peak_memory_gb >= 0.2
    assert student is not None
    assert student.command.endswith(" teacher.out")


def test_log_keeps_output_and_errors_and_progress_is_told(folder, monkeypatch, capsys):
    monkeypatch.setattr(pipeline, "PROGRESS_EVERY_SECONDS", 0.0)
    code = "import sys, time; print('Learning iteration 4/10', flush=True); "
    code += "sys.stderr.write('error'); sys.stderr.flush(); time.sleep(0.5)"
    run(folder, make_stage(folder, "a", code=code))
    assert (folder / "stages" / "a.log").read_text() == "Learning iteration 4/10\nerror"
    assert capsys.readouterr().out.count("[1/1] a  4/10\n") == 1


MEET = """
import pathlib, time
for _ in range(600):
    if pathlib.Path({!r}).exists():
        break
    time.sleep(0.05)
else:
    raise SystemExit('nobody came')
"""
"""Ends once a file is there."""
WAIT = "import os, time; open('pid', 'w').write(str(os.getpid())); {}; open('ready', 'w'); "
WAIT += "time.sleep(60)"


def met(file):
    return f"exec({MEET.format(file)!r})"


def assert_ended(folder):
    with pytest.raises(ProcessLookupError):
        os.kill(int((folder / "pid").read_text()), 0)
    assert read_record(folder, "waits") is None


def test_stages_that_do_not_need_each_other_run_at_the_same_time(folder):
    stages = (
        make_stage(folder, "teacher"),
        make_stage(folder, "student", "teacher", code=met("memoryless.out")),
        make_stage(folder, "memoryless", "teacher", code=met("student.out")),
        make_stage(folder, "last", "student", "memoryless"),
    )
    ran = run(folder, *stages, jobs=2)
    assert (ran[0], sorted(ran[1:3]), ran[3]) == ("teacher", ["memoryless", "student"], "last")


def test_no_more_stages_run_at_a_time_than_asked_for(folder):
    code = "import os, time; os.mkdir('busy'); time.sleep(0.1); os.rmdir('busy')"  # fails if there
    stages = [make_stage(folder, name, code=code) for name in "abc"]
    assert run(folder, *stages, jobs=1) == ["a", "b", "c"]
    with pytest.raises(ValueError, match="--jobs is 0, expected at least 1"):
        run(folder, jobs=0)


@pytest.mark.parametrize("first", ["pass", "__import__('signal').signal(15, 1)"])
def test_a_failure_ends_what_runs_beside_it_even_what_ignores_that(folder, monkeypatch, first):
    monkeypatch.setattr(pipeline, "GRACE_SECONDS", 0.2)
    waits = make_stage(folder, "waits", code=WAIT.format(first))
    fails = make_stage(folder, "fails", code=f"{met('ready')}; raise SystemExit('broken')")
    with pytest.raises(StageError, match="fails failed with status 1"):
        run(folder, waits, fails, jobs=2)
    assert_ended(folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_the_commands_and_says_how_to_go_on(folder, repository, number):
    code = (
        # A shell that started the tests in the background has Ctrl+C ignored.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "import sys; from pathlib import Path; from scripts.pipeline.run import *;"
        f"stage = Stage(name='waits', output=Path, command=lambda _: {['python']!r}"
        f" + ['-c', {WAIT.format('pass')!r}]);"
        f"sys.exit(exit_status(lambda: run_stages([stage], Path({str(folder)!r}), 'cpu')))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=repository, stderr=subprocess.PIPE, text=True
    )
    while not (folder / "ready").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    assert "interrupted: the same command goes on" in process.communicate()[1]
    assert process.returncode == 130
    assert_ended(folder)


def test_unwritable_run_folder_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    message = r"The run folder is .*expected one that can be written"
    with pytest.raises(ValueError, match=message):
        run_stages([], tmp_path / "file" / "run", "cpu")

    def read_only(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(pipeline, "TemporaryFile", read_only)  # root may write everywhere
    with pytest.raises(ValueError, match=message):
        run_stages([], tmp_path, "cpu")

"""Stages run once, run again if a dependency changed, and are never finished only partly."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from scripts.ci.stats import ROOT
from scripts.pipeline import run as pipeline
from scripts.pipeline.run import Stage, StageError, child_environment, read_record, run_stages


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def make_stage(name, *needs, code="pass", args=()):
    """Build a stage whose command appends its name to runs.txt and writes <name>.out."""
    body = f"open('runs.txt', 'a').write('{name} '); open('{name}.out', 'w'); {code}"
    return Stage(
        name=name,
        needs=needs,
        command=lambda outputs: ["python", "-c", body, *args, *(outputs[need] for need in needs)],
        output=f"{name}.out",
    )


def run(folder, *stages, jobs=1):
    """Run stages; return the names of those whose command ran."""
    ran = folder / "runs.txt"
    ran.unlink(missing_ok=True)
    records = run_stages(stages, folder, "cpu", jobs)
    assert [*records] == [stage.name for stage in stages]
    return ran.read_text().split() if ran.exists() else []


def record_of(folder, name):
    record = read_record(folder, name)
    assert record is not None
    return record


def chain(*teacher_args):
    student, other = make_stage("student", "teacher"), make_stage("other")
    return make_stage("teacher", args=teacher_args), student, other, make_stage("last", "student")


def test_a_stage_runs_again_if_it_changed_or_lost_its_result_with_what_reads_it(folder, capsys):
    assert sorted(run(folder, *chain("1"))) == ["last", "other", "student", "teacher"]
    assert run(folder, *chain("1")) == []
    assert capsys.readouterr().out.count("reused") == 4
    assert run(folder, *chain("2")) == ["teacher", "student", "last"]
    (folder / "student.out").unlink()
    assert run(folder, *chain("2")) == ["student", "last"]
    (folder / "stages" / "last.json").write_text('{"fingerprint": "of an older release"}')
    assert run(folder, *chain("2")) == ["last"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise SystemExit('broken')", r"broken\n\nbad failed with status 1: see .*bad\.log"),
        ("__import__('os').remove('bad.out')", "bad left no result"),
    ],
)
def test_failed_stage_is_repeated_and_earlier_ones_reused(folder, code, message):
    good, bad = make_stage("good"), make_stage("bad")
    run(folder, good, bad)
    with pytest.raises(StageError, match=message):
        run(folder, good, make_stage("bad", code=code))
    assert read_record(folder, "bad") is None
    assert run(folder, good, bad) == ["bad"]


def test_a_command_leaves_a_record_and_a_log(folder, monkeypatch, capsys):
    monkeypatch.setattr(pipeline, "PROGRESS_SECONDS", 0.0)
    code = "import sys, time; x = bytearray(200_000_000); "
    code += "[print(f'Learning iteration {n}/10', flush=True) or time.sleep(0.4) for n in (2, 4)]; "
    code += "sys.stderr.write('error'); sys.stderr.flush()"
    run(folder, make_stage("first"), make_stage("a", "first", code=code))
    assert (folder / "stages" / "a.log").read_text() == (
        "Learning iteration 2/10\nLearning iteration 4/10\nerror"
    )
    assert "\n[2/2] a  iteration 4/10\n" in capsys.readouterr().out
    record = record_of(folder, "a")
    assert record.seconds >= 0.5
    assert record.peak_memory_gb >= 0.2
    assert record.command.endswith(" first.out")


MEET = """
import pathlib, time
for _ in range(600):
    if pathlib.Path({!r}).exists():
        break
    time.sleep(0.05)
else:
    raise SystemExit('the other command did not start')
"""
"""Code that ends when a file exists."""
WAIT = "import os, time; open('pid', 'w').write(str(os.getpid())); {}; open('ready', 'w'); "
WAIT += "time.sleep(60)"


def met(file):
    return f"exec({MEET.format(file)!r})"


def assert_ended(folder):
    with pytest.raises(ProcessLookupError):
        os.kill(int((folder / "pid").read_text()), 0)
    assert record_of(folder, "waits").output == ""


def goes_on(name, *needs):
    """Return a stage that waits without end, and a rest that ends at once under another name."""
    waits = make_stage(name, *needs, code="import time; time.sleep(60)")
    return replace(waits, rest=lambda *_: make_stage(f"{name}-rest"))


def test_a_stage_whose_time_is_up_goes_on_and_its_cost_is_that_of_all_attempts(folder):
    first, later = make_stage("first"), make_stage("later", "a")
    stages = (first, goes_on("a"), later)
    assert [*run_stages(stages, folder, "cpu", 1, minutes=0.02)] == ["first"]
    broken_off = record_of(folder, "a")
    assert (broken_off.output, broken_off.finished_at) == ("", 0.0)
    assert run(folder, *stages) == ["a-rest", "later"]
    record = record_of(folder, "a")
    assert record.began_at == broken_off.began_at
    assert record.seconds > broken_off.seconds > 0
    assert record.command == broken_off.command  # so that it is reused
    assert run(folder, *stages) == []


def test_stages_that_do_not_need_each_other_run_at_the_same_time(folder):
    stages = (
        make_stage("teacher"),
        make_stage("student", "teacher", code=met("memoryless.out")),
        make_stage("memoryless", "teacher", code=met("student.out")),
        make_stage("last", "student", "memoryless"),
    )
    ran = run(folder, *stages, jobs=2)
    assert (ran[0], sorted(ran[1:3]), ran[3]) == ("teacher", ["memoryless", "student"], "last")


def test_a_failure_ends_other_commands_even_if_they_ignore_signals(folder, monkeypatch):
    monkeypatch.setattr(pipeline, "GRACE_SECONDS", 0.2)
    waits = make_stage("waits", code=WAIT.format("__import__('signal').signal(15, 1)"))
    fails = make_stage("fails", code=f"{met('ready')}; raise SystemExit('broken')")
    with pytest.raises(StageError, match="fails failed with status 1"):
        run(folder, waits, fails, make_stage("later"), jobs=2)
    assert_ended(folder)
    assert not (folder / "later.out").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_the_commands_and_says_how_to_continue(folder, number):
    code = (
        # A process that a shell started in the background ignores Ctrl+C.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "import sys; from scripts.pipeline.run import *;"
        f"stage = Stage(name='waits', output='*', command=lambda _: {['python']!r}"
        f" + ['-c', {WAIT.format('pass')!r}]);"
        f"sys.argv = ['run', 'config.yaml', '--output', {str(folder)!r}];"
        "work = lambda args: run_stages([stage], args.output, args.device);"
        "sys.exit(run_script(argparse.ArgumentParser(), work))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    while not (folder / "ready").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    assert "interrupted: run the same command again to continue" in process.communicate()[1]
    assert process.returncode == 130
    assert_ended(folder)


def test_cpu_children_get_one_thread_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert child_environment("cpu")["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in child_environment("cuda:0")
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert child_environment("cpu")["OMP_NUM_THREADS"] == "8"

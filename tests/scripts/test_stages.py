"""Stages: run once, run again when what they depend on changed, never finished by half."""

import os
import sys

import pytest

from scripts.pipeline.conductor import Conductor, StageError, unfinished
from scripts.pipeline.process import run_logged
from scripts.pipeline.run_folder import RunFolder, Stage


def make_stage(run, name, *needs, code="pass", **settings):
    """Build a stage whose command appends its name to runs.txt and writes <name>.out."""
    body = f"open('runs.txt', 'a').write('{name} '); open('{name}.out', 'w'); {code}"

    def output(since):
        path = run.path / f"{name}.out"
        if not path.exists():
            raise FileNotFoundError(f"{path} was not written.")
        return path

    return Stage(
        name=name,
        needs=needs,
        settings=settings,
        command=lambda outputs: ["python", "-c", body, *(outputs[need] for need in needs)],
        output=output,
        expected_seconds=1.0,
    )


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path / "run")


def conduct(run, *stages, jobs=1):
    """Run stages; return the names of those whose command ran."""
    ran = run.path / "runs.txt"
    ran.unlink(missing_ok=True)
    Conductor(run, "cpu", jobs).run_all(stages)
    return ran.read_text().split() if ran.exists() else []


def chain(run, **teacher_settings):
    return (
        make_stage(run, "teacher", **teacher_settings),
        make_stage(run, "student", "teacher"),
        make_stage(run, "other"),
        make_stage(run, "report", "student"),
    )


def test_second_run_reuses_everything(run, capsys):
    assert conduct(run, *chain(run)) == ["teacher", "student", "other", "report"]
    assert conduct(run, *chain(run)) == []
    assert capsys.readouterr().out.count("reused") == 4


def test_changed_settings_rerun_the_stage_and_what_reads_it(run):
    conduct(run, *chain(run, iterations=1))
    assert conduct(run, *chain(run, iterations=2)) == ["teacher", "student", "report"]
    assert conduct(run, *chain(run, iterations=2)) == []


def test_interruption_after_a_rerun_does_not_hide_what_reads_it(run):
    conduct(run, *chain(run, iterations=1))
    assert conduct(run, chain(run, iterations=2)[0]) == ["teacher"]
    assert conduct(run, *chain(run, iterations=2)) == ["student", "report"]


def test_lost_output_reruns_the_stage_and_what_reads_it(run):
    conduct(run, *chain(run))
    (run.path / "student.out").unlink()
    assert unfinished(chain(run), run) == {"student", "report"}
    assert conduct(run, *chain(run)) == ["student", "report"]


def test_damaged_marker_counts_as_unfinished(run):
    conduct(run, *chain(run))
    (run.stages / "teacher.json").write_text('{"fingerprint": ')
    assert conduct(run, *chain(run)) == ["teacher", "student", "report"]


def test_failed_stage_is_repeated_and_earlier_ones_reused(run):
    good, bad = make_stage(run, "good"), make_stage(run, "bad", code="raise SystemExit('broken')")
    with pytest.raises(StageError, match=r"broken\n\nbad failed with status 1: see .*bad\.log"):
        conduct(run, good, bad)
    assert conduct(run, good, make_stage(run, "bad")) == ["bad"]


def test_rerun_that_fails_leaves_no_old_marker(run):
    conduct(run, make_stage(run, "stage", size=1))
    broken = make_stage(run, "stage", code="raise SystemExit(3)", size=2)
    with pytest.raises(StageError, match="status 3"):
        conduct(run, broken)
    assert run.marker("stage") is None


def test_success_without_a_result_is_a_failure(run):
    stage = make_stage(run, "stage", code="__import__('os').remove('stage.out')")
    with pytest.raises(StageError, match="stage left no result"):
        conduct(run, stage)
    assert run.marker("stage") is None


def test_later_command_gets_earlier_output(run):
    conduct(run, *chain(run))
    assert run.marker("student").command.endswith(" teacher.out")


def test_marker_tells_duration_and_memory(run):
    conduct(run, make_stage(run, "stage", code="x = bytearray(200_000_000)"))
    marker = run.marker("stage")
    assert marker.seconds > 0
    assert marker.peak_memory_gb >= 0.2  # and at least what the process that forked it holds


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


def met(file):
    return f"exec({MEET.format(file)!r})"


def test_stages_that_do_not_need_each_other_run_at_the_same_time(run):
    stages = (
        make_stage(run, "teacher"),
        make_stage(run, "student", "teacher", code=met("memoryless.out")),
        make_stage(run, "memoryless", "teacher", code=met("student.out")),
        make_stage(run, "report", "student", "memoryless"),
    )
    ran = conduct(run, *stages, jobs=2)
    assert (ran[0], sorted(ran[1:3]), ran[3]) == ("teacher", ["memoryless", "student"], "report")
    assert list(Conductor(run, "cpu", 2).run_all(stages)) == [stage.name for stage in stages]


def test_no_more_stages_run_at_a_time_than_asked_for(run):
    code = "import os, time; os.mkdir('busy'); time.sleep(0.1); os.rmdir('busy')"  # fails if there
    stages = [make_stage(run, name, code=code) for name in "abc"]
    assert conduct(run, *stages, jobs=1) == ["a", "b", "c"]
    with pytest.raises(ValueError, match="--jobs is 0, expected at least 1"):
        Conductor(run, "cpu", 0)


def test_a_failure_ends_what_runs_beside_it(run):
    note = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(60)"
    waits = make_stage(run, "waits", code=note)
    fails = make_stage(run, "fails", code=f"{met('pid')}; raise SystemExit('broken')")
    with pytest.raises(StageError, match="fails failed with status 1"):
        conduct(run, waits, fails, jobs=2)
    with pytest.raises(ProcessLookupError):
        os.kill(int((run.path / "pid").read_text()), 0)
    assert run.marker("waits") is None


def test_unwritable_run_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"The run folder is .*expected one that can be written"):
        RunFolder(tmp_path / "file" / "run")


def test_interruption_ends_the_command(tmp_path):
    lines = []

    def interrupt(line):
        lines.append(int(line))
        raise KeyboardInterrupt

    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with pytest.raises(KeyboardInterrupt):
        run_logged(
            [sys.executable, "-c", code],
            folder=tmp_path,
            log=tmp_path / "log",
            environment={},
            on_start=lambda process: None,
            on_line=interrupt,
        )
    with pytest.raises(ProcessLookupError):
        os.kill(lines[0], 0)


def test_log_keeps_output_and_errors(tmp_path):
    code = "import sys; print('out', flush=True); sys.stderr.write('error\\n')"
    seen = []
    done = run_logged(
        [sys.executable, "-c", code],
        folder=tmp_path,
        log=tmp_path / "log",
        environment={},
        on_start=lambda process: None,
        on_line=seen.append,
    )
    assert done.status == 0
    assert seen == ["out", "error"]
    assert (tmp_path / "log").read_text() == "out\nerror\n"

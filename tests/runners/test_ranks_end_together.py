"""A rank that fails ends all others, which name it and its reason; none waits for it for ever."""

import os
import signal
import threading
import time
import warnings

import pytest
import torch
from support.failing_run import run_rank
from support.rank_processes import join_ranks, start_ranks, torchrun
from support.safe_runs import make_runner

from rsl_tbptt.checkpoints.reading import latest_checkpoint
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.runners import resume
from rsl_tbptt.runners.rank_watch import RankWatch

BROKE = "Rank {} of 2 ended: ValueError: the simulator broke"
SILENT = "Rank 1 of 2 ended without a word: it was killed, or stands still"
NAN = "ValueError: The update met NaN or inf in observation group 'policy' of environments [1]"
CASES = {
    # What happens, on which rank: how that one ends, and the other.
    ("raises", 1): ("ValueError: the simulator broke", "RuntimeError: " + BROKE.format(1)),
    ("raises", 0): ("ValueError: the simulator broke", "RuntimeError: " + BROKE.format(0)),
    ("exits", 1): ("SystemExit: 3", "RuntimeError: Rank 1 of 2 ended: SystemExit: 3"),
    ("is killed", 1): (None, "RuntimeError: " + SILENT),
    ("is killed", 0): (None, "RuntimeError: Rank 0 of 2 ended, and its store with it"),
    ("is killed before", 1): (None, "RuntimeError: " + SILENT),
    ("shows nan", 1): (NAN, NAN),
    ("takes its time", 1): ("done", "done"),
    ("stands still", 1): (None, None),
    ("raises and stays", 1): (None, None),
}
ENDED_BY_THREAD = {"stands still": SILENT, "raises and stays": BROKE.format(1)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return exit codes, ends and folders of all cases, which run at the same time."""
    started = {}
    for event, rank in CASES:
        folder = tmp_path_factory.mktemp("run")
        arguments = (event, rank, str(folder))
        started[event, rank] = (start_ranks(2, run_rank, *arguments, folder=folder), folder)
    ended = {}
    for (event, rank), (processes, folder) in started.items():
        if event in ENDED_BY_THREAD:  # that rank is the one thing that does not end
            processes[1 - rank].join(240)
            processes[rank].kill()
        ended[event, rank] = (join_ranks(processes), folder)
    return ended


def end_of(folder, rank):
    path = folder / f"status_{rank}"
    return path.read_text() if path.exists() else None


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1]}")
def test_all_ranks_end_and_name_rank_and_reason(runs, case):
    (event, rank), (codes, folder) = case, runs[case]
    assert None not in codes
    assert (codes[1 - rank] == 0) == (event == "takes its time")
    for expected, of_rank in zip(CASES[case], (rank, 1 - rank), strict=True):
        if expected is not None:
            assert (end_of(folder, of_rank) or "").startswith(expected)
    if event != "is killed before":
        assert torch.load(latest_checkpoint(folder), weights_only=True)["iter"] >= 0


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_the_last_iteration_that_all_finished_is_saved(runs, rank, monkeypatch):
    _, folder = runs["raises", rank]
    file = torch.load(latest_checkpoint(folder), weights_only=True)
    own = file["rsl_tbptt_runner"]
    assert (file["iter"], own["num_iterations"]) == (1, 2)  # and not only that of iteration 0
    assert {name: list(state) for name, state in own.items() if "resume" in name} == {
        "resume": ["counters"]
    }
    runner = make_runner(folder / "resumed")
    runner.load(str(folder / "latest"))
    monkeypatch.setattr(runner, "gpu_world_size", 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing of a rank is there to be left out
        resume.restore(runner, runner._resumed)
    assert runner.logger.tot_timesteps == own["resume"]["counters"]["tot_timesteps"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("event", ENDED_BY_THREAD)
def test_a_rank_that_waits_for_one_that_stays_is_ended(runs, event):
    (code, _), folder = runs[event, 1]
    assert code == 1
    assert end_of(folder, 0) is None
    said = (folder / "output_0").read_text()
    assert f"[rank 0] {ENDED_BY_THREAD[event]}" in said
    assert "[rank 0] waits in vain, and ends too." in said


@pytest.mark.slow
def test_under_torchrun_too_and_a_signal_to_it_stops_all_at_one_iteration(tmp_path):
    folders = [tmp_path / name for name in ("broken", "stopped")]
    for folder in folders:
        folder.mkdir()
    arguments = (("raises", "1", str(folders[0]), "0"), ("", "0", str(folders[1]), "0.01"))
    broken, stopped = (torchrun(2, "support.failing_run", *each) for each in arguments)
    deadline = time.monotonic() + 400
    while not (folders[1] / "model_1.pt").exists():
        assert stopped.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(stopped.pid, signal.SIGTERM)
    assert "Traceback" in broken.communicate(timeout=400)[0]
    assert end_of(folders[0], 0) == "RuntimeError: " + BROKE.format(1)
    assert end_of(folders[0], 1) == "ValueError: the simulator broke"
    stopped.communicate(timeout=400)
    assert [end_of(folders[1], rank) for rank in range(2)] == ["SystemExit: 85"] * 2
    file = torch.load(latest_checkpoint(folders[1]), weights_only=True)
    own = file["rsl_tbptt_runner"]
    assert file["iter"] == own["num_iterations"] - 1 == _last(folders[1])
    assert len(own["resume_of_ranks"]) == 2


def _last(folder):
    return max(int(path.stem.removeprefix("model_")) for path in folder.glob("model_*.pt"))


def test_one_rank_alone_has_no_watch(tmp_path):
    threads = threading.active_count()
    seen = []
    runner = make_runner(tmp_path)
    runner.alg.train_mode = lambda: seen.append(threading.active_count())
    runner.learn(1)
    assert seen == [threads]


def test_a_rollout_ends_at_the_next_step_once_another_rank_has_ended():
    watch = RankWatch(0, 2, 20.0)
    watch.check()
    watch.failure = BROKE.format(1)
    with pytest.raises(RuntimeError, match="Rank 1 of 2 ended"):
        watch.check()


@pytest.mark.parametrize("seconds", [0, 2, -1.0, "20", True])
def test_a_heartbeat_timeout_that_cannot_work_is_refused(seconds, tmp_path):
    with pytest.raises(ValueError, match=r"_s is .*, expected more than 2 seconds"):
        make_runner(tmp_path, heartbeat_timeout_s=seconds)


def test_ranks_that_begin_at_different_iterations_are_refused(tmp_path, monkeypatch):
    runner = make_runner(tmp_path)
    monkeypatch.setattr(Ranks, "gather", lambda self, value: [value, (3, True)])
    with pytest.raises(ValueError, match=r"num_iterations is \[0, 3\] on the ranks, expected"):
        runner.learn(1)

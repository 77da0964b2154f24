"""A rank that fails ends all others: by the broken exchange, by its timeout, or by torchrun."""

import os
import signal
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

NAN = "ValueError: The update met NaN or inf in observation group 'policy' of environments [1]"
CASES = {
    # Event and rank: how that rank ends, and how the other one does.
    ("raises", 1): ("ValueError: the simulator broke", "RuntimeError"),
    ("raises", 0): ("ValueError: the simulator broke", "RuntimeError"),
    ("stands still", 1): (None, "RuntimeError"),
    ("shows nan", 1): (NAN, NAN),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return exit codes and folders of all cases, which run at the same time without torchrun."""
    started = {}
    for event, rank in CASES:
        folder = tmp_path_factory.mktemp("run")
        arguments = (event, rank, str(folder))
        started[event, rank] = (start_ranks(2, run_rank, *arguments, folder=folder), folder)
    ended = {}
    for (event, rank), (processes, folder) in started.items():
        if event == "stands still":  # this rank alone does not end
            processes[1 - rank].join(240)
            processes[rank].kill()
        ended[event, rank] = (join_ranks(processes), folder)
    return ended


def end_of(folder, rank):
    path = folder / f"status_{rank}"
    return path.read_text() if path.exists() else None


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1]}")
def test_all_ranks_end_and_finished_iterations_are_saved(runs, case):
    (_, rank), (codes, folder) = case, runs[case]
    assert None not in codes
    assert codes[1 - rank] != 0
    for expected, of_rank in zip(CASES[case], (rank, 1 - rank), strict=True):
        if expected is not None:
            assert (end_of(folder, of_rank) or "").startswith(expected)
    assert torch.load(latest_checkpoint(folder), weights_only=True)["iter"] == 1


@pytest.mark.long
def test_a_save_after_an_error_continues_without_episodes_and_random_numbers(runs, monkeypatch):
    _, folder = runs["raises", 1]
    own = torch.load(latest_checkpoint(folder), weights_only=True)["rsl_tbptt_runner"]
    assert {name: list(state) for name, state in own.items() if "resume" in name} == {
        "resume": ["counters"]
    }
    runner = make_runner(folder / "resumed")
    runner.load(str(folder / "latest"))
    monkeypatch.setattr(runner, "gpu_world_size", 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no rank's state is left out
        resume.restore(runner, runner._resumed)
    assert runner.logger.tot_timesteps == own["resume"]["counters"]["tot_timesteps"] > 0


@pytest.mark.long
def test_torchrun_ends_all_ranks_and_a_signal_to_it_stops_them_at_one_iteration(tmp_path):
    folders = {name: tmp_path / f"run {name}" for name in ("is killed", "")}
    runs = {}
    for event, folder in folders.items():
        folder.mkdir()
        step_s = "0" if event else "0.01"
        runs[event] = torchrun(2, "support.failing_run", event, "1", str(folder), step_s)
    deadline = time.monotonic() + 400
    while not (folders[""] / "model_1.pt").exists():
        assert runs[""].poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(runs[""].pid, signal.SIGTERM)
    said = {event: run.communicate(timeout=400)[0] for event, run in runs.items()}
    assert all(run.returncode == 1 for run in runs.values())
    assert "Signal 9 (SIGKILL) received" in said["is killed"]
    assert latest_checkpoint(folders["is killed"]).name == "model_1.pt"
    assert [end_of(folders[""], rank) for rank in range(2)] == ["SystemExit: 85"] * 2
    newest = latest_checkpoint(folders[""])
    file = torch.load(newest, weights_only=True)
    own = file["rsl_tbptt_runner"]
    assert newest.name == f"model_{file['iter']}.pt"
    assert file["iter"] == own["num_iterations"] - 1
    assert len(own["resume_of_ranks"]) == 2


def test_ranks_that_begin_at_different_iterations_are_refused(tmp_path, monkeypatch):
    runner = make_runner(tmp_path)
    monkeypatch.setattr(Ranks, "gather", lambda self, value: [value, (3, True)])
    with pytest.raises(ValueError, match=r"num_iterations is \[0, 3\] on the ranks, expected"):
        runner.learn(1)

"""A training killed at any moment loses one iteration at most, and ends with the same bits."""

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from support.killed_run import train

from rsl_tbptt.checkpoints.latest import latest_checkpoint
from rsl_tbptt.checkpoints.reading import read_checkpoint

KILLS = 10
ITERATIONS = 100_000  # more than a process gets to


def saved(folder):
    """Return how many iterations the run has told to be saved."""
    try:
        return int((folder / "done").read_text())
    except FileNotFoundError:
        return 0


@pytest.fixture
def processes(monkeypatch):
    """A way to start processes that have imported everything already."""
    tests = str(Path(__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", tests, prepend=os.pathsep)  # of the one that they come from
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["support.killed_run", "torch.utils.tensorboard"])
    return context


@pytest.mark.slow
def test_every_restart_after_a_kill_finds_a_valid_checkpoint(processes, tmp_path):
    moments, known, before = random.Random(0), 0, -1
    for _ in range(KILLS):
        process = processes.Process(target=train, args=(str(tmp_path), "ppo", ITERATIONS))
        process.start()
        deadline = time.monotonic() + 60
        while saved(tmp_path) <= known and time.monotonic() < deadline:  # it goes on at all
            time.sleep(0.005)
        time.sleep(moments.uniform(0, 0.05))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        known = max(known, saved(tmp_path))
        checkpoint = read_checkpoint(str(latest_checkpoint(tmp_path)), "cpu")
        done = checkpoint["rsl_tbptt_runner"]["num_iterations"]
        # One more where it was killed before it told.
        assert known <= done <= known + 1
        assert done > before
        before = known = done
    total = known + 3
    bits = []
    for folder in (tmp_path, tmp_path / "never killed"):
        folder.mkdir(exist_ok=True)
        process = processes.Process(target=train, args=(str(folder), "ppo", total))
        process.start()
        process.join()
        last = read_checkpoint(str(folder / f"model_{total - 1}.pt"), "cpu")
        bits.append([*last["actor_state_dict"].values(), *last["critic_state_dict"].values()])
    assert all(map(torch.equal, *bits))
    numbered = list(tmp_path.glob("model_*.pt"))
    assert len(numbered) <= 3 + KILLS  # a kill between writing and noting leaves one at most
    assert all(torch.load(path, weights_only=True) for path in numbered)

"""A training killed at any moment loses one save interval at most, and ends with the same bits."""

import logging
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from support.killed_run import train
from torch.utils._pytree import tree_leaves

from rsl_tbptt.checkpoints.reading import latest_checkpoint, read_checkpoint

ITERATIONS = 100_000  # more than a process reaches
KEPT = 3

SOAK = [pytest.mark.soak]
CASES = [
    pytest.param("ppo", 10, 1, id="ppo"),
    pytest.param("ppo", 200, 1, id="ppo, long", marks=SOAK),
    pytest.param("distillation", 50, 3, id="distillation, long", marks=SOAK),
]
"""Algorithm, kills, and iterations between two checkpoints."""


def told(folder, name):
    """Return the number of iterations that a run has recorded."""
    try:
        return int((folder / name).read_text())
    except FileNotFoundError:
        return 0


@pytest.fixture
def processes(monkeypatch):
    """A method to start processes that have imported everything already."""
    tests = str(Path(__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", tests, prepend=os.pathsep)  # of their parent process
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["support.killed_run", "torch.utils.tensorboard"])
    return context


def numbers(path):
    """Return the parameters, normalisers and optimiser of a checkpoint."""
    file = read_checkpoint(str(path), "cpu")
    return {name: value for name, value in file.items() if name.endswith("state_dict")}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "kills", "interval"), CASES)
def test_every_restart_after_a_kill_finds_a_valid_checkpoint(
    kind, kills, interval, processes, tmp_path
):
    moments, found, began = random.Random(0), 0, time.monotonic()
    for kill in range(kills):
        process = processes.Process(target=train, args=(str(tmp_path), kind, interval, ITERATIONS))
        process.start()
        if kill % 4 == 3:  # also where it starts and loads
            time.sleep(moments.uniform(0, 0.3))
        else:
            known, deadline = told(tmp_path, "saved"), time.monotonic() + 60
            while told(tmp_path, "saved") <= known and time.monotonic() < deadline:
                time.sleep(0.002)  # it continues at all
            time.sleep(moments.uniform(0, 0.05 * interval))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        reached, saved = told(tmp_path, "reached"), told(tmp_path, "saved")
        if not saved:
            continue
        checkpoint = read_checkpoint(str(latest_checkpoint(tmp_path)), "cpu")
        done = checkpoint["rsl_tbptt_runner"]["num_iterations"]
        # One more if it was killed before it recorded the iteration.
        assert max(saved, reached - interval, found) <= done <= reached + 1
        found = done
    files = list(tmp_path.glob("model_*.pt"))
    unfinished = list(tmp_path.glob(".*-model_*.pt"))
    assert len(files) <= KEPT + kills  # a kill between writing and noting leaves one at most
    assert all(torch.load(path, weights_only=True) for path in files)

    total = found + interval
    ends = []
    for folder in (tmp_path, tmp_path / "never killed"):
        folder.mkdir(exist_ok=True)
        process = processes.Process(target=train, args=(str(folder), kind, interval, total))
        process.start()
        process.join()
        ends.append(tree_leaves(numbers(folder / f"model_{total - 1}.pt")))
    for ours, other in zip(*ends, strict=True):
        assert torch.equal(ours, other) if isinstance(ours, torch.Tensor) else ours == other
    logging.getLogger(__name__).info(
        "%s: %d kills, %d while a file was written; %d iterations, %.0f s",
        *(kind, kills, len(unfinished), found, time.monotonic() - began),
    )

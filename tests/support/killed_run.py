"""A training that is killed again and again; imported by the process that it runs in."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from rsl_tbptt.checkpoints.latest import NUMBERED
from support.safe_runs import make_runner

QUICK = {"num_learning_epochs": 1, "num_mini_batches": 1}


def train(folder: str, kind: str, iterations: int) -> None:
    """Go on from the newest checkpoint, as a job script's command does, and save every iteration.

    Args:
        folder: The run's folder; ``done`` in it counts the iterations whose file is written.
        kind: "distillation" or "ppo".
        iterations: Iterations of the whole run.
    """
    torch.set_num_threads(1)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  the process ends with it
    run = Path(folder)
    runner = make_runner(run, kind, algorithm=QUICK, keep_last=3)
    if any(NUMBERED.fullmatch(path.name) for path in run.iterdir()):
        runner.load(str(run / "latest"))
    save = runner.save

    def save_and_tell(path: str, infos: dict | None = None) -> None:
        save(path, infos)
        (run / "done_next").write_text(str(runner.num_iterations))
        (run / "done_next").replace(run / "done")

    runner.save = save_and_tell
    runner.learn(iterations - runner.num_iterations)

"""A training that is killed repeatedly; the process that runs it imports this."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rsl_tbptt.checkpoints.reading import NUMBERED
from support.safe_runs import make_runner

OPTIONS = {
    "ppo": {"num_learning_epochs": 1, "num_mini_batches": 1},
    "distillation": {
        "num_learning_epochs": 1,
        "num_mini_batches": 1,
        "buffer_rollouts": 2,
        "save_buffer": True,
    },
}


def train(folder: str, kind: str, interval: int, iterations: int) -> None:
    """Continue from the newest checkpoint, as a job script's command does.

    Args:
        folder: The run's folder. Its file ``reached`` counts the iterations whose update is done,
            and ``saved`` is that number when the newest checkpoint was written.
        kind: "distillation" or "ppo".
        interval: Iterations between two checkpoints.
        iterations: Iterations of the whole run.
    """
    torch.set_num_threads(1)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  open until the process ends
    run = Path(folder)
    runner = make_runner(run, kind, algorithm=OPTIONS[kind], keep_last=3, save_interval=interval)
    if any(NUMBERED.fullmatch(path.name) for path in run.iterdir()):
        runner.load(str(run / "latest"))

    def then_tell(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def told(*args: Any, **kwargs: Any) -> None:
            function(*args, **kwargs)
            (run / "next").write_text(str(runner.num_iterations))
            (run / "next").replace(run / name)

        return told

    runner.save = then_tell(runner.save, "saved")
    runner.logger.log = then_tell(runner.logger.log, "reached")
    runner.learn(iterations - runner.num_iterations)

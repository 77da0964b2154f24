"""Trainings of several ranks in which one rank fails; the ranks' processes import this."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing.errors import record

from rsl_tbptt_tasks.memory import RecallEnv
from support.safe_runs import NUM_ENVS, make_runner

AT = 15
"""Step of the third iteration at which the event happens."""


class EventfulEnv(RecallEnv):
    """Fails in one step in the given way: "raises", "is killed", "stands still" or "shows nan"."""

    def __init__(self, event: str, step_s: float) -> None:
        super().__init__(NUM_ENVS, 3)
        self.event, self.step_s, self.steps = event, step_s, 0

    def step(self, actions: torch.Tensor) -> Any:
        self.steps += 1
        time.sleep(self.step_s)
        event = self.event if self.steps == AT else ""
        if event == "raises":
            raise ValueError("the simulator broke")
        if event in ("is killed", "stands still"):
            os.kill(os.getpid(), signal.SIGKILL if event == "is killed" else signal.SIGSTOP)
        obs, rewards, dones, extras = super().step(actions)
        if event == "shows nan":
            obs["policy"][1] = torch.nan
        return obs, rewards, dones, extras


def run_rank(
    rank: int, num_ranks: int, event: str, at_rank: int, folder: str, step_s: float = 0.0
) -> None:
    """Train until something ends the training, and write into ``folder`` how it ended.

    Args:
        rank: This rank.
        num_ranks: R.
        event: What happens; "" means nothing.
        at_rank: The rank where it happens.
        folder: The run's folder.
        step_s: Seconds that each step of the environments takes on other ranks.
    """
    root, here = Path(folder), rank == at_rank
    if event == "stands still":  # as in docs/howto/cluster.md
        timeout = timedelta(seconds=10)
        torch.distributed.init_process_group(
            "gloo", timeout=timeout, rank=rank, world_size=num_ranks
        )
    env = EventfulEnv(event if here else "", 0.0 if here else step_s)
    options = {"non_finite": "raise"} if event == "shows nan" else {}
    runner = make_runner(
        root, env=env, algorithm=options, check_for_nan=False, save_interval=100 if event else 1
    )
    try:
        runner.learn(10_000)
    except BaseException as error:
        (root / f"status_{rank}").write_text(f"{type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    torch.set_num_threads(1)
    own = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    record(run_rank)(*own, sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4]))

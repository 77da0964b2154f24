"""Trainings of several ranks in which something happens to one; imported by their processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rsl_tbptt_tasks.memory import RecallEnv
from support.safe_runs import NUM_ENVS, make_runner

AT = 15
"""Step, in the third iteration, in which it happens."""

LAST = 18
"""Last step of that iteration: after it a rank waits for the others in an exchange."""

WHILE_OTHERS_WAIT = ("raises and stays", "stands still")
"""What happens once all others wait: one that still collects hears of it and ends by itself."""


def raise_error() -> None:
    raise ValueError("the simulator broke")


def send(number: int) -> None:
    os.kill(os.getpid(), number)


EVENTS: dict[str, Callable[[], None]] = {
    "raises": raise_error,
    "raises and stays": raise_error,
    "is killed": lambda: send(signal.SIGKILL),
    "stands still": lambda: send(signal.SIGSTOP),
    "exits": lambda: sys.exit(3),
    "shows nan": lambda: None,
    "takes its time": lambda: time.sleep(5),
    "is killed before": lambda: None,
}


class EventfulEnv(RecallEnv):
    """Has something happen in one step, and takes its time for all."""

    def __init__(self, event: str | None, step_s: float, collected: Path) -> None:
        super().__init__(NUM_ENVS, 3)
        self.event, self.step_s, self.steps = event, step_s, 0
        self.collected = collected

    def step(self, actions: torch.Tensor) -> Any:
        self.steps += 1
        time.sleep(self.step_s)
        if self.steps == AT and self.event is not None:
            while self.event in WHILE_OTHERS_WAIT and not self.collected.exists():
                time.sleep(0.1)
            EVENTS[self.event]()
        if self.steps == LAST:
            self.collected.touch()
        obs, rewards, dones, extras = super().step(actions)
        if self.steps == AT and self.event == "shows nan":
            obs["policy"][1] = torch.nan
        return obs, rewards, dones, extras


def run_rank(
    rank: int, _: int, event: str | None, at_rank: int, folder: str, step_s: float = 0.0
) -> None:
    """Train until something ends it, and leave in ``folder`` how that was.

    Args:
        rank: This rank.
        event: What happens, of ``EVENTS``.
        at_rank: The rank to which it happens.
        folder: The run's folder.
        step_s: Seconds that each step of the environments takes on other ranks.
    """
    root, here = Path(folder), rank == at_rank
    env = EventfulEnv(event if here else None, 0.0 if here else step_s, root / "collected")
    options = {"non_finite": "raise"} if event == "shows nan" else {}
    status = "done"
    try:
        runner = make_runner(
            root,
            env=env,
            algorithm=options,
            heartbeat_timeout_s=3.0,
            check_for_nan=False,
            save_interval=100 if event == "raises" else 1,
        )
        if here and event == "is killed before":
            send(signal.SIGKILL)
        runner.learn(3 if event == "takes its time" else 10_000)
    except BaseException as error:
        status = f"{type(error).__name__}: {error}"
        raise
    finally:
        (root / f"status_{rank}").write_text(status)
        if here and event == "raises and stays":
            time.sleep(600)


if __name__ == "__main__":
    torch.set_num_threads(1)
    own = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    run_rank(*own, sys.argv[1] or None, int(sys.argv[2]), sys.argv[3], float(sys.argv[4]))

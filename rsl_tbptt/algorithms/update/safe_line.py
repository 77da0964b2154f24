"""Checkpoints that an algorithm writes itself, where the runner's own can end half written."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rsl_tbptt.checkpoints.writing import FailedSaves, check_writable, save_checkpoint
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.stop_signals import StopSignals

KEPT = 2
"""Newest files of the line; one would do, as each is whole."""


class SafeLine:
    """Writes ``safe_<iteration>.pt`` beside a stock runner's checkpoints, in their form.

    An algorithm is told neither the runner's iteration nor its folder. The iteration it counts, as
    the runner does: a training begins with the number at which the last one ended. The folder is
    what Isaac Lab's command writes into the environment's config, ``log_dir``.

    Such a runner knows no signals, so the line answers those that ask a training to end: with a
    file after the update that is then run, and the status of this package's own runners.
    """

    def __init__(self, interval: int | None, algorithm: Any, ranks: Ranks) -> None:
        """Keep what to save and how often; see ``write_beside_logs_of`` for where.

        Args:
            interval: Iterations between two files, None for none.
            algorithm: What is saved.
            ranks: The processes that train together, and end together. The first one writes.
        """
        self._interval, self._algorithm = interval, algorithm
        self._ranks, self._is_writer = ranks, algorithm.gpu_global_rank == 0
        self._folder: Path | None = None
        self._last = self._next = 0
        self._written: list[Path] = []
        self._failed = FailedSaves()
        self._signals: StopSignals | None = None

    def write_beside_logs_of(self, env: Any) -> None:
        """Write into the folder that the config of the runner's environment names, if any."""
        folder = getattr(getattr(env, "cfg", None), "log_dir", None)
        self._folder = None if folder is None else Path(folder)

    def start(self) -> None:
        """Number iterations as the runner does when training starts, and listen to signals.

        Called by the algorithm's ``train_mode``, and that by the runner's function that trains:
        once it has ended signals do what they did before.

        Raises:
            ValueError: If files are wanted and their folder is not known or cannot be written.
        """
        self._next = self._last
        if self._interval is None:
            return
        if self._folder is None:
            raise ValueError(
                f"safe_checkpoint_interval is {self._interval}, expected None here: the"
                " environment's config has no log_dir, which Isaac Lab's training command sets."
                " With rsl_rl alone the runners of rsl_tbptt.runners write safe checkpoints."
            )
        if self._is_writer:
            check_writable(self._folder)
        active = StopSignals.active
        if active is None or active.loop is not None:  # else a runner of this package has them
            self._signals = StopSignals(loop=sys._getframe(2).f_code).__enter__()

    def go_on_from(self, checkpoint: Mapping[str, Any]) -> None:
        """Take over the iteration of a checkpoint, as the runner does."""
        self._last = checkpoint.get("iter", 0)

    def conclude_iteration(self) -> None:
        """Count an iteration after its update, and write a file if it is time to.

        Raises:
            SystemExit: If a signal has asked any rank to end; KeyboardInterrupt if it was Ctrl+C.
            ValueError: If it has, and the file cannot be written.
        """
        self._last, self._next = self._next, self._next + 1
        if self._interval is None:
            return
        if self._signals is not None and self._is_asked_to_end(self._signals):
            self._ranks.run_together(self._write)
            raise self._signals.end()
        if self._last % self._interval == 0:
            with self._failed.passed_over(again=True):
                self._write()

    def _is_asked_to_end(self, signals: StopSignals) -> bool:
        """Return whether any rank has received a signal."""
        received = int(signals.received is not None)
        return self._ranks.sum_count(received, self._algorithm.device) > 0

    def _write(self) -> None:
        """Write a file where this process writes, and delete what it outdates."""
        if self._folder is None or not self._is_writer:
            return
        path = self._folder / f"safe_{self._last}.pt"
        save_checkpoint({**self._algorithm.save(), "iter": self._last, "infos": None}, path)
        self._written = [*(old for old in self._written if old != path), path]
        for old in self._written[:-KEPT]:
            old.unlink(missing_ok=True)
        self._written = self._written[-KEPT:]

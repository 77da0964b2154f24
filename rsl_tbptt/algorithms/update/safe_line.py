"""Checkpoints that an algorithm writes itself, where the runner's own can end half written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rsl_tbptt.checkpoints.writing import check_writable, save_checkpoint

KEPT = 2
"""Newest files of the line; one would do, as each is whole."""


class SafeLine:
    """Writes ``safe_<iteration>.pt`` beside a stock runner's checkpoints, in their form.

    An algorithm is told neither the runner's iteration nor its folder. The iteration it counts, as
    the runner does: a training begins with the number at which the last one ended. The folder is
    what Isaac Lab's command writes into the environment's config, ``log_dir``.
    """

    def __init__(self, interval: int | None, algorithm: Any, *, is_writer: bool) -> None:
        """Keep what to save and how often; see ``write_beside_logs_of`` for where.

        Args:
            interval: Iterations between two files, None for none.
            algorithm: What is saved.
            is_writer: Whether this process writes, the first of all ranks.
        """
        self._interval, self._algorithm, self._is_writer = interval, algorithm, is_writer
        self._folder: Path | None = None
        self._last = self._next = 0
        self._written: list[Path] = []

    def write_beside_logs_of(self, env: Any) -> None:
        """Write into the folder that the config of the runner's environment names, if any."""
        folder = getattr(getattr(env, "cfg", None), "log_dir", None)
        self._folder = None if folder is None else Path(folder)

    def start(self) -> None:
        """Number iterations as the runner does when training starts.

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

    def go_on_from(self, checkpoint: Mapping[str, Any]) -> None:
        """Take over the iteration of a checkpoint, as the runner does."""
        self._last = checkpoint.get("iter", 0)

    def conclude_iteration(self) -> None:
        """Count an iteration after its update, and write a file if it is time to."""
        self._last, self._next = self._next, self._next + 1
        if self._folder is None or self._interval is None or not self._is_writer:
            return
        if self._last % self._interval:
            return
        path = self._folder / f"safe_{self._last}.pt"
        save_checkpoint({**self._algorithm.save(), "iter": self._last, "infos": None}, path)
        self._written = [*(old for old in self._written if old != path), path]
        for old in self._written[:-KEPT]:
            old.unlink(missing_ok=True)
        self._written = self._written[-KEPT:]

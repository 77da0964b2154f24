"""Signals that ask a training to end, and the files that an algorithm saves itself.

Signals are noted, and obeyed where the training's state is whole. The runners of this package do
that between two iterations; under a stock runner :class:`EmergencySave` does it after an update.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from rsl_tbptt.checkpoints.writing import CheckpointWriter, check_writable
from rsl_tbptt.core.distributed import Ranks

STOPPED = 85
"""Exit status of a training that a signal ended after its checkpoint was written.

Neither success nor any failure of Python's or the shell's (1, 2, 126 to 165), so a job script can
start the same command again for it alone. HTCondor's manual uses it for the same.
"""

SIGNALS = ("SIGTERM", "SIGUSR1", "SIGINT")
"""Of a scheduler or container, SLURM's warning, and Ctrl+C. Windows lacks the second."""

SAME_SECONDS = 1.0
"""Signals within so many seconds are one: a launcher passes on what its group was sent too."""

KEPT = 2
"""Newest emergency saves that stay; one would do, as each is whole."""


class StopSignals:
    """Notes the first of these signals; a second one does what it did before, and at once.

    What was ignored stays ignored, and what was handled outside Python is left alone. Only the main
    thread can handle signals; elsewhere nothing is noted.
    """

    received: int | None = None
    """Number of the first signal."""

    saves: bool = True
    """Whether a checkpoint is written before the training ends."""

    def __init__(self) -> None:
        """Handle nothing yet."""
        self._before: dict[int, Any] = {}
        self._since = 0.0

    def __enter__(self) -> StopSignals:
        """Handle the signals until the context is left."""
        if threading.current_thread() is threading.main_thread():
            for number in (getattr(signal, name) for name in SIGNALS if hasattr(signal, name)):
                handler = signal.getsignal(number)
                earlier = getattr(handler, "__self__", None)
                if isinstance(earlier, StopSignals):  # of a training that has ended
                    handler = earlier._before[number]
                if handler not in (None, signal.SIG_IGN):
                    self._before[number] = handler
                    signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        """Put back what handled them before."""
        while self._before:
            signal.signal(*self._before.popitem())

    def end_if_asked(
        self, ranks: Ranks, device: torch.device | str, save: Callable[[], None]
    ) -> None:
        """End the process on all ranks, after ``save``, where one has received a signal.

        Args:
            ranks: The processes that train together; all of them call this.
            device: Device of what they exchange.
            save: Writes the checkpoint.

        Raises:
            SystemExit: If one has; KeyboardInterrupt if that was Ctrl+C.
            ValueError: If one has, and the checkpoint cannot be written.
        """
        if not ranks.sum_count(int(self.received is not None), device):
            return
        try:
            # Together: a launcher ends all ranks when one has ended, also the one that writes.
            ranks.run_together(save)
        finally:
            self.__exit__()
        raise self.end()

    def end(self) -> BaseException:
        """Return what ends the process, as the received signal asks for.

        Without a checkpoint the status is a shell's for the signal: 85 would have the training
        begin again and again.
        """
        if self.received == signal.SIGINT:
            return KeyboardInterrupt()
        return SystemExit(STOPPED if self.saves else 128 + (self.received or signal.SIGTERM))

    def _note(self, number: int, _: FrameType | None) -> None:
        """Note a signal, or let it do what it did before."""
        if self.received is None:
            self.received, self._since = number, time.monotonic()
            ends = (
                "a checkpoint is written after this iteration, then the training ends"
                if self.saves
                else "the training ends after this iteration, without a checkpoint (no log_dir)"
            )
            text = f"\n{signal.Signals(number).name}: {ends}. Another signal ends it at once.\n"
            # `print` may be in the middle of a line, and would raise.
            with suppress(OSError):  # nobody may read it
                os.write(2, text.encode())
            # Ctrl+C ends `tee` too, and the checkpoint is still to be written.
            sys.stdout = sys.stdout and _Unread(sys.stdout)  # None where descriptors are closed
            sys.stderr = sys.stderr and _Unread(sys.stderr)
        elif time.monotonic() - self._since > SAME_SECONDS:
            self.__exit__()
            signal.raise_signal(number)


class _Unread:
    """A stream that takes no notice when its reader is gone."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with suppress(BrokenPipeError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(BrokenPipeError):
            self._stream.flush()


class EmergencySave:
    """Writes ``safe_<iteration>.pt`` next to a stock runner's checkpoints, in their form.

    A stock runner writes its files in place and knows no signals. With this option the algorithm
    answers them: it writes a file after the update that is running, and ends the process with the
    status of this package's own runners.

    An algorithm is told neither the runner's iteration nor its folder. It counts iterations as the
    runner does: a training begins with the number at which the last one ended. The folder is
    the ``log_dir`` that Isaac Lab's command writes into the environment's config.
    """

    handles_signals = True
    """False where a runner of this package does."""

    def __init__(self, interval: int | None, algorithm: Any, ranks: Ranks) -> None:
        """Keep what to save and how often; see ``write_beside_logs_of`` for where.

        Args:
            interval: Iterations between two files, None for none.
            algorithm: What is saved.
            ranks: The processes that train together, and end together. The first one writes.
        """
        self._interval, self._algorithm, self._ranks = interval, algorithm, ranks
        self._folder: Path | None = None
        self._last = self._next = 0
        self._written: list[Path] = []
        self._writer = CheckpointWriter()
        self._signals: StopSignals | None = None

    def write_beside_logs_of(self, env: Any) -> None:
        """Write into the folder that the config of the runner's environment names, if any."""
        folder = getattr(getattr(env, "cfg", None), "log_dir", None)
        self._folder = None if folder is None else Path(folder)

    def start(self) -> None:
        """Number iterations as the runner does when training starts, and listen to signals.

        A stock runner does not say when its training has ended, so the handlers stay: the first
        signal after it is only noted.

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
        if self._algorithm.gpu_global_rank == 0:
            check_writable(self._folder)
        if self.handles_signals:
            self._signals = StopSignals().__enter__()

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
        if self._signals is not None:
            write = partial(self._write, is_last=True)
            self._signals.end_if_asked(self._ranks, self._algorithm.device, write)
        if self._last % self._interval == 0:
            self._write(is_last=False)

    def _write(self, is_last: bool) -> None:
        """Write a file where this process writes, and delete what it outdates."""
        if self._folder is None or self._algorithm.gpu_global_rank != 0:
            return
        path = self._folder / f"safe_{self._last}.pt"
        checkpoint = {**self._algorithm.save(), "iter": self._last, "infos": None}
        if self._writer.write(checkpoint, path, is_last):
            self._written = [*(old for old in self._written if old != path), path]
            for old in self._written[:-KEPT]:
                old.unlink(missing_ok=True)
            self._written = self._written[-KEPT:]

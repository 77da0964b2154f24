"""Signals that end a training, and the emergency saves that an algorithm writes itself.

Signals are recorded, and handled when the training's state is complete: by the runners of this
package between two iterations, with a stock runner by :class:`EmergencySave` after an update.
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

The status is neither success nor any failure of Python's or the shell's (1, 2, 126 to 165), so a
job script can restart the same command for it alone. HTCondor's manual uses it in the same way.
"""

SIGNALS = ("SIGTERM", "SIGUSR1", "SIGINT")
"""From a scheduler or container, from SLURM as a warning, from Ctrl+C. Windows lacks SIGUSR1."""

SAME_SECONDS = 1.0
"""Signals within this many seconds count as one: a launcher repeats what its group received."""

KEPT = 2
"""Number of newest emergency saves to keep; one would suffice, as each is complete."""


class StopSignals:
    """Records the first of these signals; a second one has its earlier effect, at once.

    Ignored signals stay ignored, and handlers outside Python are not touched. Only the main thread
    can handle signals; in other threads nothing is recorded.
    """

    received: int | None = None
    """Number of the first signal."""

    saves: bool = True
    """Whether a checkpoint is written before the training ends."""

    def __init__(self) -> None:
        """Start without handling signals."""
        self._before: dict[int, Any] = {}
        self._since = 0.0

    def __enter__(self) -> StopSignals:
        """Handle the signals until the context is left."""
        if threading.current_thread() is threading.main_thread():
            for number in (getattr(signal, name) for name in SIGNALS if hasattr(signal, name)):
                handler = signal.getsignal(number)
                earlier = getattr(handler, "__self__", None)
                if isinstance(earlier, StopSignals):  # it belongs to a training that has ended
                    handler = earlier._before[number]
                if handler not in (None, signal.SIG_IGN):
                    self._before[number] = handler
                    signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the earlier handlers."""
        while self._before:
            signal.signal(*self._before.popitem())

    def end_if_asked(
        self, ranks: Ranks, device: torch.device | str, save: Callable[[], None]
    ) -> None:
        """End the process on all ranks, after ``save``, if one has received a signal.

        Args:
            ranks: The processes that train together; all of them call this.
            device: Device for the exchange between them.
            save: Writes the checkpoint.

        Raises:
            SystemExit: If one has received a signal; KeyboardInterrupt if it was Ctrl+C.
            ValueError: If one has, and the checkpoint cannot be written.
        """
        if not ranks.sum_count(int(self.received is not None), device):
            return
        try:
            # On all ranks: a launcher ends the others, including the writing one, after the first.
            ranks.run_together(save)
        finally:
            self.__exit__()
        raise self.end()

    def end(self) -> BaseException:
        """Return the exception that ends the process for the received signal.

        Without a checkpoint the status is a shell's for the signal: with 85 a job script would
        start the training again and again.
        """
        if self.received == signal.SIGINT:
            return KeyboardInterrupt()
        return SystemExit(STOPPED if self.saves else 128 + (self.received or signal.SIGTERM))

    def _note(self, number: int, _: FrameType | None) -> None:
        """Record a signal, or give it its earlier effect."""
        if self.received is None:
            self.received, self._since = number, time.monotonic()
            ends = (
                "a checkpoint is written after this iteration, then the training ends"
                if self.saves
                else "the training ends after this iteration, without a checkpoint (no log_dir)"
            )
            text = f"\n{signal.Signals(number).name}: {ends}. Another signal ends it at once.\n"
            # `print` may be interrupted in the middle of a line, and would raise here.
            with suppress(OSError):  # the stream may have no reader
                os.write(2, text.encode())
            # Ctrl+C ends `tee` too, but the checkpoint still has to be written.
            sys.stdout = sys.stdout and _Unread(sys.stdout)  # None if descriptors are closed
            sys.stderr = sys.stderr and _Unread(sys.stderr)
        elif time.monotonic() - self._since > SAME_SECONDS:
            self.__exit__()
            signal.raise_signal(number)


class _Unread:
    """A stream that ignores that its reader is gone."""

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

    A stock runner overwrites its files in place and ignores signals. With this option the algorithm
    handles them: it writes a file after the running update, and ends the process with the status of
    this package's runners.

    An algorithm is told neither the runner's iteration nor its folder. It counts iterations as the
    runner does: a training starts with the number at which the last one ended. The folder is the
    ``log_dir`` that Isaac Lab's command writes into the environment's config.
    """

    handles_signals = True
    """False if a runner of this package handles them."""

    def __init__(self, interval: int | None, algorithm: Any, ranks: Ranks) -> None:
        """Set what is saved and how often; ``write_beside_logs_of`` sets the folder.

        Args:
            interval: Iterations between two files; None writes none.
            algorithm: The algorithm that is saved.
            ranks: The processes that train and end together. The first one writes.
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
        """Set the next iteration's number as the runner does, and start handling signals.

        A stock runner does not say when its training has ended, so the handlers stay: the first
        signal after it is only recorded.

        Raises:
            ValueError: If files are requested and their folder is unknown or cannot be written.
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
        """Count an iteration after its update, and write a file if one is due.

        Raises:
            SystemExit: If a signal has asked any rank to end; KeyboardInterrupt if it was Ctrl+C.
            ValueError: If one has, and the file cannot be written.
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
        """Write a file on the writing process, and delete the oldest ones."""
        if self._folder is None or self._algorithm.gpu_global_rank != 0:
            return
        path = self._folder / f"safe_{self._last}.pt"
        checkpoint = {**self._algorithm.save(), "iter": self._last, "infos": None}
        if self._writer.write(checkpoint, path, is_last):
            self._written = [*(old for old in self._written if old != path), path]
            for old in self._written[:-KEPT]:
                old.unlink(missing_ok=True)
            self._written = self._written[-KEPT:]

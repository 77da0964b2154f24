"""Signals that end a training of this package's runners, after a checkpoint.

Signals are recorded, and handled between two iterations, when the training's state is complete.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import torch

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
        elif time.monotonic() - self._since > SAME_SECONDS:
            self.__exit__()
            signal.raise_signal(number)

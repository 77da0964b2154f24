"""Signals that ask a training to end: noted, and obeyed where the training's state is whole."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any

STOPPED = 85
"""Exit status of a training that a signal ended after its checkpoint was written.

Neither success nor any failure of Python's or the shell's (1, 2, 126 to 165), so a job script can
start the same command again for it alone. HTCondor's manual uses it for the same.
"""

SIGNALS = ("SIGTERM", "SIGUSR1", "SIGINT")
"""Of a scheduler or container, SLURM's warning, and Ctrl+C. Windows lacks the second."""

SAME_SECONDS = 1.0
"""Signals within so many seconds are one: a launcher passes on what its group was sent too."""


class StopSignals:
    """Notes the first of these signals; a second one does what it did before, and at once.

    What was ignored stays ignored, and what was handled outside Python is left alone. Only the main
    thread can handle signals; elsewhere nothing is noted.
    """

    active: StopSignals | None = None
    """What handles them in this process."""

    received: int | None = None
    """Number of the first signal."""

    saves: bool = True
    """Whether a checkpoint is written before the training ends."""

    def __init__(self, loop: CodeType | None = None) -> None:
        """Handle nothing yet.

        Args:
            loop: Code of the function that trains, where nobody tells when it has ended: signals
                that come then do what they did before. None handles them until the context is left.
        """
        self.loop = loop
        self._before: dict[int, Any] = {}
        self._since = 0.0

    def __enter__(self) -> StopSignals:
        """Handle the signals until the context is left."""
        if threading.current_thread() is threading.main_thread():
            if StopSignals.active is not None and StopSignals.active.loop is not None:
                StopSignals.active.__exit__()  # of a training that has ended
            StopSignals.active = self
            numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
            for number in numbers:
                handler = signal.getsignal(number)
                if handler not in (None, signal.SIG_IGN):
                    self._before[number] = handler
                    signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        """Put back what handled them before."""
        if StopSignals.active is self:
            StopSignals.active = None
        while self._before:
            signal.signal(*self._before.popitem())

    def end(self) -> BaseException:
        """Return what ends the process, as the received signal asks for.

        Without a checkpoint the status is a shell's for the signal: 85 would have the training
        begin again and again.
        """
        if self.received == signal.SIGINT:
            return KeyboardInterrupt()
        return SystemExit(STOPPED if self.saves else 128 + (self.received or signal.SIGTERM))

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Note a signal, or let it do what it did before."""
        if self.loop is not None and not _is_running(self.loop, frame):
            self.__exit__()
            signal.raise_signal(number)
        elif self.received is None:
            self.received, self._since = number, time.monotonic()
            ends = (
                "a checkpoint is written after this iteration, then the training ends"
                if self.saves
                else "the training ends after this iteration, without a checkpoint (no log_dir)"
            )
            write_error(
                f"\n{signal.Signals(number).name}: {ends}. Another signal ends it at once.\n"
            )
            # Ctrl+C ends `tee` too, and the checkpoint is still to be written.
            sys.stdout = sys.stdout and _Unread(sys.stdout)  # None where descriptors are closed
            sys.stderr = sys.stderr and _Unread(sys.stderr)
        elif time.monotonic() - self._since > SAME_SECONDS:
            self.__exit__()
            signal.raise_signal(number)


def write_error(text: str) -> None:
    """Write to the process's stderr from a handler or a thread, if somebody reads it.

    ``print`` may be in the middle of a line, and would raise.
    """
    with suppress(OSError):
        os.write(2, text.encode())


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


def _is_running(code: CodeType, frame: FrameType | None) -> bool:
    """Return whether a function is among those that have called each other up to ``frame``."""
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False

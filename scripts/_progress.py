"""Progress and remaining time, read from what a command prints."""

from __future__ import annotations

import re
import shutil
import sys
import time
from dataclasses import dataclass, field
from typing import TextIO

ITERATION = re.compile(r"Learning iteration (\d+)/(\d+)")
STEP = re.compile(r"\[progress\] (\d+)/(\d+)")
METRIC = re.compile(r"^\s*Mean (reward|behavior loss): (\S+)")
LINE_EVERY_SECONDS = 10.0
"""Distance of progress lines where the output is no terminal."""


@dataclass
class Progress:
    """How far one stage is.

    rsl_rl prints an iteration's number after the iteration; this repository's scripts print
    ``[progress] done/total``.
    """

    expected_seconds: float
    """First guess of the duration."""
    start: float = field(default_factory=time.monotonic)
    done: int = 0
    total: int = 0
    metrics: dict[str, str] = field(default_factory=dict)
    _first: tuple[int, float] | None = None

    def read(self, line: str) -> None:
        """Take over what a line of output says.

        Args:
            line: One line, with or without colour codes.
        """
        if match := ITERATION.search(line):
            self._advance(int(match[1]) + 1, int(match[2]))
        elif match := STEP.search(line):
            self._advance(int(match[1]), int(match[2]))
        elif match := METRIC.match(line):
            self.metrics[match[1]] = match[2]

    def _advance(self, done: int, total: int) -> None:
        self.done, self.total = done, total
        if self._first is None:
            self._first = (done, time.monotonic())

    def seconds_left(self, now: float) -> float:
        """Estimate the rest of the stage from its own pace, which leaves the start-up out.

        Args:
            now: ``time.monotonic()``.

        Returns:
            Seconds, at least 0.
        """
        if self._first is None or self.done == self._first[0]:
            return max(self.expected_seconds - (now - self.start), 0.0)
        first_done, first_time = self._first
        pace = (now - first_time) / (self.done - first_done)
        return pace * (self.total - self.done)

    def share(self) -> float:
        """Return the finished share, 0 to 1."""
        return self.done / self.total if self.total else 0.0


class Display:
    """One line that says where the run is: rewritten in a terminal, repeated elsewhere."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """Write to a stream, by default standard output."""
        self._stream = sys.stdout if stream is None else stream
        self._rewrite = self._stream.isatty()
        self._last_line = -LINE_EVERY_SECONDS

    def show(self, title: str, progress: Progress, seconds_after: float) -> None:
        """Show a running stage.

        Args:
            title: Number and name of the stage.
            progress: Its progress.
            seconds_after: Estimated duration of the stages that follow.
        """
        now = time.monotonic()
        if not self._rewrite and now - self._last_line < LINE_EVERY_SECONDS:
            return
        self._last_line = now
        line = describe(title, progress, seconds_after, now)
        if self._rewrite:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write("\r" + line[:width].ljust(width))
        else:
            self._stream.write(line + "\n")
        self._stream.flush()

    def close(self, line: str) -> None:
        """Replace the running stage's line by a last one."""
        if self._rewrite:
            width = shutil.get_terminal_size().columns - 1
            line = "\r" + line.ljust(width)
        self._stream.write(line + "\n")
        self._stream.flush()
        self._last_line = -LINE_EVERY_SECONDS


def describe(title: str, progress: Progress, seconds_after: float, now: float) -> str:
    """Write one line of progress."""
    left = progress.seconds_left(now)
    if progress.total:
        where = f"{progress.share():4.0%}  {progress.done}/{progress.total}"
    else:
        where = f"starting, {clock(now - progress.start)}"
    metrics = "".join(f"  {name} {value}" for name, value in progress.metrics.items())
    return (
        f"{title}  {where}{metrics}  left: stage {clock(left)}, all {clock(left + seconds_after)}"
    )


def clock(seconds: float) -> str:
    """Write a duration as minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"

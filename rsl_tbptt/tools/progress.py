"""Print the progress and the remaining time of commands that take more than five seconds.

A terminal shows one line that is rewritten. A log file gets a line every 10 % or every 30 s,
whichever comes first. Both are written to stderr, so that stdout keeps the result alone.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from types import TracebackType
from typing import Protocol, TypeVar

SILENT_SECONDS = 5.0
"""Commands that end sooner print no progress."""
TERMINAL_SECONDS, LOG_SECONDS = 0.5, 30.0
"""Time between two messages, on a terminal and in a log file."""
LOG_SHARE = 0.1
"""Share of the work between two lines of a log file."""
PATTERN = re.compile(r"(?:Learning iteration|\[progress\][^\n\r]*?) (\d+)/(\d+)")
"""Progress lines of rsl_rl and this module; the groups are the steps done and their total."""

Item = TypeVar("Item", covariant=True)


class SizedIterable(Sized, Iterable[Item], Protocol[Item]):
    """A list, an array or a range."""


class Progress:
    """Prints progress; as a context manager it clears its line of a terminal at the end."""

    def __init__(self, what: str, total: int, done: int = 0, *, lines: bool | None = None) -> None:
        """Start the clock.

        Args:
            what: What is being done, in words.
            total: Number of steps.
            done: Steps that were finished before the clock started.
            lines: Whether to write lines, as for a log file. None means unless stderr is a
                terminal.
        """
        self.total, self.done = total, done
        self._what, self._first, self._start = what, done, time.monotonic()
        self._lines = not sys.stderr.isatty() if lines is None else lines
        self._written, self._written_at = done, self._start + SILENT_SECONDS
        self._width = 0

    def __enter__(self) -> Progress:
        """Return the object."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Clear the line of a terminal."""
        if self._width:
            print(f"\r{'':{self._width}}\r", end="", file=sys.stderr, flush=True)

    def update(self, done: int) -> None:
        """Print the progress, if the last message is old enough.

        Args:
            done: Steps that are finished.
        """
        self.done, now = done, time.monotonic()
        if now - self._start < SILENT_SECONDS or done <= self._first or not self._due(done, now):
            return
        self._written, self._written_at = done, now
        left = (now - self._start) / (done - self._first) * max(self.total - done, 0)
        text = f"[progress] {self._what} {done}/{self.total}, {clock(round(left))} left"
        if self._lines:
            print(text, file=sys.stderr, flush=True)
            return
        print(f"\r{text:<{self._width}}", end="", file=sys.stderr, flush=True)
        self._width = len(text)

    def _due(self, done: int, now: float) -> bool:
        waited = now - self._written_at
        if not self._lines:
            return not self._width or waited >= TERMINAL_SECONDS
        return waited >= LOG_SECONDS or done - self._written >= LOG_SHARE * self.total


def track(items: SizedIterable[Item], what: str) -> Iterator[Item]:
    """Iterate over items and print the progress.

    Args:
        items: The items.
        what: What is being done, in words.

    Yields:
        Each item.
    """
    with Progress(what, len(items)) as progress:
        for done, item in enumerate(items, 1):
            yield item
            progress.update(done)


def clock(seconds: float) -> str:
    """Write a duration as minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"

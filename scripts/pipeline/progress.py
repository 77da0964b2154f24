"""Progress and remaining time, read from what a command prints."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import IO

import rich.progress
from rich.console import Console
from rich.markup import escape

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

    def describe(self, seconds_after: float, now: float) -> str:
        """Write where the stage is, its metrics and the remaining time.

        Args:
            seconds_after: Estimated duration of the stages that follow.
            now: ``time.monotonic()``.

        Returns:
            One line.
        """
        where = f"starting, {clock(now - self.start)}"
        if self.total:
            where = f"{self.done / self.total:4.0%}  {self.done}/{self.total}"
        metrics = "".join(f"  {name} {value}" for name, value in self.metrics.items())
        left = self.seconds_left(now)
        return f"{where}{metrics}  left: stage {clock(left)}, all {clock(left + seconds_after)}"


class Display:
    """Where the run is: one line with a bar in a terminal, a line now and then elsewhere."""

    def __init__(self, file: IO[str] | None = None) -> None:
        """Write to a file, by default standard output."""
        self._console = Console(file=file)
        self._last_line = -LINE_EVERY_SECONDS
        self._bar: rich.progress.Progress | None = None

    def __enter__(self) -> None:
        """Begin with a stage."""
        self._last_line = -LINE_EVERY_SECONDS

    def __exit__(self, *error: object) -> None:
        """Take the bar away, however the stage ended."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def show(self, title: str, progress: Progress, seconds_after: float) -> None:
        """Show a running stage.

        Args:
            title: Number and name of the stage.
            progress: Its progress.
            seconds_after: Estimated duration of the stages that follow.
        """
        now = time.monotonic()
        if self._console.is_terminal:
            self._draw(title, progress, progress.describe(seconds_after, now))
        elif now - self._last_line >= LINE_EVERY_SECONDS:
            self._last_line = now
            line = f"{title}  {progress.describe(seconds_after, now)}"
            # As it is, however long.
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _draw(self, title: str, progress: Progress, text: str) -> None:
        """Draw the line anew."""
        if self._bar is None:
            columns = ("{task.description}", rich.progress.BarColumn(20), "{task.fields[text]}")
            self._bar = rich.progress.Progress(
                *columns, console=self._console, transient=True, auto_refresh=False
            )
            self._bar.start()
            self._bar.add_task("", text="")
        task = self._bar.task_ids[0]
        total = progress.total or None
        self._bar.update(
            task, description=escape(title), completed=progress.done, total=total, text=text
        )
        self._bar.refresh()


def clock(seconds: float) -> str:
    """Write a duration as minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"

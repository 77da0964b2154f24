"""Progress and remaining time, read from what a command prints."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO

import rich.progress
from rich.console import Console
from rich.markup import escape
from rich.table import Column
from rich.text import Text

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
    seconds_after: float = 0.0
    """Estimated duration of the stages that follow."""
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

    def __str__(self) -> str:
        """Write in one line where the stage is, its metrics and the remaining time."""
        now = time.monotonic()
        where = f"starting, {clock(now - self.start)}"
        if self.total:
            where = f"{self.done / self.total:4.0%}  {self.done}/{self.total}"
        metrics = "".join(f"  {name} {value}" for name, value in self.metrics.items())
        left = self.seconds_left(now)
        rest = clock(left + self.seconds_after)
        return f"{where}{metrics}  left: stage {clock(left)}, all {rest}"

    def __rich__(self) -> Text:
        """Return the same line for rich, which asks for it whenever it draws."""
        return Text(str(self))


@contextmanager
def displayed(
    title: str, progress: Progress, file: IO[str] | None = None
) -> Iterator[Callable[[str], None]]:
    """Show a stage while it runs: a line with a bar in a terminal, one now and then elsewhere.

    Args:
        title: Number and name of the stage.
        progress: Its progress.
        file: Where it is shown, by default standard output.

    Yields:
        A function that takes a line of the stage's output.
    """
    console = Console(file=file)
    last_line = -LINE_EVERY_SECONDS
    words = rich.progress.RenderableColumn(progress, table_column=Column(no_wrap=True))
    with rich.progress.Progress(
        *(escape(title), rich.progress.BarColumn(20), words),
        console=console,
        refresh_per_second=2,
        transient=True,
        disable=not console.is_terminal,
    ) as bars:
        task = bars.add_task("", total=None)

        def read(line: str) -> None:
            nonlocal last_line
            progress.read(line)
            bars.update(task, completed=progress.done, total=progress.total or None)
            now = time.monotonic()
            if not console.is_terminal and now - last_line >= LINE_EVERY_SECONDS:
                last_line = now
                console.out(f"{title}  {progress}", highlight=False)

        yield read


def clock(seconds: float) -> str:
    """Write a duration as minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"

"""Progress and remaining time, read from what a command prints."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

PLACES = (
    (re.compile(r"Learning iteration (\d+)/(\d+)"), 1),
    (re.compile(r"\[progress\] (\d+)/(\d+)"), 0),
)
"""Lines that tell how far a command is, and how much further than the first number: rsl_rl prints
an iteration's index after the iteration; this repository's commands ``[progress] done/total``."""
METRIC = re.compile(r"^\s*Mean (reward|behavior loss): (\S+)")
LINE_EVERY_SECONDS = 10.0
"""Distance of progress lines where the output is no terminal."""
PACE_SECONDS = 3600.0
"""Up to how far back the remaining time is estimated from: stages take minutes."""


def new_bars(file: IO[str] | None = None) -> Progress:
    """Return the display of what runs: bars in a terminal, nothing elsewhere.

    Args:
        file: Where it is shown, by default standard output.

    Returns:
        A context manager. Its tasks have a field ``where``.
    """
    console = Console(file=file)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(20),
        TextColumn("{task.fields[where]}", markup=False, table_column=Column(no_wrap=True)),
        *("left:", TimeRemainingColumn()),
        console=console,
        refresh_per_second=2,
        speed_estimate_period=PACE_SECONDS,
        transient=True,
        disable=not console.is_terminal,
    )


@contextmanager
def displayed(title: str, bars: Progress) -> Iterator[Callable[[str], None]]:
    """Show a stage while it runs: a bar in a terminal, a line now and then elsewhere.

    Args:
        title: Number and name of the stage.
        bars: The display.

    Yields:
        A function that takes a line of the stage's output, with or without colour codes.
    """
    last_line = -LINE_EVERY_SECONDS
    place, metrics = "starting", dict[str, str]()
    task = bars.add_task(title, total=None, where=place)

    def read(line: str) -> None:
        nonlocal last_line, place
        for pattern, offset in PLACES:
            if match := pattern.search(line):
                done, total = int(match[1]) + offset, int(match[2])
                place = f"{done}/{total}"
                bars.update(task, completed=done, total=total)
        if match := METRIC.match(line):
            metrics[match[1]] = match[2]
        where = "  ".join([place, *(f"{name} {value}" for name, value in metrics.items())])
        bars.update(task, where=where)
        if bars.disable and time.monotonic() - last_line >= LINE_EVERY_SECONDS:
            last_line = time.monotonic()
            (seconds,) = [shown.time_remaining for shown in bars.tasks if shown.id == task]
            left = "" if seconds is None else f"  left: {clock(seconds)}"
            bars.console.out(f"{title}  {where}{left}", highlight=False)

    try:
        yield read
    finally:
        bars.remove_task(task)


def clock(seconds: float) -> str:
    """Write a duration as minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"

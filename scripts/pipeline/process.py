"""Run a command, keep its output in a file, watch it line by line."""

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

GRACE_SECONDS = 10.0
"""How long an interrupted command may take to end before it is killed."""


@dataclass(frozen=True)
class Finished:
    """A command that ended."""

    status: int
    """Exit status, or minus the number of the signal that ended it."""
    seconds: float
    """Wall-clock duration."""
    peak_memory_gb: float
    """Largest resident memory of the command or one of its children, in 10^9 bytes."""


def run_logged(
    command: list[str],
    *,
    folder: Path,
    log: Path,
    environment: dict[str, str],
    on_start: Callable[[subprocess.Popen[bytes]], None],
    on_line: Callable[[str], None],
) -> Finished:
    """Run a command to its end.

    Args:
        command: Program and arguments.
        folder: Working directory.
        log: File for everything the command prints; replaced if it exists.
        environment: Environment variables.
        on_start: Called with the process once it runs, for :func:`end` from another thread.
        on_line: Called with every line.

    Returns:
        How it ended. An exception, for example an interruption, ends the command first.
    """
    start = time.monotonic()
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None  # it was asked for above
    try:
        on_start(process)
        with process.stdout, log.open("wb") as sink:
            for line in process.stdout:
                sink.write(line)
                sink.flush()
                on_line(line.decode("utf-8", errors="replace").rstrip("\n"))
    except BaseException:
        end(process)
        raise
    # wait4 instead of Popen.wait: it alone tells this child's peak. psutil reads living processes
    # only, and what it reads now and then misses the peak.
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    # Linux counts in units of 1024 bytes.
    return Finished(process.returncode, time.monotonic() - start, usage.ru_maxrss * 1024 / 1e9)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a command to stop, and kill it if it does not."""
    process.terminate()
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def tail(log: Path, num_lines: int = 25) -> str:
    """Return the last lines of a log."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-num_lines:])

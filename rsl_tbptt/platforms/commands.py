"""How commands are shown and run."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path


def shown(command: list[str]) -> str:
    """Write a command as a line for a shell."""
    return shlex.join(command)


def executable(command: list[str]) -> list[str]:
    """Replace a command's first word by the program of this environment, or the one on the path.

    Raises:
        FileNotFoundError: If neither is there.
    """
    if command[0] == "python":
        return [sys.executable, *command[1:]]
    # Beside this Python first: the environment need not be activated.
    program = shutil.which(command[0], path=str(Path(sys.executable).parent))
    program = program or shutil.which(command[0])
    if program is None:
        raise FileNotFoundError(
            f"{command[0]} is neither beside {sys.executable} nor on the path: install this package"
            " with its isaaclab extra on Python 3.12, or with its mjlab extra, or run `make demo`"
            " or `make demo-mjlab`, which do."
        )
    return [program, *command[1:]]


def child_environment(device: str) -> dict[str, str]:
    """Return the environment variables for a command.

    Networks of this size leave nothing to a second thread, and threads that wait for each other on
    busy cores are a disaster: with one other process on 2 cores an update took 4.8 s with two
    threads and 0.1 s with one. A number that the user sets is kept.
    """
    environment = {"PYTHONUNBUFFERED": "1", "MPLBACKEND": "Agg", **os.environ}
    if device == "cpu":
        environment.setdefault("OMP_NUM_THREADS", "1")
    return environment


def run_shown(command: list[str], folder: Path, device: str) -> int:
    """Print a command, run it in a folder with its output on the screen.

    Args:
        command: What to run, as a platform's ``train_command`` writes it.
        folder: Working directory, created if missing: platforms log beneath it.
        device: Device that the command computes on.

    Returns:
        The exit status.
    """
    folder.mkdir(parents=True, exist_ok=True)
    print(f"in {folder}:\n  {shown(command)}\n", flush=True)
    return subprocess.call(executable(command), cwd=folder, env=child_environment(device))

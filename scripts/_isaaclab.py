"""Isaac Lab's own commands, as the scripts run and show them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from _preset import Policy

PHYSICS = "physics=newton_mjwarp"
"""The backend that runs without Isaac Sim, with or without a GPU."""


def train_command(
    policy: Policy,
    *,
    task: str,
    num_envs: int,
    run_name: str,
    device: str,
    checkpoint: str | None = None,
) -> list[str]:
    """Write the command that trains one policy.

    Args:
        policy: Agent, iterations, seed and overrides.
        task: Registered task id.
        num_envs: Environments to simulate.
        run_name: Suffix of the log folder.
        device: Device of simulation and learning, for example ``cpu`` or ``cuda:0``.
        checkpoint: File of the policy to start from, or None to train from scratch.

    Returns:
        The command as a user would type it.
    """
    command = ["isaaclab", "train", "--rl_library", "rsl_rl", "--task", task]
    command += ["--agent", policy.agent]
    if checkpoint is not None:
        command += ["--checkpoint", checkpoint]
    command += ["--num_envs", str(num_envs), "--max_iterations", str(policy.iterations)]
    command += ["--seed", str(policy.seed), "--run_name", run_name]
    return [*command, *placement(device), *policy.overrides]


def placement(device: str) -> list[str]:
    """Return the arguments that choose physics backend and device."""
    return [PHYSICS, "--device", device, f"agent.device={device}"]


def find_checkpoint(folder: Path, run_name: str, iteration: int, since: float = 0.0) -> Path:
    """Find the checkpoint that a finished training left.

    Isaac Lab ends an interrupted training with success, so the last iteration's checkpoint is the
    proof that it ran to its end.

    Args:
        folder: Working directory of the training.
        run_name: Suffix of the log folder.
        iteration: Number of the last iteration, counted from 0.
        since: Ignore older files. In seconds since the epoch.

    Returns:
        Path of the newest one.

    Raises:
        FileNotFoundError: If there is none.
    """
    pattern = f"logs/rsl_rl/*/*_{run_name}/model_{iteration}.pt"
    found = [path for path in folder.glob(pattern) if path.stat().st_mtime >= since]
    if not found:
        raise FileNotFoundError(
            f"{pattern} was not found in {folder}: the training did not reach its last iteration."
        )
    return max(found, key=lambda path: path.stat().st_mtime)


def shown(command: list[str]) -> str:
    """Write a command as a line for a shell."""
    return shlex.join(command)


def executable(command: list[str]) -> list[str]:
    """Replace a command's first word by the program of this environment.

    Raises:
        FileNotFoundError: If the environment has no such program.
    """
    if command[0] == "python":
        return [sys.executable, *command[1:]]
    program = Path(sys.executable).parent / command[0]
    if not program.exists():
        raise FileNotFoundError(
            f"{command[0]} is not beside {sys.executable}: install this package with its isaaclab"
            " extra on Python 3.12, or run `make demo`, which does."
        )
    return [str(program), *command[1:]]


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
        command: What to run, as :func:`train_command` writes it.
        folder: Working directory, created if missing: Isaac Lab logs beneath it.
        device: Device that the command computes on.

    Returns:
        The exit status.
    """
    folder.mkdir(parents=True, exist_ok=True)
    print(f"in {folder}:\n  {shown(command)}\n", flush=True)
    return subprocess.call(executable(command), cwd=folder, env=child_environment(device))

"""What this repository's scripts ask of a simulation platform.

A platform is a module ``_<name>.py`` beside this one that offers what :class:`Platform` lists; a
preset names it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from _preset import Policy

PLATFORMS = ("isaaclab", "mjlab")
"""The platforms by name."""


class Platform(Protocol):
    """A module that writes a platform's own commands and opens its environments."""

    PACKAGES: tuple[str, ...]
    """Distributions that decide a run's numbers, beside those of every platform."""

    def task_id(self, task: str, agent: str) -> str:
        """Return the id under which the platform knows a preset's task.

        Args:
            task: The preset's task.
            agent: A policy's agent.

        Returns:
            The id; whatever the agent, it has the same environment.
        """
        ...

    def train_command(
        self,
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
            task: The preset's task.
            num_envs: Environments to simulate.
            run_name: Suffix of the log folder.
            device: Device of simulation and learning, for example ``cpu`` or ``cuda:0``.
            checkpoint: File of the policy to start from, or None to train from scratch.

        Returns:
            The command as a user would type it.
        """
        ...

    def simulated_env(
        self,
        task: str,
        *,
        num_envs: int,
        seed: int,
        device: str,
        clip_actions: float | None,
        overrides: Sequence[str],
    ) -> AbstractContextManager[Any]:
        """Simulate a task as it is in training, noise and randomisation included.

        Args:
            task: Id that :meth:`task_id` returned.
            num_envs: Environments to simulate.
            seed: Seed of everything drawn while the environment is built.
            device: Device of the simulation.
            clip_actions: Bound of the actions as in training, or None.
            overrides: Presets and settings of the task as in training, in the platform's form.

        Returns:
            A context with the environment in rsl_rl's form.
        """
        ...

    def joint_reader(self, env: Any, num_envs: int) -> Callable[[], dict[str, list[float]]]:
        """Return a function that reads the joint positions of the first environments.

        Args:
            env: What :meth:`simulated_env` gave.
            num_envs: How many environments.

        Returns:
            A function to lists of ``num_envs`` positions by joint name, in m or rad, joints in the
            robot's order.
        """
        ...


def load_platform(name: str) -> Platform:
    """Return a platform.

    Args:
        name: One of :data:`PLATFORMS`.

    Returns:
        Its module.
    """
    return cast("Platform", importlib.import_module(f"_{name}"))


def find_checkpoint(folder: Path, run_name: str, iteration: int, since: float = 0.0) -> Path:
    """Find the checkpoint that a finished training left; all platforms log alike.

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

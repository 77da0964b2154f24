"""What the commands of this package ask of the platform that a policy was trained on.

A platform is a module of this folder that offers what :class:`Platform` lists. Importing one loads
no simulator.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    import torch

PLATFORMS = ("isaaclab", "mjlab", "rsl_rl")
"""The platforms by name; ``rsl_rl`` is rsl_rl alone, with environments of the user's own."""


@dataclass(frozen=True)
class Trained:
    """What is noted beside a checkpoint of the training that it belongs to."""

    task: str
    """Registered id."""
    agent: str
    """Name of the agent's config in the task's registration; empty where ids have one each."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training that a platform's own command runs."""

    task: str
    """The task, in mjlab without the agent's name at its end."""
    agent: str
    """Name of the agent's config."""
    num_envs: int
    """Environments to simulate."""
    iterations: int
    """Rollouts and updates."""
    seed: int
    """Seed of environment and agent."""
    run_name: str
    """Suffix of the log folder."""
    checkpoint: Path | None = None
    """File of the policy to start from; None trains from scratch."""


class Platform(Protocol):
    """A module that opens a platform's environments and writes its commands."""

    TITLE: str
    """What users call it."""
    EXTRA: str | None
    """The extra of this package that installs it, None for what comes anyway."""
    TASKS: str | None
    """Its group of entry points for tasks."""
    PROGRAM: str | None
    """Its command, whose presence shows a complete installation."""
    RENDERS: bool
    """Whether its environments can be seen without a screen."""
    PACKAGES: tuple[str, ...]
    """Distributions that decide a run's numbers beside those of every platform, its own first."""

    def trained_here(self, checkpoint: Path) -> bool:
        """Return whether the files beside a checkpoint are this platform's."""
        ...

    def find_trained(self, checkpoint: Path, task: str | None = None) -> Trained:
        """Find the task and agent of a checkpoint that was trained here.

        Args:
            checkpoint: ``model_<iteration>.pt`` in a log folder of this platform.
            task: What the user named instead of the task that is noted.

        Returns:
            Task and agent.

        Raises:
            ValueError: If the files beside the checkpoint do not tell.
        """
        ...

    def registered_agent(self, trained: Trained) -> Mapping[str, Any]:
        """Return the agent's config that the registration of an installed task names.

        Args:
            trained: The task, and the agent.

        Returns:
            The config, before any command line has changed it.

        Raises:
            ValueError: If the platform has no registry, or it has no such task.
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
        image_size: tuple[int, int] | None,
        noted: Path | None,
    ) -> AbstractContextManager[Any]:
        """Simulate a task as it is in training, noise and randomisation included.

        Args:
            task: Registered id; for rsl_rl alone ``module:function``.
            num_envs: Environments to simulate.
            seed: Seed of everything drawn while the environment is built.
            device: Device of the simulation.
            clip_actions: Bound of the actions as in training, or None.
            overrides: Presets and settings of the task as in training, in the platform's form.
            image_size: Width and height of the images for :meth:`renderer`, in pixels. None where
                none are wanted. The camera changes neither physics nor what is drawn.
            noted: The environment's config of the training, to simulate what it was trained on;
                see :class:`rsl_tbptt.platforms.noted_env.NotedEnv`. None simulates the task as it
                is registered. Overrides count before it.

        Returns:
            A context with the environment in rsl_rl's form.

        Raises:
            ValueError: If there are overrides where the platform has none, or no such task.
        """
        ...

    def restart(self, env: Any, seed: int) -> Any:
        """Start an episode in every environment.

        Args:
            env: What :meth:`simulated_env` gave.
            seed: Seed of the starts and of everything drawn from here on.

        Returns:
            Observations by group, batch size (N,).
        """
        ...

    def step_seconds(self, env: Any) -> float | None:
        """Return the duration of a step, None where the environment does not tell."""
        ...

    def renderer(self, env: Any) -> Callable[[], torch.Tensor]:
        """Return a function that renders the robot of every environment as it stands.

        Args:
            env: What :meth:`simulated_env` gave with an ``image_size``.

        Returns:
            A function to images, shape (N, height, width, 3), uint8, which the next ones overwrite.

        Raises:
            ValueError: If the environment has no robot to look at, or the platform no camera.
        """
        ...

    def task_id(self, task: str, agent: str) -> str:
        """Return the registered id of a task; whatever the agent, it has the same environment."""
        ...

    def train_command(self, training: Training, *, device: str) -> list[str]:
        """Write the platform's own command that trains a policy.

        Args:
            training: The training.
            device: Device of simulation and learning, for example ``cpu`` or ``cuda:0``.

        Returns:
            The command as a user would type it.

        Raises:
            ValueError: If the platform has none.
        """
        ...

    def play_command(
        self, trained: Trained, checkpoint: Path, *, num_envs: int, device: str
    ) -> list[str]:
        """Write the platform's own command that shows a policy.

        Args:
            trained: The task, and the agent that the policy is.
            checkpoint: Its file.
            num_envs: Environments to show.
            device: Device of the simulation.

        Returns:
            The command as a user would type it.

        Raises:
            ValueError: If the platform has none.
        """
        ...


def load_platform(name: str) -> Platform:
    """Return a platform.

    Args:
        name: One of :data:`PLATFORMS`.

    Returns:
        Its module.
    """
    return cast("Platform", importlib.import_module(f"{__name__}.{name}"))


def platform_of(checkpoint: Path) -> str:
    """Find out which platform a checkpoint was trained on.

    Args:
        checkpoint: ``model_<iteration>.pt`` in a log folder.

    Returns:
        One of :data:`PLATFORMS`; rsl_rl alone where no files of another lie beside it.

    Raises:
        ValueError: If there is no such file.
    """
    if not checkpoint.is_file():
        raise ValueError(f"The checkpoint '{checkpoint}' does not exist: check the path.")
    return next(name for name in PLATFORMS if load_platform(name).trained_here(checkpoint))

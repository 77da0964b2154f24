"""The platforms whose checkpoints the commands take: Isaac Lab, mjlab, EnvPool, rsl_rl alone.

Each is a :class:`Platform` in a module of this folder. Importing one loads no simulator.
"""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PLATFORMS = ("isaaclab", "mjlab", "envpool", "rsl_rl")
"""The platforms by name; ``rsl_rl`` is rsl_rl alone, with environments of the user's own."""


@dataclass(frozen=True)
class Trained:
    """The task and agent of the training that a checkpoint belongs to."""

    task: str
    """Registered id."""
    agent: str
    """Name of the agent's config in the task's registration; empty where ids have one each."""


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A task to simulate as it is in training, noise and randomisation included."""

    task: str
    """Registered id; for rsl_rl alone ``module:function``."""
    num_envs: int
    """Environments to simulate."""
    seed: int
    """Seed of everything drawn while the environment is built."""
    device: str
    """Device of the simulation, ``cpu`` or ``cuda:<index>``."""
    clip_actions: float | None = None
    """Bound of the actions as in training."""
    overrides: Sequence[str] = ()
    """Presets and settings of the task, in the form of :meth:`Platform.simulated_env`."""


class Platform:
    """A platform: it finds the task of a checkpoint and opens its environments."""

    TITLE: str
    """What users call it."""
    PACKAGES: tuple[str, ...]
    """Distributions that decide a run's numbers on this platform only, its own first."""
    EXTRA: str
    """The extra of this package that installs it."""
    TASKS: str | None = None
    """Its group of entry points for tasks."""
    PROGRAM: str | None = None
    """Its command, which ``doctor`` looks for. None: it has none."""
    READS_AFTER_STEP = False
    """Whether observations are computed from positions after the last substep; MuJoCo's own
    sensors show the state before it."""
    DEFAULT_AGENT = ""
    """Name of the agent's config where a user names none."""

    @property
    def name(self) -> str:
        """Its name in :data:`PLATFORMS`."""
        return type(self).__module__.rpartition(".")[2]

    def trained_in(self, folder: Path) -> bool:
        """Return whether the files in a log folder are this platform's."""
        raise NotImplementedError

    def find_trained(self, checkpoint: Path, task: str | None = None) -> Trained:
        """Find the task and agent of a checkpoint that was trained here.

        Args:
            checkpoint: ``model_<iteration>.pt`` in a log folder of this platform.
            task: Named by the user instead of the task that is noted.

        Raises:
            ValueError: If the files next to the checkpoint do not tell.
        """
        raise NotImplementedError

    def registered_agent(self, trained: Trained) -> Mapping[str, Any]:
        """Return the agent's config that a task registers, before a command line has changed it."""
        raise NotImplementedError

    def simulated_env(self, simulation: Simulation) -> AbstractContextManager[Any]:
        """Return a context with the environment of a simulation, in rsl_rl's form.

        Raises:
            ValueError: If there is no such task, or an override names no setting of it.
        """
        raise NotImplementedError

    def restart(self, env: Any, seed: int) -> Any:
        """Start an episode in every environment.

        Args:
            env: From :meth:`simulated_env`.
            seed: Seed of the starts and of everything drawn from here on.

        Returns:
            Observations by group, batch size (N,).
        """
        env.seed(seed)
        return env.reset()[0]

    def step_seconds(self, env: Any) -> float | None:
        """Return the attribute ``step_dt`` in seconds, None without one.

        Raises:
            ValueError: If it is not above 0.
        """
        seconds = getattr(getattr(env, "unwrapped", env), "step_dt", None)
        if seconds is not None and not seconds > 0:
            raise ValueError(f"step_dt of {env} is {seconds!r}, expected seconds above 0.")
        return seconds

    def mujoco_spec(self, env: Any) -> Any:
        """Return the robot and its ground as a ``mujoco.MjSpec`` that moves as in the simulation.

        Args:
            env: From :meth:`simulated_env`.

        Raises:
            ValueError: If the simulation has none.
        """
        if make := getattr(getattr(env, "unwrapped", env), "mujoco_spec", None):
            return make()
        raise ValueError(
            f"{self.TITLE} simulates {type(env).__name__} without telling a MuJoCo model, expected"
            " an environment of mjlab, or one with a method mujoco_spec()."
        )


def load_platform(name: str) -> Platform:
    """Return one of :data:`PLATFORMS`."""
    return importlib.import_module(f"{__name__}.{name}").PLATFORM


def platform_of(checkpoint: Path) -> str:
    """Find out which platform a checkpoint was trained on.

    Args:
        checkpoint: ``model_<iteration>.pt`` in a log folder.

    Returns:
        One of :data:`PLATFORMS`; rsl_rl alone where no files of another lie next to it.

    Raises:
        ValueError: If there is no such file.
    """
    if not checkpoint.is_file():
        raise ValueError(f"The checkpoint '{checkpoint}' does not exist: check the path.")
    return next(name for name in PLATFORMS if load_platform(name).trained_in(checkpoint.parent))


def executable(command: list[str]) -> list[str]:
    """Replace a command's first word by the program of this environment, or the one on the path.

    Raises:
        FileNotFoundError: If neither is there.
    """
    if command[0] == "python":
        return [sys.executable, *command[1:]]
    # Next to this Python first: the environment need not be activated.
    beside = shutil.which(command[0], path=str(Path(sys.executable).parent))
    if (program := beside or shutil.which(command[0])) is None:
        raise FileNotFoundError(
            f"{command[0]} is neither next to {sys.executable} nor on the path: install this"
            " package with its isaaclab extra on Python 3.12, or with its mjlab extra."
        )
    return [program, *command[1:]]

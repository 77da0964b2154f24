"""The platforms whose checkpoints the commands take: Isaac Lab, mjlab and rsl_rl alone.

Each is a :class:`Platform` in a module of this folder. Importing one loads no simulator.
"""

from __future__ import annotations

import importlib
import os
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rsl_tbptt.files import read_yaml

if TYPE_CHECKING:
    import torch

PLATFORMS = ("isaaclab", "mjlab", "rsl_rl")
"""The platforms by name; ``rsl_rl`` is rsl_rl alone, with environments of the user's own."""
ENV = Path("params", "env.yaml")
"""Where Isaac Lab and mjlab write the environment's config, next to the checkpoints."""
CHOSEN = {("seed",), ("log_dir",), ("scene", "num_envs"), ("sim", "device")}
"""Entries of that config which an evaluation chooses itself."""
CODE = ("class_type", "func")
"""Keys that name what a section configures: with another one its other keys mean something else."""
MOST_NAMES = 8

Keys = tuple[Any, ...]
_MISSING = object()


@dataclass(frozen=True)
class Trained:
    """The task and agent of the training that a checkpoint belongs to."""

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
    """Presets and settings of the task as in training, in the platform's form."""
    image_size: tuple[int, int] | None = None
    """Width and height of the images for :meth:`Platform.renderer`, in pixels. None adds no camera.
    The camera changes neither physics nor what is drawn at random."""
    noted: Path | None = None
    """The environment's config of the training, whose numbers are applied; see :class:`NotedEnv`.
    None simulates the task as it is registered. Overrides win."""


class Platform:
    """A platform: it opens its environments and writes its commands."""

    TITLE: str
    """What users call it."""
    PACKAGES: tuple[str, ...]
    """Distributions that decide a run's numbers on this platform only, its own first."""
    EXTRA: str | None = None
    """The extra of this package that installs it, None for what comes anyway."""
    TASKS: str | None = None
    """Its group of entry points for tasks."""
    PROGRAM: str | None = None
    """Its command. None: it can neither train, play nor render a task."""

    def trained_here(self, checkpoint: Path) -> bool:
        """Return whether the files next to a checkpoint are this platform's."""
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
            ValueError: If there are overrides where the platform has none, or no such task.
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
        """Return the duration of a step, None where the environment does not tell."""
        return env.unwrapped.step_dt

    def renderer(self, env: Any) -> Callable[[], torch.Tensor]:
        """Return a function that renders the robot of every environment as it stands.

        Args:
            env: From :meth:`simulated_env` with an ``image_size``.

        Returns:
            A function to images, shape (N, height, width, 3), uint8, which the next ones overwrite.

        Raises:
            ValueError: If the environment has no robot to look at.
        """
        raise NotImplementedError

    def task_id(self, task: str, agent: str) -> str:
        """Return the registered id of a task; its environment is the same for every agent."""
        return task

    def train_command(self, training: Training, *, device: str) -> list[str]:
        """Write the platform's own command that trains a policy, as a user would type it.

        Args:
            training: The training.
            device: Device of simulation and learning, for example ``cpu`` or ``cuda:0``.

        Raises:
            ValueError: If the platform has none.
        """
        raise ValueError(
            f"The platform of {training.run_name} is {self.TITLE}, which has no training command,"
            " expected isaaclab or mjlab."
        )

    def play_command(
        self, trained: Trained, checkpoint: Path, *, num_envs: int, device: str
    ) -> list[str]:
        """Write the platform's own command that shows a policy, as a user would type it.

        Args:
            trained: The task, and the agent that the policy is.
            checkpoint: Its file.
            num_envs: Environments to show.
            device: Device of the simulation.
        """
        raise NotImplementedError


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
    return next(name for name in PLATFORMS if load_platform(name).trained_here(checkpoint))


def executable(command: list[str]) -> list[str]:
    """Replace a command's first word by the program of this environment, or the one on the path.

    Raises:
        FileNotFoundError: If neither is there.
    """
    if command[0] == "python":
        return [sys.executable, *command[1:]]
    # Next to this Python first: the environment need not be activated.
    program = shutil.which(command[0], path=str(Path(sys.executable).parent))
    program = program or shutil.which(command[0])
    if program is None:
        raise FileNotFoundError(
            f"{command[0]} is neither next to {sys.executable} nor on the path: install this"
            " package with its isaaclab extra on Python 3.12, or with its mjlab extra, or run"
            " `make demo` or `make demo-mjlab`, which do."
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
    """Print a command and run it in a folder with its output on the screen.

    Args:
        command: The command, as a platform's ``train_command`` writes it.
        folder: Working directory, created if missing: platforms log in it.
        device: Device that the command computes on.

    Returns:
        The exit status.
    """
    folder.mkdir(parents=True, exist_ok=True)
    print(f"in {folder}:\n  {shlex.join(command)}\n", flush=True)
    return subprocess.call(executable(command), cwd=folder, env=child_environment(device))


class NotedEnv:
    """The environment's config of a training, compared with the one to be simulated.

    A run's folder may come from anybody, and a config names code. So only its numbers, None and
    lists of them are applied, and the other differences are named.
    """

    def __init__(self, file: Path, as_dict: Callable[[Any], Any]) -> None:
        """Read a config without running code that it may contain.

        Args:
            file: ``params/env.yaml`` of a run.
            as_dict: Turns a config into what the platform writes.

        Raises:
            ValueError: If it cannot be read.
        """
        import yaml  # of the extra `tools`, and platforms are imported without it

        self._file, self._as_dict = file, as_dict
        try:
            self._noted = _read(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ValueError(f"The config '{file}' cannot be read: {error}") from error
        if not isinstance(self._noted, dict):
            raise ValueError(f"The config '{file}' holds {self._noted!r}, expected a mapping.")
        self._left: set[Keys] = set()

    def apply(self, cfg: Any, default: Any = None) -> None:
        """Set the numbers that the training had, and print them.

        Args:
            cfg: The config of the environment to be simulated, which is changed.
            default: The task's config without the user's overrides, which are left alone. None
                where there are none.
        """
        here = self._as_written(cfg)
        chosen = () if default is None else _differences(here, self._as_written(default))
        applied = []
        for keys, (value, old) in _differences(self._noted, here).items():
            if keys in CHOSEN or any(keys[: len(k)] == k[: len(keys)] for k in chosen):
                continue
            if _is_plain(value) and (_is_plain(old) or value is None):
                _put(cfg, keys, value)
                applied.append(f"{_name(keys)}={value}")
            else:
                self._left.add(keys)
        if applied:
            print(f"as in training, by {self._file}: {' '.join(applied)}", flush=True)

    def warn_of_others(self, cfg: Any) -> None:
        """Warn of differences that were not applied and remain once the environment is built.

        Args:
            cfg: The config of the environment, which building completed as in training.
        """
        still = _differences(self._noted, self._as_written(cfg))
        names = [_name(keys) for keys in still if keys in self._left]
        if names:
            more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
            warnings.warn(
                f"The environment differs from {self._file} in {', '.join(names[:MOST_NAMES])}"
                f"{more}, expected the training's: only numbers of a run's folder are applied."
                " Isaac Lab takes the rest as overrides: physics=..., presets=..., env.NAME=VALUE.",
                stacklevel=2,
            )

    def _as_written(self, cfg: Any) -> dict[str, Any]:
        """Return a config as it would be read from the file that the platform writes."""
        import yaml

        return _read(yaml.dump(self._as_dict(cfg), sort_keys=False))


def _read(text: str) -> Any:
    """Read a config: tuples as lists, and Python's other objects as text."""
    import yaml

    return read_yaml(text, sequence=list, other=yaml.serialize)


def _differences(
    noted: Mapping[Any, Any], here: Mapping[Any, Any], above: Keys = ()
) -> dict[Keys, tuple[Any, Any]]:
    """Return both values where two configs differ, by keys from the outside in."""
    found: dict[Keys, tuple[Any, Any]] = {}
    for key in {**noted, **here}:
        a, b = noted.get(key, _MISSING), here.get(key, _MISSING)
        if isinstance(a, dict) and isinstance(b, dict) and all(a.get(c) == b.get(c) for c in CODE):
            found |= _differences(a, b, (*above, key))
        elif not (a == b or repr(a) == repr(b) or _is_same_file(a, b)):  # NaN equals by repr alone
            found[(*above, key)] = (a, b)
    return found


def _is_same_file(a: Any, b: Any) -> bool:
    """Return whether two paths name a file alike: packages lie elsewhere on another machine."""
    are_paths = isinstance(a, str) and isinstance(b, str) and "/" in a and "/" in b
    return are_paths and Path(a).name == Path(b).name


def _is_plain(value: Any) -> bool:
    """Return whether a value is a number, None or a list of such."""
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float))


def _put(cfg: Any, keys: Keys, value: Any) -> None:
    """Set a value of a config of objects and dictionaries; tuples stay tuples."""
    for key in keys[:-1]:
        cfg = cfg[key] if isinstance(cfg, dict) else getattr(cfg, key)
    values = cfg if isinstance(cfg, dict) else vars(cfg)
    is_tuple = isinstance(values[keys[-1]], tuple) and isinstance(value, list)
    values[keys[-1]] = tuple(value) if is_tuple else value


def _name(keys: Keys) -> str:
    return ".".join(map(str, keys))

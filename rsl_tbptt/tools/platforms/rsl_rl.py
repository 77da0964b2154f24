"""rsl_rl alone, with the user's own environments; see ``Platform``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from rsl_tbptt.tools.platforms import Trained, Training

TITLE = "rsl_rl alone"
EXTRA = TASKS = PROGRAM = None
RENDERS = False
PACKAGES = ("rsl-rl-lib",)


def trained_here(checkpoint: Path) -> bool:
    """Return True: what no other platform has trained was trained by rsl_rl alone."""
    return True


def find_trained(checkpoint: Path, task: str | None = None) -> NoReturn:
    """Say how an environment is named, as nothing notes it.

    Raises:
        ValueError: Always.
    """
    raise ValueError(
        f"The environment of {checkpoint} is not known, expected its task or a function that makes"
        " it: beside the checkpoint lie neither Isaac Lab's run.json nor mjlab's params. Name"
        " --platform and --task, or for rsl_rl alone --env module:function."
    )


def registered_agent(trained: Trained) -> NoReturn:
    """Say that there is no registry.

    Raises:
        ValueError: Always.
    """
    raise ValueError(f"rsl_rl alone has no registry, expected a function in place of {trained}.")


@contextmanager
def simulated_env(
    task: str,
    *,
    num_envs: int,
    seed: int,
    device: str,
    clip_actions: float | None,
    overrides: Sequence[str],
    image_size: tuple[int, int] | None = None,
    noted: Path | None = None,
) -> Iterator[Any]:
    """Make an environment by ``module:function``, called with ``(num_envs, seed, device)``.

    The module is looked for in the working directory, too. Whether actions are clipped is the
    environment's own matter; see :class:`rsl_tbptt.tools.platforms.Platform`.

    Raises:
        ValueError: If there is no such function, or there are overrides.
    """
    if overrides:
        raise ValueError(f"overrides is {[*overrides]}, expected none with --env.")
    env = _factory(task)(num_envs, seed, device)
    try:
        yield env
    finally:
        getattr(env, "close", lambda: None)()


def _factory(name: str) -> Callable[[int, int, str], Any]:
    """Return the function that ``module:function`` names.

    Raises:
        ValueError: If there is none.
        ModuleNotFoundError: If its module imports something that is missing.
    """
    module_name, _, function_name = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(import_module(module_name), function_name)
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise
        reason = str(error)
    except (AttributeError, ValueError) as error:
        reason = str(error)
    raise ValueError(
        f"--env is {name!r}, expected module:function of a function (num_envs, seed, device):"
        f" {reason}."
    )


def restart(env: Any, seed: int) -> Any:
    """Start an episode everywhere; see :class:`rsl_tbptt.tools.platforms.Platform`.

    Raises:
        ValueError: If an environment is in the midst of an episode.
    """
    import torch

    torch.manual_seed(seed)
    if hasattr(env, "reset"):
        env.reset()
    if env.episode_length_buf.any():
        raise ValueError(
            "episode_length_buf is not 0 everywhere, expected environments that start an episode"
            " when they are made, or have a reset(): each counts for its first full one."
        )
    return env.get_observations()


def step_seconds(env: Any) -> float | None:
    """Return the attribute ``step_dt`` in seconds, None without one."""
    return getattr(env, "step_dt", None)


def renderer(env: Any) -> NoReturn:
    """Say that there is no camera.

    Raises:
        ValueError: Always.
    """
    raise ValueError("rsl_rl alone knows no robot and no camera, expected Isaac Lab or mjlab.")


def task_id(task: str, agent: str) -> str:
    """Return the task itself."""
    return task


def train_command(training: Training, *, device: str) -> NoReturn:
    """Say that there is no such command.

    Raises:
        ValueError: Always.
    """
    raise ValueError(
        f"The platform of {training.run_name} is rsl_rl alone, which has no training command,"
        " expected isaaclab or mjlab."
    )


def play_command(trained: Trained, checkpoint: Path, *, num_envs: int, device: str) -> NoReturn:
    """Say that there is no such command.

    Raises:
        ValueError: Always.
    """
    raise ValueError("rsl_rl alone has no play command, expected Isaac Lab or mjlab.")

"""rsl_rl alone, with the user's own environments."""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from rsl_tbptt.tools.platforms import Platform, Simulation

USED = ("num_envs", "device", "max_episode_length", "get_observations", "step")
"""Attributes of an environment that every command uses."""


class RslRl(Platform):
    """rsl_rl without a platform: it has no registry and no commands."""

    TITLE = "rsl_rl alone"
    PACKAGES = ("rsl-rl-lib",)
    EXTRA = "train"

    def trained_in(self, folder: Path) -> bool:
        """Return True: it is asked last."""
        return True

    def find_trained(self, checkpoint: Path, task: str | None = None) -> NoReturn:
        """Say how to name an environment, as nothing notes it.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            f"The environment of {checkpoint} is not known: neither Isaac Lab's run.json nor"
            " mjlab's params lie next to it. Name --platform and --task, or for rsl_rl alone"
            " --env module:function, which makes it."
        )

    @contextmanager
    def simulated_env(self, simulation: Simulation) -> Iterator[Any]:
        """Make an environment by ``module:function``, called with ``(num_envs, seed, device)``.

        The module is looked for in the working directory, too. The environment itself clips its
        actions.

        Raises:
            ValueError: If there is no such function, it returns something else, or there are
                overrides.
        """
        if simulation.overrides:
            raise ValueError(f"overrides is {[*simulation.overrides]}, expected none with --env.")
        env = _factory(simulation.task)(simulation.num_envs, simulation.seed, simulation.device)
        if missing := [name for name in USED if not hasattr(env, name)]:
            raise ValueError(
                f"--env is {simulation.task!r}, which returns {env!r}, expected a VecEnv of rsl_rl:"
                f" it lacks {', '.join(missing)}."
            )
        try:
            yield env
        finally:
            getattr(env, "close", lambda: None)()

    def restart(self, env: Any, seed: int) -> Any:
        """Start an episode everywhere.

        Raises:
            ValueError: If an environment is in the midst of an episode.
        """
        import torch

        torch.manual_seed(seed)
        if callable(getattr(env, "seed", None)):  # its random numbers are its own
            env.seed(seed)
        if hasattr(env, "reset"):
            env.reset()
        if env.episode_length_buf.any():
            raise ValueError(
                "episode_length_buf is not 0 everywhere, expected environments that start an"
                " episode when they are made, or have a reset(): only first full episodes count."
            )
        return env.get_observations()


PLATFORM = RslRl()


def _factory(name: str) -> Callable[[int, int, str], Any]:
    """Return the function that ``module:function`` names.

    Raises:
        ValueError: If there is none.
        ModuleNotFoundError: If its module imports something that is missing.
    """
    module_name, _, function_name = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        function = getattr(import_module(module_name), function_name)
        inspect.signature(function).bind(2, 0, "cpu")
        return function
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise
        reason = str(error)
    except (AttributeError, TypeError, ValueError) as error:
        reason = str(error)
    raise ValueError(
        f"--env is {name!r}, expected module:function of a function (num_envs, seed, device):"
        f" {reason}."
    )

"""EnvPool: its tasks on CPU cores; packages register theirs by the entry points below."""

from __future__ import annotations

import json
from ast import literal_eval
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from rsl_tbptt.files import ENV, read_config
from rsl_tbptt.tools.platforms import Platform, Simulation, Trained

GROUP = "envpool.tasks"
"""Entry points: modules with ``TASKS``, functions ``(num_envs, seed, device, **settings)`` by id,
which return an ``EnvPoolEnv``."""


class EnvPool(Platform):
    """EnvPool, which has no commands of its own; ``python -m rsl_tbptt_tasks.envpool`` trains."""

    TITLE = "EnvPool"
    PACKAGES = ("envpool",)
    EXTRA = "envpool"
    TASKS = GROUP

    def trained_in(self, folder: Path) -> bool:
        """Return whether a log folder notes a task of EnvPool."""
        path = folder / ENV
        return path.is_file() and path.read_text("utf-8", "replace").startswith("envpool:")

    def find_trained(self, checkpoint: Path, task: str | None = None) -> Trained:
        """Return the named task, or the one that is noted.

        Raises:
            ValueError: If none is.
        """
        noted = task or read_config(checkpoint.parent / ENV).get("envpool")
        if noted is None:
            raise ValueError(f"--task is missing: {ENV} of {checkpoint} notes no task of EnvPool.")
        return Trained(noted, "")

    @contextmanager
    def simulated_env(self, simulation: Simulation) -> Iterator[Any]:
        """Simulate a task; overrides are ``env.NAME=VALUE``.

        Raises:
            ValueError: If there is no such task, or an override is no setting of it.
        """
        settings: dict[str, Any] = {}
        for word in simulation.overrides:
            names, value = setting(word)
            if len(names) != 2 or names[0] != "env":
                raise ValueError(f"The override is {word!r}, expected env.NAME=VALUE.")
            settings[names[1]] = value
        tasks = registered_tasks()
        if (task := simulation.task) not in tasks:
            raise ValueError(
                f"The task is '{task}', expected one of {sorted(tasks)}: a package that registers"
                " more has to be installed, or installed again since it does."
            )
        made = tasks[task](simulation.num_envs, simulation.seed, simulation.device, **settings)
        with closing(made) as env:
            yield env


PLATFORM = EnvPool()


def setting(word: str) -> tuple[list[str], Any]:
    """Return the names and the value of a setting.

    Args:
        word: ``FIRST.NAME=VALUE`` with a value as in JSON or Python, or else a text.

    Raises:
        ValueError: If there is no value.
    """
    name, equals, text = word.partition("=")
    if not (name and equals):
        raise ValueError(f"The setting is {word!r}, expected NAME=VALUE.")
    for parse in (json.loads, literal_eval):
        with suppress(ValueError, SyntaxError):
            return name.split("."), parse(text)
    return name.split("."), text


def registered_tasks() -> dict[str, Callable[..., Any]]:
    """Return the functions that make the environments of all registered tasks, by id."""
    tasks: dict[str, Callable[..., Any]] = {}
    for point in entry_points(group=GROUP):
        tasks |= point.load().TASKS
    return tasks

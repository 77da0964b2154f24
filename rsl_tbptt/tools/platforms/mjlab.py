"""mjlab: its own environments."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

from rsl_tbptt.files import AGENT, ENV, read_config
from rsl_tbptt.tools.platforms import Platform, Simulation, Trained


class Mjlab(Platform):
    """mjlab, whose registered ids name task and agent."""

    TITLE = "mjlab"
    PACKAGES = ("mjlab", "mujoco", "mujoco-warp", "warp-lang")
    EXTRA = "mjlab"
    TASKS = "mjlab.tasks"
    PROGRAM = "play"
    READS_AFTER_STEP = True

    def trained_in(self, folder: Path) -> bool:
        """Return whether the environment's config in a log folder is of mjlab's form."""
        path = folder / ENV
        # sim.mujoco; Isaac Lab's file of this name has no such section.
        return path.is_file() and "\n  mujoco:" in path.read_text("utf-8", "replace")

    def find_trained(self, checkpoint: Path, task: str | None = None) -> Trained:
        """Return the named task, or the only one whose experiment has the noted name.

        Raises:
            ValueError: If none is named, and mjlab's notes do not tell.
        """
        if task is not None:
            return Trained(task, "")
        registry, agent = _registry(), checkpoint.parent / AGENT
        experiment = read_config(agent).get("experiment_name") if agent.is_file() else None
        tasks, agent_of = registry.list_tasks(), registry.load_rl_cfg
        named = [t for t in tasks if getattr(agent_of(t), "experiment_name", "") == experiment]
        if len(named) == 1:
            return Trained(named[0], "")
        raise ValueError(
            f"--task is missing, expected one of {named or tasks}: mjlab does not note which of"
            f" them {checkpoint} was trained on."
        )

    def registered_agent(self, trained: Trained) -> Mapping[str, Any]:
        """Return the agent of mjlab's registry."""
        return asdict(_registry().load_rl_cfg(trained.task))

    @contextmanager
    def simulated_env(self, simulation: Simulation) -> Iterator[Any]:
        """Simulate a task; overrides are ``env.NAME=VALUE``, dotted as in mjlab's configs.

        Raises:
            ValueError: If there is no such task, or an override names no setting of it.
        """
        registry, task = _registry(), simulation.task
        if task not in registry.list_tasks():
            raise ValueError(f"The task is '{task}', expected one of {registry.list_tasks()}.")
        cfg = registry.load_env_cfg(task)
        for word in simulation.overrides:
            override(cfg, word)
        cfg.scene.num_envs, cfg.seed = simulation.num_envs, simulation.seed
        made = import_module("mjlab.envs").ManagerBasedRlEnv(cfg, simulation.device)
        wrapper = import_module("mjlab.rl").RslRlVecEnvWrapper
        with closing(wrapper(made, clip_actions=simulation.clip_actions)) as env:
            yield env

    def mujoco_spec(self, env: Any) -> Any:
        """Return the scene with the options of the simulation."""
        spec, options = env.unwrapped.scene.spec.copy(), env.unwrapped.sim.mj_model.opt
        for name in dir(options):
            if not name.startswith("_") and not callable(getattr(options, name)):
                setattr(spec.option, name, getattr(options, name))
        return spec


PLATFORM = Mjlab()


def _registry() -> Any:
    """Return mjlab's registry of tasks, filled. It takes seconds, and only environments need it."""
    import_module("mjlab.tasks")
    return import_module("mjlab.tasks.registry")


def override(env_cfg: Any, word: str) -> None:
    """Set one setting of an environment's config.

    Args:
        env_cfg: The config: objects and dictionaries.
        word: ``env.NAME=VALUE`` with dots in the name, such as
            ``env.commands.motion.motion_file=walk.npz``. The value has to be of the type that
            stands there.

    Raises:
        ValueError: If there is no such setting, or the value is of another type.
    """
    name, _, text = word.partition("=")
    first, *keys = name.split(".")
    if first != "env" or not keys or "=" not in word:
        raise ValueError(f"The override is {word!r}, expected env.NAME=VALUE.")
    place, settings, known = env_cfg, {}, "env"
    for key in keys:
        settings = place if isinstance(place, dict) else getattr(place, "__dict__", {})
        if key not in settings:
            near = get_close_matches(key, map(str, settings), cutoff=0.0)
            raise ValueError(
                f"The override is {word!r}, and {known} has no {key!r}, expected a name such as"
                f" {near}."
            )
        place, known = settings[key], f"{known}.{key}"
    settings[keys[-1]] = _as_type_of(place, text, word)


def _as_type_of(old: Any, text: str, word: str) -> Any:
    """Return a text as a value of the type that another one has; any plain one in place of None.

    Raises:
        ValueError: If it is none.
    """
    if isinstance(old, str):
        return text
    constants = {"true": True, "false": False, "null": None, "none": None}
    try:
        value = constants[text.lower()] if text.lower() in constants else literal_eval(text)
    except (ValueError, SyntaxError):
        value = text
    if isinstance(old, (list, tuple)) and isinstance(value, (list, tuple)):
        return type(old)(value)
    if isinstance(old, float) and type(value) is int:
        return float(value)
    if old is None or value is None or type(value) is type(old):
        return value
    raise ValueError(f"The override is {word!r}, expected a {type(old).__name__} such as {old!r}.")

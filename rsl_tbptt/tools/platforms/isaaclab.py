"""Isaac Lab 3.0: its own environments and commands."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from rsl_tbptt.tools.platforms import Platform, Simulation, Trained

PHYSICS = "physics=newton_mjwarp"
"""The backend that runs without Isaac Sim, with or without a GPU."""
MANIFEST = "run.json"
"""Isaac Lab's note of a training, next to its checkpoints."""
OWN_TASKS = "Tbptt-"
"""Start of the ids of this repository's tasks, which all offer that backend."""


class IsaacLab(Platform):
    """Isaac Lab, on the physics backend that needs no Isaac Sim."""

    TITLE = "Isaac Lab"
    PACKAGES = ("isaaclab", "newton", "mujoco-warp", "warp-lang")
    EXTRA = "isaaclab"
    TASKS = "isaaclab.tasks"
    PROGRAM = "isaaclab"
    DEFAULT_AGENT = "rsl_rl_cfg_entry_point"

    def trained_in(self, folder: Path) -> bool:
        """Return whether Isaac Lab noted its training in a log folder."""
        return (folder / MANIFEST).is_file()

    def find_trained(self, checkpoint: Path, task: str | None = None) -> Trained:
        """Read Isaac Lab's note of a training.

        Raises:
            ValueError: If there is none, or one of another library's training.
        """
        path = checkpoint.parent / MANIFEST
        try:
            manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            library, noted = manifest["library"], task or manifest["task"]
            agent = manifest.get("metadata", {}).get("agent", self.DEFAULT_AGENT)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"'{path}' cannot be read as Isaac Lab's note of a training ({error!r}): name a"
                " checkpoint in a log folder of `isaaclab train`."
            ) from error
        if library != "rsl_rl":
            raise ValueError(f"{path}: library is {library!r}, expected 'rsl_rl'.")
        are_names = isinstance(noted, str) and isinstance(agent, str)
        if not are_names or (task is None and ":" in noted):
            raise ValueError(
                f"{path}: task is {noted!r}, expected a registered id: the module before a colon"
                f" would be imported. If you trust it, name it, with --task {noted}."
            )
        return Trained(noted, agent)

    def registered_agent(self, trained: Trained) -> Mapping[str, Any]:
        """Return the agent of Isaac Lab's registry, in the form of the installed rsl_rl."""
        from isaaclab_tasks.utils.parse_cfg import load_cfg_from_registry

        _load_tasks(trained.task)
        cfg: Any = load_cfg_from_registry(trained.task, trained.agent)
        return cfg if isinstance(cfg, dict) else _without_old_options(cfg).to_dict()

    @contextmanager
    def simulated_env(self, simulation: Simulation) -> Iterator[Any]:
        """Launch the simulator with a task."""
        # Imported here because they load the simulator, which writing commands does not need.
        import gymnasium as gym
        from isaaclab.app import launch_simulation
        from isaaclab_rl.rsl_rl import RslRlVecEnvWrapper
        from isaaclab_tasks.utils import resolve_task_config

        task, device, overrides = simulation.task, simulation.device, simulation.overrides
        _load_tasks(task)
        own = [] if any(word.startswith("physics=") for word in overrides) else physics(task)
        cfg: Any = resolve_task_config(task, None, overrides=[*own, *overrides])[0]
        cfg.scene.num_envs, cfg.seed, cfg.sim.device = simulation.num_envs, simulation.seed, device
        with launch_simulation(cfg, {"device": device}):
            made: Any = gym.make(task, cfg=cfg)
            with closing(RslRlVecEnvWrapper(made, clip_actions=simulation.clip_actions)) as env:
                yield env


PLATFORM = IsaacLab()


def _without_old_options(agent: Any) -> Any:
    """Return an agent's config in the form of the installed rsl_rl, as `isaaclab train` does."""
    from importlib.metadata import version

    import isaaclab_rl.rsl_rl as configs

    convert = getattr(configs, "handle_deprecated_rsl_rl_cfg", None)  # Isaac Lab 3.1 has none
    return convert(agent, version("rsl-rl-lib")) if convert else agent


def placement(task: str, device: str) -> list[str]:
    """Return the arguments that choose a task's physics backend and its device."""
    return [*physics(task), "--device", device, f"agent.device={device}"]


def physics(task: str) -> list[str]:
    """Return the argument that chooses the physics backend; none where a task offers no choice.

    Isaac Lab refuses the argument for a task whose config names its backend itself.
    """
    if task.startswith(OWN_TASKS):
        return [PHYSICS]
    # Imported here because it takes seconds, which this repository's own tasks do not need.
    from isaaclab.cli import load_external_tasks
    from isaaclab_tasks.utils.preset_cli import enumerate_task_presets

    load_external_tasks()
    selector, _, backend = PHYSICS.partition("=")
    presets = enumerate_task_presets(task) or {}
    offered = {
        name for target, names in presets.items() if target.value == selector for name in names
    }
    return [PHYSICS] if backend in offered else []


def _load_tasks(task: str) -> None:
    """Register the tasks of Isaac Lab and of installed packages.

    Raises:
        ValueError: If the task is not among them.
    """
    import gymnasium as gym
    import isaaclab_tasks  # noqa: F401, registers its own
    from isaaclab.cli import load_external_tasks

    load_external_tasks()
    try:
        gym.spec(task.rpartition(":")[2])  # what is in front of a colon is imported later
    except gym.error.Error as error:
        raise ValueError(
            f"The task is {task!r}, expected a registered id of an installed package: {error}"
        ) from error

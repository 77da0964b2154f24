"""Isaac Lab 3.0: its own environments and commands; see :class:`rsl_tbptt.platforms.Platform`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rsl_tbptt.platforms import Trained, Training

TITLE = "Isaac Lab"
EXTRA = "isaaclab"
TASKS = "isaaclab.tasks"
PROGRAM = "isaaclab"
PACKAGES = ("isaaclab", "newton", "mujoco-warp", "warp-lang")
PHYSICS = "physics=newton_mjwarp"
"""The backend that runs without Isaac Sim, with or without a GPU."""
MANIFEST = "run.json"
DEFAULT_AGENT = "rsl_rl_cfg_entry_point"
"""What `isaaclab train` takes where it is given no agent."""
OWN_TASKS = "Tbptt-"
"""Start of the ids of this repository's tasks, which all offer that backend."""


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


def trained_here(checkpoint: Path) -> bool:
    """Return whether Isaac Lab noted its training beside a checkpoint."""
    return (checkpoint.parent / MANIFEST).is_file()


def find_trained(checkpoint: Path, task: str | None = None) -> Trained:
    """Read what Isaac Lab noted; see :class:`rsl_tbptt.platforms.Platform`.

    Raises:
        ValueError: If there is no note, or one of another library's training.
    """
    path = checkpoint.parent / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        library = manifest["library"]
        trained = Trained(
            task or manifest["task"], manifest.get("metadata", {}).get("agent", DEFAULT_AGENT)
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"'{path}' cannot be read as Isaac Lab's note of a training ({error!r}): name a"
            " checkpoint in a log folder of `isaaclab train`, or the task with --task."
        ) from error
    if library != "rsl_rl":
        raise ValueError(f"{path}: library is {library!r}, expected 'rsl_rl'.")
    return trained


@contextmanager
def simulated_env(
    task: str,
    *,
    num_envs: int,
    seed: int,
    device: str,
    clip_actions: float | None,
    overrides: Sequence[str],
) -> Iterator[Any]:
    """Launch the simulator with a task; see :class:`rsl_tbptt.platforms.Platform`."""
    # Imported here because they load the simulator, which writing commands does not need.
    import gymnasium as gym
    from isaaclab.app import launch_simulation
    from isaaclab.cli import load_external_tasks
    from isaaclab_rl.rsl_rl import RslRlVecEnvWrapper
    from isaaclab_tasks.utils import resolve_task_config

    load_external_tasks()
    env_cfg: Any = resolve_task_config(task, None, overrides=[*physics(task), *overrides])[0]
    env_cfg.scene.num_envs = num_envs
    env_cfg.sim.device = device
    env_cfg.seed = seed
    with launch_simulation(env_cfg, {"device": device}):
        made: Any = gym.make(task, cfg=env_cfg)
        env = RslRlVecEnvWrapper(made, clip_actions=clip_actions)
        try:
            yield env
        finally:
            env.close()


def restart(env: Any, seed: int) -> Any:
    """Start an episode everywhere; see :class:`rsl_tbptt.platforms.Platform`."""
    env.seed(seed)
    obs, _ = env.reset()
    return obs


def step_seconds(env: Any) -> float:
    """Return the duration of a step."""
    return env.unwrapped.step_dt


def joint_reader(env: Any, num_envs: int) -> Callable[[], dict[str, list[float]]]:
    """Return a function that reads the joints of the articulation named ``robot``."""
    robot = env.unwrapped.scene["robot"]

    def read() -> dict[str, list[float]]:
        positions = robot.data.joint_pos.torch[:num_envs]
        return dict(zip(robot.joint_names, positions.T.tolist(), strict=True))

    return read


def task_id(task: str, agent: str) -> str:
    """Return the task itself: its agents are keys of its registration."""
    return task


def train_command(training: Training, *, device: str) -> list[str]:
    """Write `isaaclab train`; see :class:`rsl_tbptt.platforms.Platform`."""
    command = ["isaaclab", "train", "--rl_library", "rsl_rl", "--task", training.task]
    command += ["--agent", training.agent]
    if training.checkpoint is not None:
        command += ["--checkpoint", str(training.checkpoint)]
    command += ["--num_envs", str(training.num_envs)]
    command += ["--max_iterations", str(training.iterations)]
    command += ["--seed", str(training.seed), "--run_name", training.run_name]
    return [*command, *placement(training.task, device)]


def play_command(trained: Trained, checkpoint: Path, *, num_envs: int, device: str) -> list[str]:
    """Write `isaaclab play`; see :class:`rsl_tbptt.platforms.Platform`."""
    command = ["isaaclab", "play", "--rl_library", "rsl_rl", "--task", trained.task]
    command += ["--agent", trained.agent, "--checkpoint", str(checkpoint)]
    return [*command, "--num_envs", str(num_envs), *placement(trained.task, device)]

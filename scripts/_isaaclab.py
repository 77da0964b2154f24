"""Isaac Lab 3.0: its own commands and environments; see :class:`_platform.Platform`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _preset import Policy

PACKAGES = ("isaaclab", "newton", "mujoco-warp", "warp-lang")
PHYSICS = "physics=newton_mjwarp"
"""The backend that runs without Isaac Sim, with or without a GPU."""
MANIFEST = "run.json"
OWN_TASKS = "Tbptt-"
"""Start of the ids of this repository's tasks, which all offer that backend."""


def task_id(task: str, agent: str) -> str:
    """Return the task itself: its agents are keys of its registration."""
    return task


def train_command(
    policy: Policy,
    *,
    task: str,
    num_envs: int,
    run_name: str,
    device: str,
    checkpoint: str | None = None,
) -> list[str]:
    """Write the command that trains one policy; see :class:`_platform.Platform`."""
    command = ["isaaclab", "train", "--rl_library", "rsl_rl", "--task", task]
    command += ["--agent", policy.agent]
    if checkpoint is not None:
        command += ["--checkpoint", checkpoint]
    command += ["--num_envs", str(num_envs), "--max_iterations", str(policy.iterations)]
    command += ["--seed", str(policy.seed), "--run_name", run_name]
    return [*command, *placement(task, device), *policy.overrides]


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


def run_manifest(checkpoint: Path) -> dict[str, Any] | None:
    """Read what Isaac Lab notes of a training beside its checkpoints: task, agent and more.

    Args:
        checkpoint: ``model_<iteration>.pt`` in a log folder.

    Returns:
        The note, or None where there is none.
    """
    manifest = checkpoint.parent / MANIFEST
    return json.loads(manifest.read_text(encoding="utf-8")) if manifest.is_file() else None


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
    """Launch the simulator with a task; see :class:`_platform.Platform`."""
    # Imported here because they load the simulator, which writing commands does not need.
    import gymnasium as gym
    from isaaclab.app import launch_simulation
    from isaaclab.cli import load_external_tasks
    from isaaclab_rl.rsl_rl import RslRlVecEnvWrapper
    from isaaclab_tasks.utils import resolve_task_config

    load_external_tasks()
    env_cfg, _ = resolve_task_config(task, None, overrides=[*physics(task), *overrides])
    env_cfg.scene.num_envs = num_envs
    env_cfg.sim.device = device
    env_cfg.seed = seed
    with launch_simulation(env_cfg, {"device": device}):
        env = RslRlVecEnvWrapper(gym.make(task, cfg=env_cfg), clip_actions=clip_actions)
        try:
            yield env
        finally:
            env.close()


def joint_reader(env: Any, num_envs: int) -> Callable[[], dict[str, list[float]]]:
    """Return a function that reads the joints of the articulation named ``robot``."""
    robot = env.unwrapped.scene["robot"]

    def read() -> dict[str, list[float]]:
        positions = robot.data.joint_pos.torch[:num_envs]
        return dict(zip(robot.joint_names, positions.T.tolist(), strict=True))

    return read

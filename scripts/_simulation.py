"""An Isaac Lab environment without the training around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import torch
from _isaaclab import PHYSICS


@contextmanager
def simulated_env(
    task: str, *, num_envs: int, seed: int, device: str, clip_actions: float | None
) -> Iterator[Any]:
    """Launch the simulator with a task as it is in training, noise and randomisation included.

    Args:
        task: Registered task id.
        num_envs: Environments to simulate.
        seed: Seed of everything drawn while the environment is built.
        device: Device of the simulation.
        clip_actions: Bound of the actions as in training, or None.

    Yields:
        The environment in rsl_rl's form.
    """
    # Imported here because they load the simulator, which --help does not need.
    from isaaclab.app import launch_simulation
    from isaaclab.cli import load_external_tasks
    from isaaclab_rl.rsl_rl import RslRlVecEnvWrapper
    from isaaclab_tasks.utils import resolve_task_config

    load_external_tasks()
    env_cfg, _ = resolve_task_config(task, None, overrides=[PHYSICS])
    env_cfg.scene.num_envs = num_envs
    env_cfg.sim.device = device
    env_cfg.seed = seed
    with launch_simulation(env_cfg, {"device": device}):
        env = RslRlVecEnvWrapper(gym.make(task, cfg=env_cfg), clip_actions=clip_actions)
        try:
            yield env
        finally:
            env.close()


def joint_reader(env: Any, num_envs: int) -> Callable[[], dict[str, list[float]]]:  # noqa: ANN401
    """Return a function that reads the joint positions of the first environments.

    Args:
        env: Environment with an articulation named ``robot``.
        num_envs: How many environments.

    Returns:
        A function to lists of ``num_envs`` positions by joint name, in m or rad.
    """
    robot = env.unwrapped.scene["robot"]

    def read() -> dict[str, list[float]]:
        positions: torch.Tensor = robot.data.joint_pos.torch[:num_envs]
        return dict(zip(robot.joint_names, positions.T.tolist(), strict=True))

    return read

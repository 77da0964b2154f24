"""mjlab: its own commands and environments; see :class:`_platform.Platform`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _preset import Policy

PACKAGES = ("mjlab", "mujoco", "mujoco-warp", "warp-lang")
LOG_ROOT = Path("logs", "rsl_rl")
"""Where mjlab logs, below the working directory, if it is not told otherwise."""


def task_id(task: str, agent: str) -> str:
    """Return ``<task>-<agent>``: mjlab has one agent per id."""
    return f"{task}-{agent}"


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
    command = ["train", task_id(task, policy.agent), "--env.scene.num-envs", str(num_envs)]
    command += ["--agent.max-iterations", str(policy.iterations)]
    command += ["--agent.seed", str(policy.seed), "--agent.run-name", run_name]
    if checkpoint is not None:
        command += _resume(Path(checkpoint))
    return [*command, "--gpu-ids", _gpu_ids(device), *policy.overrides]


def _resume(checkpoint: Path) -> list[str]:
    """Return the arguments that load ``<log root>/<experiment>/<run>/<file>`` before training."""
    log_root = checkpoint.parent.parent.parent
    arguments = [] if log_root == LOG_ROOT else ["--log-root", str(log_root)]
    run = ["--agent.load-run", checkpoint.parent.name, "--agent.load-checkpoint", checkpoint.name]
    return [*arguments, "--agent.resume", "True", *run]


def _gpu_ids(device: str) -> str:
    """Write a device as mjlab's list of GPUs; None is the CPU."""
    return "None" if device == "cpu" else f"[{device.removeprefix('cuda:')}]"


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
    """Simulate a task; see :class:`_platform.Platform`.

    Raises:
        ValueError: If there are overrides.
    """
    if overrides:
        raise ValueError(
            f"overrides is {[*overrides]}, expected none: mjlab's tasks have no presets."
        )
    # Imported here because they take seconds, which writing commands does not need.
    import mjlab.tasks  # noqa: F401  # registers mjlab's own
    from mjlab.envs import ManagerBasedRlEnv
    from mjlab.rl import RslRlVecEnvWrapper
    from mjlab.tasks.registry import load_env_cfg

    env_cfg = load_env_cfg(task)
    env_cfg.scene.num_envs = num_envs
    env_cfg.seed = seed
    env = RslRlVecEnvWrapper(ManagerBasedRlEnv(env_cfg, device), clip_actions=clip_actions)
    try:
        yield env
    finally:
        env.close()


def joint_reader(env: Any, num_envs: int) -> Callable[[], dict[str, list[float]]]:
    """Return a function that reads the joints of the scene's first entity with joints."""
    robot = next(e for e in env.unwrapped.scene.entities.values() if e.num_joints > 0)

    def read() -> dict[str, list[float]]:
        positions = robot.data.joint_pos[:num_envs]
        return dict(zip(robot.joint_names, positions.T.tolist(), strict=True))

    return read

"""The training commands of the platforms that presets name, and what they leave."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rsl_tbptt.platforms.isaaclab import placement
from scripts.pipeline.presets import Policy, Preset

MJLAB_LOG_ROOT = Path("logs", "rsl_rl")
"""Where mjlab logs, below the working directory, if it is not told otherwise."""


def task_id(preset: Preset, agent: str) -> str:
    """Return the id under which the platform knows a preset's task.

    Args:
        preset: The preset.
        agent: A policy's agent.

    Returns:
        The task itself in Isaac Lab, whose agents are keys of its registration; ``<task>-<agent>``
        in mjlab, which has one agent per id. Whatever the agent, it has the same environment.
    """
    return f"{preset.task}-{agent}" if preset.platform == "mjlab" else preset.task


def train_command(
    preset: Preset, policy: Policy, *, run_name: str, device: str, checkpoint: str | None = None
) -> list[str]:
    """Write the command that trains one policy.

    Args:
        preset: Platform, task and number of environments.
        policy: Agent, iterations, seed and overrides.
        run_name: Suffix of the log folder.
        device: Device of simulation and learning, for example ``cpu`` or ``cuda:0``.
        checkpoint: File of the policy to start from, or None to train from scratch.

    Returns:
        The command as a user would type it.
    """
    write = COMMANDS[preset.platform]
    command = write(preset, policy, run_name, device, checkpoint)
    return [*command, *policy.overrides]


def _isaaclab(
    preset: Preset, policy: Policy, run_name: str, device: str, checkpoint: str | None
) -> list[str]:
    """Write Isaac Lab's command."""
    command = ["isaaclab", "train", "--rl_library", "rsl_rl", "--task", preset.task]
    command += ["--agent", policy.agent]
    if checkpoint is not None:
        command += ["--checkpoint", checkpoint]
    command += ["--num_envs", str(preset.num_envs), "--max_iterations", str(policy.iterations)]
    command += ["--seed", str(policy.seed), "--run_name", run_name]
    return [*command, *placement(preset.task, device)]


def _mjlab(
    preset: Preset, policy: Policy, run_name: str, device: str, checkpoint: str | None
) -> list[str]:
    """Write mjlab's command."""
    command = ["train", task_id(preset, policy.agent)]
    command += ["--env.scene.num-envs", str(preset.num_envs)]
    command += ["--agent.max-iterations", str(policy.iterations)]
    command += ["--agent.seed", str(policy.seed), "--agent.run-name", run_name]
    if checkpoint is not None:
        command += _resume(Path(checkpoint))
    gpus = "None" if device == "cpu" else f"[{device.removeprefix('cuda:')}]"
    return [*command, "--gpu-ids", gpus]


def _resume(checkpoint: Path) -> list[str]:
    """Return mjlab's arguments that load ``<log root>/<experiment>/<run>/<file>``."""
    log_root = checkpoint.parent.parent.parent
    arguments = [] if log_root == MJLAB_LOG_ROOT else ["--log-root", str(log_root)]
    run = ["--agent.load-run", checkpoint.parent.name, "--agent.load-checkpoint", checkpoint.name]
    return [*arguments, "--agent.resume", "True", *run]


COMMANDS: dict[str, Callable[[Preset, Policy, str, str, str | None], list[str]]] = {
    "isaaclab": _isaaclab,
    "mjlab": _mjlab,
}
"""What writes the command, by platform."""


def find_checkpoint(folder: Path, run_name: str, iteration: int, since: float = 0.0) -> Path:
    """Find the checkpoint that a finished training left; all platforms log alike.

    Isaac Lab ends an interrupted training with success, so the last iteration's checkpoint is the
    proof that it ran to its end.

    Args:
        folder: Working directory of the training.
        run_name: Suffix of the log folder.
        iteration: Number of the last iteration, counted from 0.
        since: Ignore older files. In seconds since the epoch.

    Returns:
        Path of the newest one.

    Raises:
        FileNotFoundError: If there is none.
    """
    pattern = f"logs/rsl_rl/*/*_{run_name}/model_{iteration}.pt"
    found = [path for path in folder.glob(pattern) if path.stat().st_mtime >= since]
    if not found:
        raise FileNotFoundError(
            f"{pattern} was not found in {folder}: the training did not reach its last iteration."
        )
    return max(found, key=lambda path: path.stat().st_mtime)

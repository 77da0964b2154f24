"""The training command of a preset's policy, and what it leaves."""

from pathlib import Path

from rsl_tbptt.platforms import Training, load_platform
from scripts.pipeline.presets import Policy, Preset

PLACE = "{checkpoint}"


def train_command(
    preset: Preset, policy: Policy, *, run_name: str, device: str, checkpoint: str | None = None
) -> list[str]:
    """Write the command that trains one policy.

    Args:
        preset: Platform, task and number of environments.
        policy: Agent, iterations, seed and overrides, which may say where the checkpoint goes.
        run_name: Suffix of the log folder.
        device: Device of simulation and learning, for example ``cpu`` or ``cuda:0``.
        checkpoint: File of the policy to start from, or None to train from scratch.

    Returns:
        The command as a user would type it.
    """
    overrides = [o.replace(PLACE, checkpoint or PLACE) for o in policy.overrides]
    training = Training(
        task=preset.task,
        agent=policy.agent,
        num_envs=preset.num_envs_of(policy),
        iterations=policy.iterations,
        seed=policy.seed,
        run_name=run_name,
        checkpoint=Path(checkpoint) if checkpoint and overrides == policy.overrides else None,
    )
    command = load_platform(preset.platform).train_command(training, device=device)
    return [*command, *policy.task_overrides, *overrides]


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
    time = "????-??-??_??-??-??"  # not *, which also takes the beginning of another run's name
    pattern = f"logs/rsl_rl/*/{time}_{run_name}/model_{iteration}.pt"
    found = [path for path in folder.glob(pattern) if path.stat().st_mtime >= since]
    if not found:
        raise FileNotFoundError(
            f"{pattern} was not found in {folder}: the training did not reach its last iteration."
        )
    return max(found, key=lambda path: path.stat().st_mtime)

"""Play a checkpoint with the platform's own command, with the task and agent of its training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rsl_tbptt.platforms import load_platform, platform_of
from rsl_tbptt.platforms.commands import run_shown


def play(
    checkpoint: Path,
    *,
    task: str | None = None,
    num_envs: int = 16,
    device: str = "cpu",
    further: Sequence[str] = (),
) -> int:
    """Show and run the platform's command until it ends.

    Args:
        checkpoint: ``model_<iteration>.pt`` in a log folder of Isaac Lab or mjlab.
        task: Registered id. None takes the one that the policy was trained on.
        num_envs: Environments to show.
        device: Device of the simulation, ``cpu`` or ``cuda:<index>``.
        further: Arguments that go on to the command.

    Returns:
        Its exit status.

    Raises:
        ValueError: If there is no such file, or nothing tells on what it was trained.
        FileNotFoundError: If the platform is not installed.
    """
    checkpoint = checkpoint.resolve()
    platform = load_platform(platform_of(checkpoint))
    if platform.PROGRAM is None:
        raise ValueError(
            f"{checkpoint} was trained by {platform.TITLE}, which has no play command, expected a"
            " checkpoint of Isaac Lab or mjlab."
        )
    trained = platform.find_trained(checkpoint, task)
    command = platform.play_command(trained, checkpoint, num_envs=num_envs, device=device)
    return run_shown([*command, *further], Path.cwd(), device)

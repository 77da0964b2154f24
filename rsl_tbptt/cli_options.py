"""The options of the command ``rsl-tbptt``; nothing here is slow to import."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from rsl_tbptt.platforms import PLATFORMS


def add_doctor(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``doctor``."""
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        metavar="RUN",
        help="log folder of a training: say what looks wrong with it instead, and what to try",
    )
    parser.add_argument("--output", type=Path, default=Path(), help="folder to write to")
    _add_device(parser)


def add_evaluate(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``evaluate``."""
    _add_checkpoint(parser)
    parser.add_argument(
        "--output",
        type=Path,
        metavar="JSON",
        help="by default a new evaluation.json beside the checkpoint",
    )
    where = parser.add_argument_group("where it is evaluated, if not where it was trained")
    where.add_argument("--platform", choices=PLATFORMS, help="what simulates the task")
    where.add_argument("--task", help="registered id")
    where.add_argument(
        "--env",
        metavar="MODULE:FUNCTION",
        help="rsl_rl alone: function (num_envs, seed, device) that returns a VecEnv",
    )
    where.add_argument(
        "--overrides",
        nargs="+",
        default=[],
        help="of Isaac Lab's task: presets=depth renderer=newton_renderer env.NAME=VALUE; numbers"
        " that the training changed are taken from its params/env.yaml",
    )
    parser.add_argument("--episodes", type=int, default=256, help="one per environment (256)")
    parser.add_argument(
        "--max-steps",
        type=int,
        help="after which an episode counts as it stands (one more than max_episode_length)",
    )
    parser.add_argument("--seed", type=int, default=1000, help="of the environments (1000)")
    _add_device(parser)


def add_export(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``export``."""
    _add_checkpoint(parser)
    parser.add_argument(
        "--image",
        type=image_size,
        action="append",
        metavar="GROUP=CxHxW",
        help="size of the images that a CNN trained by rsl_rl alone sees; one for each group",
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="folder, whose files are replaced (a new one, RUN/exported/model_<iteration>)",
    )
    parser.add_argument("--parity-steps", type=int, default=64, help="steps compared (64)")
    parser.add_argument(
        "--tolerance", type=float, default=1e-4, help="largest difference that passes (1e-4)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the observations compared on (0)")


def add_play(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``play``."""
    parser.epilog = (
        "Other arguments go on to the platform's command: --viz newton for a window. With --video"
        " they are settings of the task: env.episode_length_s=4."
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        action="append",
        required=True,
        help="model_<iteration>.pt, or RUN/latest; with --video also several, one column each",
    )
    parser.add_argument("--task", help="registered id, by default that of the training")
    parser.add_argument("--num-envs", type=int, help="environments to show (16, with --video 2)")
    parser.add_argument(
        "--video",
        type=Path,
        metavar="FILE",
        help="render the robots into a GIF or WebP file instead, without a screen",
    )
    _add_trust(parser)
    _add_device(parser)
    parser.set_defaults(further=())


def _add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Add what names a policy."""
    parser.add_argument(
        "--checkpoint",
        type=Path,
        required=True,
        help="model_<iteration>.pt, or RUN/latest for the newest that can be loaded",
    )
    parser.add_argument(
        "--agent",
        type=Path,
        metavar="YAML",
        help="the training's config, where no params/agent.yaml lies beside the checkpoint"
        " (rsl_rl alone); what the parameters show may be missing: 'actor: {activation: elu}'",
    )
    _add_trust(parser)


def _add_trust(parser: argparse.ArgumentParser) -> None:
    """Add what the user trusts."""
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="load classes of this package too, where the checkpoint or its config names them;"
        " one for each",
    )


def _add_device(parser: argparse.ArgumentParser) -> None:
    """Add the device."""
    parser.add_argument("--device", default="cpu", help="cpu or cuda:<index>")


def image_size(argument: str) -> tuple[str, tuple[int, ...]]:
    """Read ``GROUP=CxHxW``.

    Args:
        argument: A word of the command line.

    Returns:
        The group, and channels, height and width.

    Raises:
        argparse.ArgumentTypeError: If it is something else.
    """
    group, _, size = argument.rpartition("=")
    if not (group and re.fullmatch(r"\d+x\d+x\d+", size)):
        raise argparse.ArgumentTypeError(f"{argument!r}, expected for example camera=3x64x64.")
    return group, tuple(map(int, size.split("x")))

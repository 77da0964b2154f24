"""The command ``rsl-tbptt``: what is done with checkpoints of Isaac Lab, mjlab and rsl_rl alone."""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rsl_tbptt.checkpoints.reading import checkpoint_file
from rsl_tbptt.tools.doctor import TOOLS, diagnose, install
from rsl_tbptt.tools.platforms import PLATFORMS, platform_of

Arguments = argparse.Namespace

DESCRIPTION = "What is done with checkpoints of Isaac Lab, mjlab and rsl_rl alone."

EXTRAS = {
    "isaaclab": "isaaclab",
    "isaaclab_rl": "isaaclab",
    "isaaclab_tasks": "isaaclab",
    "gymnasium": "isaaclab",
    "mjlab": "mjlab",
    **{module: "tools" for modules in TOOLS.values() for module in modules},
}
"""The extra of this package that brings a module."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and say in one line what is wrong with its arguments or files.

    Args:
        arguments: The command line. None takes that of this process.

    Returns:
        The exit status: 0, 1 if the command failed, and argparse's 2 for wrong arguments.
    """
    words = sys.argv[1:] if arguments is None else [*arguments]
    parser = command_parser(words[0] if words else None)
    args, further = parser.parse_known_args(words)
    if further and not hasattr(args, "further"):
        parser.error(f"unrecognized arguments: {' '.join(further)}")
    args.further = further
    try:
        _require(TOOLS.get(args.command, ()))
        return args.run(args)
    except ModuleNotFoundError as error:
        reason = _missing(error)
    except (ValueError, OSError, ImportError) as error:
        reason = str(error)
    print(f"rsl-tbptt {args.command}: {' '.join(reason.split())}", file=sys.stderr)
    return 1


def command_parser(chosen: str | None) -> argparse.ArgumentParser:
    """Return the parser of all commands.

    Args:
        chosen: The command that is about to be parsed; others' modules are left alone.

    Returns:
        A parser whose result has ``command`` and ``run``.
    """
    parser = argparse.ArgumentParser(prog="rsl-tbptt", description=DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (text, add_arguments, run) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        add_arguments(command)
        command.set_defaults(run=run)
    bench = commands.add_parser("bench", help="time and memory of updates next to rsl_rl's")
    if chosen == "bench":
        from rsl_tbptt.tools import bench as benchmark

        bench.description = benchmark.__doc__
        benchmark.add_arguments(bench)
        bench.set_defaults(run=benchmark.run)
    return parser


def run_doctor(args: Arguments) -> int:
    """Check this setup, or a training."""
    if args.folder is not None:
        _require(TOOLS["doctor RUN"])
        from rsl_tbptt.tools.doctor import diagnose_run

        return 0 if diagnose_run(args.folder) else 1
    return 0 if diagnose(args.device, args.output) else 1


def run_evaluate(args: Arguments) -> int:
    """Evaluate a checkpoint, write a JSON file and print the mean return.

    Raises:
        ValueError: If options contradict each other.
    """
    from rsl_tbptt.files import output_path, write_json
    from rsl_tbptt.tools.evaluate import evaluate

    if args.env and (args.task or args.platform):
        raise ValueError("--env is given beside --platform or --task, expected one of both.")
    _check_device(args.device)
    checkpoint = checkpoint_file(args.checkpoint)
    platform_of(checkpoint)  # which says where there is none, before its folder is written to
    output = output_path(args.output, checkpoint.parent / "evaluation.json")
    result = evaluate(
        checkpoint,
        platform_name="rsl_rl" if args.env else args.platform,
        task=args.env or args.task,
        overrides=args.overrides,
        agent=args.agent,
        trust=args.trust,
        episodes=args.episodes,
        max_steps=args.max_steps,
        seed=args.seed,
        device=args.device,
    )
    write_json(output, result)
    low, high = result["confidence_interval"]
    print(f"mean return {result['mean_return']:.3f}, 95 % confidence {low:.3f} to {high:.3f}")
    for name, error in result["auxiliary"].items():
        print(f"auxiliary head {name}: root mean square error {error['rmse']:.4f}")
    print(f"wrote {output}")
    return 0


def run_export(args: Arguments) -> int:
    """Export a checkpoint, and print how far the exports are from the policy.

    Raises:
        ValueError: If it is too far.
    """
    import torch

    from rsl_tbptt.tools.export import export

    parity = export(
        checkpoint_file(args.checkpoint),
        args.output,
        agent=args.agent,
        trust=args.trust,
        images=dict(args.image) if args.image else None,
        parity_steps=args.parity_steps,
        tolerance=args.tolerance,
        seed=args.seed,
    )
    for name, difference in parity["max_difference"].items():
        what = "an action" if name in ("onnx", "torchscript") else "a prediction in ONNX"
        print(f"{name}: largest difference of {what} {difference:.1e}")
    if "torchscript" not in parity["max_difference"]:
        print(f"torchscript: not written, torch {torch.__version__} has given it up")
    if not parity["passed"]:
        raise ValueError(
            f"The largest difference is not within {args.tolerance:.1e}: nothing is written."
        )
    print(f"wrote {parity['output']}")
    return 0


def run_play(args: Arguments) -> int:
    """Play a checkpoint, or write a video of some.

    Raises:
        ValueError: If there are several without a video.
    """
    if args.video is not None:
        return _film(args)
    from rsl_tbptt.tools.play import play

    if len(args.checkpoint) > 1:
        raise ValueError(
            f"--checkpoint is given {len(args.checkpoint)} times, expected one: only --video shows"
            " several beside each other."
        )
    if args.trust:
        raise ValueError(
            f"--trust is {args.trust}, expected it with --video only: the platform's own play"
            " loads the classes of its registered task."
        )
    return play(
        checkpoint_file(args.checkpoint[0]),
        task=args.task,
        num_envs=args.num_envs or 16,
        device=args.device,
        further=args.further,
    )


def _film(args: Arguments) -> int:
    """Write a video.

    Raises:
        ValueError: If an argument is none of the task's settings.
    """
    _require(TOOLS["play --video"])
    from rsl_tbptt.tools.play import record

    if refused := [word for word in args.further if word.startswith("-")]:
        raise ValueError(
            f"The arguments {refused} are unknown, expected with --video only settings of the task"
            " beside those of `rsl-tbptt play`: env.episode_length_s=4."
        )
    _check_device(args.device)
    record(
        [checkpoint_file(path) for path in args.checkpoint],
        args.video,
        task=args.task,
        overrides=args.further,
        trust=args.trust,
        num_envs=args.num_envs or 2,
        device=args.device,
    )
    print(f"wrote {args.video}, {args.video.stat().st_size / 1e6:.2f} MB")
    return 0


def _check_device(device: str) -> None:
    """Check that a device can compute.

    Raises:
        ValueError: If it cannot.
    """
    import torch

    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch without CUDA
        raise ValueError(f"--device is {device}, which cannot compute: {error}") from error


def _require(modules: Sequence[str]) -> None:
    """Check that modules are installed without loading them.

    Raises:
        ModuleNotFoundError: If one is not.
    """
    for name in modules:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(name=name)


def _missing(error: ModuleNotFoundError) -> str:
    """Say which module is missing, and what brings it."""
    name = (error.name or str(error)).partition(".")[0]
    remedy = "install the package that brings this module, or put your own on PYTHONPATH"
    if name in EXTRAS:
        remedy = install(EXTRAS[name])
    return f"The module {name} is missing, expected it for this command: {remedy}"


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


COMMANDS: dict[
    str,
    tuple[str, Callable[[argparse.ArgumentParser], None], Callable[[Arguments], int]],
] = {
    "doctor": ("say what is wrong with this setup, or with a training", add_doctor, run_doctor),
    "evaluate": (
        "evaluate a checkpoint on fresh episodes, without exploration noise",
        add_evaluate,
        run_evaluate,
    ),
    "export": (
        "export a checkpoint to ONNX and TorchScript, and compare both with it",
        add_export,
        run_export,
    ),
    "play": (
        "play a checkpoint with its platform's own command, task and agent",
        add_play,
        run_play,
    ),
}
"""What it says of itself, its options and what it does, by command."""


if __name__ == "__main__":
    raise SystemExit(main())

"""The command ``rsl-tbptt``, for checkpoints of Isaac Lab, mjlab and rsl_rl alone.

Nothing slow is imported before a command is known and its arguments are parsed.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rsl_tbptt.tools.doctor import TOOLS, check_device, diagnose, install
from rsl_tbptt.tools.platforms import PLATFORMS, platform_of

Arguments = argparse.Namespace

DESCRIPTION = "Commands for checkpoints of Isaac Lab, mjlab and rsl_rl alone."

EXTRAS = {
    **dict.fromkeys(("isaaclab", "isaaclab_rl", "isaaclab_tasks", "gymnasium"), "isaaclab"),
    "mjlab": "mjlab",
    **dict.fromkeys(("torch", "rsl_rl", "tensordict"), "train"),
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
    if further and args.command != "play":
        parser.error(f"unrecognized arguments: {' '.join(further)}")
    args.further = further
    try:
        _require(args.command)
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
    for name, (text, run, options) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        for option in options:
            command.add_argument(option.partition(" ")[2] or option, **OPTIONS[option])
        command.set_defaults(run=run)
    commands.choices["play"].epilog = (
        "Other arguments go on to the platform's command: --viz newton for a window. With --video"
        " they are settings of the task: env.episode_length_s=4."
    )
    bench = commands.add_parser("bench", help="time and memory of updates next to rsl_rl's")
    if chosen == "bench":
        from rsl_tbptt.tools import bench as benchmark

        bench.description = benchmark.__doc__
        benchmark.add_arguments(bench)
        bench.set_defaults(run=benchmark.run)
    return parser


def run_doctor(args: Arguments) -> int:
    """Check this setup, or a training."""
    if args.folder is None:
        return 0 if diagnose(args.device, args.output) else 1
    _require("doctor RUN")
    from rsl_tbptt.tools.run_doctor import diagnose_run

    return 0 if diagnose_run(args.folder) else 1


def run_report(args: Arguments) -> int:
    """Write a page about trainings."""
    from rsl_tbptt.tools.report import report

    print(f"wrote {report(args.runs, args.output)}")
    return 0


def run_evaluate(args: Arguments) -> int:
    """Evaluate a checkpoint, write a JSON file and print the mean return.

    Raises:
        ValueError: If options contradict each other.
    """
    from rsl_tbptt.checkpoints.reading import checkpoint_file
    from rsl_tbptt.files import output_path, write_json
    from rsl_tbptt.tools.evaluate import evaluate

    where = _where(args)
    if args.checkpoint is None and args.policy is None:
        raise ValueError("--checkpoint is missing, expected it or --policy.")
    check_device(args.device)
    if args.checkpoint is None:
        from rsl_tbptt.tools.bundle_policy import checkpoint_of

        args.checkpoint = checkpoint_of(args.policy)
    checkpoint = checkpoint_file(args.checkpoint)
    platform_of(checkpoint)  # which says where there is none, before its folder is written to
    output = output_path(args.output, checkpoint.parent / "evaluation.json")
    result = evaluate(
        checkpoint,
        bundle=args.policy,
        form=args.form,
        **where,
        **_given(args, "agent", "trust", "episodes", "max_steps", "seed"),
    )
    write_json(output, result)
    low, high = result["confidence_interval"]
    print(f"mean return {result['mean_return']:.3f}, 95 % confidence {low:.3f} to {high:.3f}")
    if "success_rate" in result:
        print(f"success rate {result['success_rate']:.3f}")
    for name, share in result.get("ended_by", {}).items():
        print(f"ended by {name}: {share:.1%} of episodes")
    for name, error in result["auxiliary"].items():
        print(f"auxiliary head {name}: root mean square error {error['rmse']:.4f}")
    print(f"wrote {output}")
    return 0


def run_export(args: Arguments) -> int:
    """Write a checkpoint's bundle, and print how far its files are from the policy.

    Raises:
        ValueError: If it is too far.
    """
    from rsl_tbptt.checkpoints.reading import checkpoint_file
    from rsl_tbptt.tools.export import export

    check_device(args.device)
    bundle = export(
        checkpoint_file(args.checkpoint),
        args.output,
        images=dict(args.image),
        **_where(args),
        **_given(args, "agent", "trust", "single_input", "steps", "tolerance", "seed", "drawn"),
        target=args.target,
    )
    print(f"golden trajectory: {bundle['golden']}")
    _print_differences(bundle["max_difference"])
    if bundle["output"] is None:
        raise ValueError(
            f"The largest difference is not within {args.tolerance:.1e}: nothing is written."
        )
    print(f"wrote {bundle['output']}")
    return 0


def run_verify(args: Arguments) -> int:
    """Replay a bundle's golden trajectory, or a robot's log, and print what differs.

    Raises:
        ValueError: If it is too far from the policy, or the log shows a fault.
    """
    if args.log is not None:
        return _verify_log(args.bundle, args.log)
    from rsl_tbptt.tools.verify import verify

    differences = verify(args.bundle)
    _print_differences(differences)
    if not all(difference <= args.tolerance for difference in differences.values()):
        raise ValueError(
            f"The largest difference is not within {args.tolerance:.1e}: the files are not of the"
            " policy that the golden trajectory was recorded with. Export it again."
        )
    return 0


def _verify_log(bundle: Path, log: Path) -> int:
    from rsl_tbptt.tools.robot_log import diagnose_log

    found = diagnose_log(bundle, log)
    for name, difference in found.differences.items():
        print(f"{name}: largest difference {difference:.1e}{', faults apart' * bool(found.faults)}")
    for note in found.notes:
        print(f"note: {note}")
    for fault in found.faults:
        print(f"FAULT {fault.kind}: {fault.text}")
    if found.faults:
        raise ValueError(f"The log shows {len(found.faults)} fault(s) of the program on the robot.")
    print("no fault")
    return 0


def _print_differences(differences: Mapping[str, float]) -> None:
    for name, difference in differences.items():
        what = "a prediction in ONNX" if name.startswith("auxiliary/") else "an action"
        print(f"{name}: largest difference of {what} {difference:.1e}")
    if "torchscript" not in differences:
        print("torchscript: not there, newer releases of torch have given it up")


def _where(args: Arguments) -> dict[str, Any]:
    """Return where a policy is simulated.

    Raises:
        ValueError: If options contradict each other.
    """
    if args.env and (args.task or args.platform):
        raise ValueError("--env is given next to --platform or --task, expected one of both.")
    return {
        "platform_name": "rsl_rl" if args.env else args.platform,
        "task": args.env or args.task,
        **_given(args, "overrides", "device"),
    }


def run_play(args: Arguments) -> int:
    """Play a checkpoint, or write a video of some.

    Raises:
        ValueError: If an option is given that only the other one takes.
    """
    from rsl_tbptt.checkpoints.reading import checkpoint_file
    from rsl_tbptt.tools.play import play, record

    checkpoints, video = [checkpoint_file(path) for path in args.checkpoint], args.video
    if video is None:
        if len(checkpoints) > 1 or args.trust:
            raise ValueError(
                "--video is missing, expected it next to --trust or several --checkpoint: the"
                " platform's own play shows one policy and loads the classes of its task."
            )
        options = _given(args, "task", "device", "further")
        return play(checkpoints[0], num_envs=args.num_envs or 16, **options)
    _require("play --video")
    if refused := [word for word in args.further if word.startswith("-")]:
        raise ValueError(
            f"The arguments {refused} are unknown, expected with --video only settings of the"
            " task: env.episode_length_s=4."
        )
    check_device(args.device)
    options = _given(args, "task", "trust", "device")
    record(checkpoints, video, overrides=args.further, num_envs=args.num_envs or 2, **options)
    print(f"wrote {video}, {video.stat().st_size / 1e6:.2f} MB")
    return 0


def run_new(args: Arguments) -> int:
    """Write a package for a task of your own."""
    from rsl_tbptt.tools.new import new

    print(f"wrote {new(args.name, args.platform, args.output)}, whose README.md has its commands")
    return 0


def _given(args: Arguments, *names: str) -> dict[str, Any]:
    return {name: getattr(args, name) for name in names}


def _require(command: str) -> None:
    """Check that a command's modules are installed without loading them.

    Raises:
        ModuleNotFoundError: If one is not.
    """
    for name in TOOLS.get(command, ()):
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(name=name)


def _missing(error: ModuleNotFoundError) -> str:
    """Say which module is missing, and how to install it."""
    name = (error.name or str(error)).partition(".")[0]
    remedy = install(EXTRAS[name]) if name in EXTRAS else "install the package that brings it"
    return f"The module {name} is missing, expected it for this command: {remedy}"


def image_size(argument: str) -> tuple[str, tuple[int, ...]]:
    """Read ``GROUP=CxHxW`` into the group, and channels, height and width.

    Raises:
        argparse.ArgumentTypeError: If it is something else.
    """
    group, _, size = argument.rpartition("=")
    if not (group and re.fullmatch(r"\d+x\d+x\d+", size)):
        raise argparse.ArgumentTypeError(f"{argument!r}, expected for example camera=3x64x64.")
    return group, tuple(map(int, size.split("x")))


def _option(text: str, **options: Any) -> dict[str, Any]:
    return {"help": text, **options}


TARGETS = ("c", "legged_control2", "rl_sar", "unitree", "unitree_gym")
"""The keys of ``rsl_tbptt.tools.targets.TARGETS``, which is slow to import."""
REPEATED: dict[str, Any] = {"action": "append", "default": []}
OPTIONS: dict[str, dict[str, Any]] = {
    "--checkpoint": _option(
        "model_<iteration>.pt, or RUN/latest for the newest", type=Path, required=True
    ),
    "evaluate --checkpoint": _option(
        "likewise; of --policy by default the one it is of", type=Path
    ),
    "--policy": _option(
        "let this bundle of `rsl-tbptt export` act in its place", type=Path, metavar="BUNDLE"
    ),
    "--form": _option("of --policy (onnx)", choices=("onnx", "c"), default="onnx"),
    "--agent": _option(
        "the training's config where none lies beside the checkpoint", type=Path, metavar="YAML"
    ),
    "--trust": _option(
        "load classes of this package, too; repeatable", metavar="PACKAGE", **REPEATED
    ),
    "--device": _option("cpu or cuda:<index>", default="cpu"),
    "doctor folder": _option(
        "log folder of a training to judge instead", type=Path, nargs="?", metavar="RUN"
    ),
    "report runs": _option("log folder of a training", type=Path, nargs="+", metavar="RUN"),
    "report --output": _option(
        "HTML file, which is replaced (report.html in the only RUN, or here for several)", type=Path
    ),
    "doctor --output": _option("folder to write to", type=Path, default=Path()),
    "evaluate --output": _option("a new evaluation.json next to the checkpoint", type=Path),
    "--platform": _option("simulates the task, by default as in training", choices=PLATFORMS),
    "--task": _option("registered id, by default that of the training"),
    "--env": _option(
        "rsl_rl alone: function (num_envs, seed, device) that returns a VecEnv",
        metavar="MODULE:FUNCTION",
    ),
    "--overrides": _option(
        "of Isaac Lab's task: presets=depth env.NAME=VALUE", nargs="+", default=[]
    ),
    "--episodes": _option("one per environment (256)", type=int, default=256),
    "--max-steps": _option(
        "after which an episode counts as it stands (one more than max_episode_length)", type=int
    ),
    "evaluate --seed": _option("of the environments (1000)", type=int, default=1000),
    "--image": _option(
        "size of an image group, repeatable", type=image_size, metavar="GROUP=CxHxW", **REPEATED
    ),
    "export --output": _option(
        "folder, whose files are replaced (a new one, RUN/exported/model_<iteration>)", type=Path
    ),
    "--single-input": _option(
        "ONNX takes one input, obs, of all groups joined", action="store_true"
    ),
    "--target": _option(
        "write a folder for this program, too, repeatable: C99 for microcontrollers, or a program"
        " of docs/howto/runtimes.md",
        choices=TARGETS,
        **REPEATED,
    ),
    "--steps": _option("of the golden trajectory (200)", type=int, default=200),
    "--drawn": _option("draw it instead of simulating the task", action="store_true"),
    "--tolerance": _option("largest difference that passes (1e-4)", type=float, default=1e-4),
    "export --seed": _option("of the golden trajectory (0)", type=int, default=0),
    "verify bundle": _option("folder that `rsl-tbptt export` wrote", type=Path, metavar="BUNDLE"),
    "--log": _option(
        "name what a program on a robot does wrong, by what it logged: .npz or .csv",
        type=Path,
        metavar="LOG",
    ),
    "play --checkpoint": _option(
        "file, or RUN/latest; several with --video", type=Path, action="append", required=True
    ),
    "new name": _option("of the package and its task, a Python identifier", metavar="NAME"),
    "new --platform": _option("that simulates the task", choices=PLATFORMS, required=True),
    "new --output": _option(
        "folder to create (one called NAME, here)", type=Path, metavar="FOLDER"
    ),
    "--num-envs": _option("environments to show (16, with --video 2)", type=int),
    "--video": _option("render the robots into this GIF or WebP file instead", type=Path),
}
"""Options by name; a command stands in front where it has an option of its own by that name."""

POLICY = ("--checkpoint", "--agent", "--trust")
ACTING = ("evaluate --checkpoint", "--policy", "--form")
WHERE = ("--platform", "--task", "--env", "--overrides")
EPISODES = ("--episodes", "--max-steps", "evaluate --seed")
FORMS = ("--single-input", "--target")
GOLDEN = ("--steps", "--drawn", "--tolerance", "export --seed")
COMMANDS: dict[str, tuple[str, Callable[[Arguments], int], Sequence[str]]] = {
    "doctor": (
        "say what is wrong with this setup, or with a training",
        run_doctor,
        ("doctor folder", "doctor --output", "--device"),
    ),
    "report": (
        "write a page about a training, or a comparison of several",
        run_report,
        ("report runs", "report --output"),
    ),
    "evaluate": (
        "evaluate a checkpoint on fresh episodes, without exploration noise",
        run_evaluate,
        (*ACTING, *POLICY[1:], "evaluate --output", *WHERE, *EPISODES, "--device"),
    ),
    "export": (
        "export a checkpoint for robots: ONNX, TorchScript and what they take, compared with it",
        run_export,
        (
            *POLICY,
            "--image",
            "export --output",
            "--single-input",
            "--target",
            *WHERE,
            *GOLDEN,
            "--device",
        ),
    ),
    "verify": (
        "compare an exported policy, or what a robot's program made of it, with the trained one",
        run_verify,
        ("verify bundle", "--log", "--tolerance"),
    ),
    "play": (
        "play a checkpoint with its platform's own command, task and agent",
        run_play,
        ("play --checkpoint", "--task", "--num-envs", "--video", "--trust", "--device"),
    ),
    "new": (
        "write a small package: a task, its teacher, a recurrent student, recurrent PPO and"
        " fine-tuning",
        run_new,
        ("new name", "new --platform", "new --output"),
    ),
}
"""Description, function and options by command."""


if __name__ == "__main__":
    raise SystemExit(main())

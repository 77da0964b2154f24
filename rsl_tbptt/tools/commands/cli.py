"""The command ``rsl-tbptt``, for checkpoints of Isaac Lab, mjlab and rsl_rl alone.

Nothing slow is imported before a command is known and its arguments are parsed. So the functions of
the commands, in ``cli_policies`` and ``cli_runs``, import what they need when they run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from rsl_tbptt.installation import installed_version
from rsl_tbptt.tools.commands import cli_policies, cli_runs
from rsl_tbptt.tools.commands.cli_options import (
    ACTING,
    EPISODES,
    FORMS,
    GOLDEN,
    OPTIONS,
    PLANNED,
    POLICY,
    REMEMBERED,
    WHERE,
)
from rsl_tbptt.tools.commands.doctor import missing_module, require
from rsl_tbptt.tools.commands.streams import lasting_streams

DESCRIPTION = "Commands for checkpoints of Isaac Lab, mjlab and rsl_rl alone."

COMMANDS: dict[str, tuple[str, Callable[[argparse.Namespace], int], Sequence[str]]] = {
    "doctor": (
        "check this setup or a training, and say what is wrong",
        cli_runs.run_doctor,
        ("doctor folder", "doctor --output", "--device"),
    ),
    "report": (
        "write a page about a training, or a page that compares several",
        cli_runs.run_report,
        ("report runs", "report --output"),
    ),
    "latest": (
        "print the newest checkpoint of a training that can be loaded",
        cli_runs.run_latest,
        ("latest folder",),
    ),
    "resume": (
        "print the command that continues a training from its newest checkpoint, or run it",
        cli_runs.run_resume,
        ("resume folder", "--run", "--iterations", "--task"),
    ),
    "plan": (
        "show how much memory updates take with more environments, before training",
        cli_runs.run_plan,
        (*PLANNED, "--device"),
    ),
    "evaluate": (
        "evaluate a checkpoint on fresh episodes, without exploration noise",
        cli_policies.run_evaluate,
        (*ACTING, "evaluate --output", *WHERE, *EPISODES, "--device"),
    ),
    "memory": (
        "measure how far back a policy looks, and how long a sensor fault affects its actions",
        cli_policies.run_memory,
        ("memory checkpoint", *POLICY[1:], "memory --output", *WHERE, *REMEMBERED, "--device"),
    ),
    "export": (
        "export a checkpoint for robots as ONNX and TorchScript, and compare the files with it",
        cli_policies.run_export,
        (*POLICY, *FORMS, *WHERE, *GOLDEN, "--device"),
    ),
    "verify": (
        "compare an exported policy, or a robot's log of it, with the trained policy",
        cli_policies.run_verify,
        ("verify bundle", "verify --trust", "--log", "--tolerance"),
    ),
    "play": (
        "play a checkpoint with its platform's own command, task and agent",
        cli_policies.run_play,
        ("play --checkpoint", "--task", "--num-envs", "--video", "--trust", "--device"),
    ),
    "new": (
        "write a small package: a task, its teacher, a recurrent student and recurrent PPO",
        cli_runs.run_new,
        ("new name", "new --platform", "new --output"),
    ),
}
"""Description, function and options by command."""

FURTHER = {
    "play": "Other arguments go on to the platform's command: --viz newton for a window. With"
    " --video they are settings of the task: env.episode_length_s=4.",
}
"""Commands that take other arguments too, and what becomes of those."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and say in one line what is wrong with its arguments or files.

    Args:
        arguments: The command line. None takes that of this process.

    Returns:
        The exit status: 0, 1 if the command failed, 130 after Ctrl+C, and argparse's 2 for wrong
        arguments. It is that of the work: nobody has to read what a command prints.
    """
    words = sys.argv[1:] if arguments is None else [*arguments]
    status = 1
    with lasting_streams():
        try:
            try:
                return _run(words)
            finally:
                sys.stdout.flush()  # here, where a full disk is an error like any other
        except KeyboardInterrupt:
            reason, status = "interrupted", 130
        except ModuleNotFoundError as error:
            reason = missing_module(error)
        except (ValueError, OSError, ImportError, NotImplementedError) as error:
            reason = str(error)
        print(f"{' '.join(['rsl-tbptt', *words[:1]])}: {' '.join(reason.split())}", file=sys.stderr)
    return status


def _run(words: list[str]) -> int:
    """Parse a command line and run its command."""
    parser = command_parser(words[0] if words else None)
    args, further = parser.parse_known_args(words)
    if further and args.command not in FURTHER:
        parser.error(f"unrecognized arguments: {' '.join(further)}")
    args.further = further
    require(args.command)
    return args.run(args)


def command_parser(chosen: str | None) -> argparse.ArgumentParser:
    """Return the parser of all commands.

    Args:
        chosen: The command that is about to be parsed; others' modules are left alone.

    Returns:
        A parser whose result has ``command`` and ``run``.
    """
    parser = argparse.ArgumentParser(prog="rsl-tbptt", description=DESCRIPTION)
    version = f"rsl-tbptt {installed_version('rsl-tbptt')}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (text, run, options) in COMMANDS.items():
        description = f"{text[0].upper()}{text[1:]}."
        command = commands.add_parser(
            name, help=text, description=description, epilog=FURTHER.get(name)
        )
        for option in options:
            command.add_argument(option.partition(" ")[2] or option, **OPTIONS[option])
        command.set_defaults(run=run)
    bench = commands.add_parser("bench", help="compare time and memory of updates with rsl_rl's")
    if chosen == "bench":
        from rsl_tbptt.tools.commands import bench as benchmark

        bench.description = benchmark.__doc__
        benchmark.add_arguments(bench)
        bench.set_defaults(run=benchmark.run)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())

"""The command ``rsl-tbptt``, for checkpoints of Isaac Lab, mjlab, EnvPool and rsl_rl alone.

Nothing slow is imported before a command is known and its arguments are parsed.
"""

import argparse
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from types import NoneType
from typing import Any, get_args, get_origin

from rsl_tbptt.installation import installed_version
from rsl_tbptt.tools.commands.commands import COMMANDS
from rsl_tbptt.tools.commands.doctor import missing_module, require

DESCRIPTION = "Commands for checkpoints of Isaac Lab, mjlab, EnvPool and rsl_rl alone."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and say in one line what is wrong with its arguments or files.

    Args:
        arguments: The command line. None takes that of this process.

    Returns:
        The exit status: 0, 1 if the command failed, 130 after Ctrl+C, and argparse's 2 for wrong
        arguments.
    """
    words = sys.argv[1:] if arguments is None else [*arguments]
    try:
        status = _run(words)
        sys.stdout.flush()  # here, where a full disk is an error like any other
        return status
    except KeyboardInterrupt:
        reason, status = "interrupted", 130
    except ModuleNotFoundError as error:
        reason, status = missing_module(error), 1
    except (ValueError, OSError, ImportError, NotImplementedError) as error:
        reason, status = str(error), 1
    print(f"{' '.join(['rsl-tbptt', *words[:1]])}: {' '.join(reason.split())}", file=sys.stderr)
    return status


def _run(words: list[str]) -> int:
    """Parse a command line and run its command."""
    options = vars(command_parser().parse_args(words))
    name = options.pop("command")
    in_order = []
    for parameter in inspect.signature(COMMANDS[name]).parameters.values():
        if parameter.kind is parameter.POSITIONAL_ONLY:
            in_order.append(options.pop(parameter.name))
        elif not get_args(kind := parameter.annotation):
            options[parameter.name] = kind(**{f.name: options.pop(f.name) for f in fields(kind)})
    require(name)
    return COMMANDS[name](*in_order, **options) or 0


def command_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands, whose result has ``command`` and its arguments."""
    parser = argparse.ArgumentParser(prog="rsl-tbptt", description=DESCRIPTION)
    version = f"rsl-tbptt {installed_version('rsl-tbptt')}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, function in COMMANDS.items():
        text = (function.__doc__ or "").partition("\n")[0]
        short = f"{text[0].lower()}{text[1:-1]}"
        command = commands.add_parser(name, help=short, description=text, formatter_class=_Help)
        add_arguments(command, function)
    return parser


class _Help(argparse.HelpFormatter):
    """Puts more options and their help on the same line: a command's help fits one screen."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=27)


def add_arguments(parser: argparse.ArgumentParser, function: Callable[..., Any]) -> None:
    """Add the parameters of a function to a parser.

    Positional-only parameters are arguments by place, the others are options. Each is annotated
    with its type, its help and, where needed, argparse's own settings. The help gets the default
    where its text names none.
    """
    usage = ["%(prog)s", "[options]"]
    for parameter in _parameters(function):
        kind, text, *settings = get_args(parameter.annotation)
        options: dict[str, Any] = dict(*settings)
        types = [part for part in get_args(kind) if part is not NoneType] or [kind]
        if kind is bool:
            options["action"] = "store_true"
        else:
            options.setdefault("type", types[0])
        if get_origin(kind) is Sequence and "action" not in options:
            options["nargs"] = "+"
        default, name = parameter.default, parameter.name
        is_required = default is parameter.empty
        if not is_required:
            values = [*default] if isinstance(default, tuple) else [default]
            options["default"] = values if isinstance(default, tuple) else default
            if kind is not bool and values not in ([], [None]) and "(default:" not in text:
                text += f" (default: {' '.join(map(str, values))})"
        value = options.get("metavar", name.upper())
        if parameter.kind is parameter.POSITIONAL_ONLY:
            usage.append(value)
        else:
            options["required"] = is_required
            options["dest"], name = name, f"--{name.replace('_', '-')}"
            usage += [name, value] if is_required else []
        parser.add_argument(name, help=text, **options)
    parser.usage = " ".join(usage)


def _parameters(function: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    """Yield the parameters of a function, and the fields of a dataclass in its place."""
    for parameter in inspect.signature(function).parameters.values():
        if not get_args(kind := parameter.annotation):
            yield from inspect.signature(kind).parameters.values()
        else:
            yield parameter


if __name__ == "__main__":
    raise SystemExit(main())

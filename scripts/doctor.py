#!/usr/bin/env python
"""Check this setup and say what is wrong with it, one line each."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

from _commands import executable
from _isaaclab import PACKAGES
from _machine import machine, num_cores, versions
from _preset import DEMO, default_run
from _stages import RunFolder

Check = Callable[[argparse.Namespace], str]
"""Returns what it found, raises what is wrong."""


def main() -> int:
    """Run all checks.

    Returns:
        0 if all pass, else 1.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or cuda:<index>")
    parser.add_argument(
        "--output", type=Path, default=default_run(DEMO), help="run folder to check"
    )
    args = parser.parse_args()
    results = [report(name, check, args) for name, check in CHECKS.items()]
    print("\nall is well" if all(results) else "\nsee the lines marked with WRONG", flush=True)
    return 0 if all(results) else 1


def report(name: str, check: Check, args: argparse.Namespace) -> bool:
    """Run one check and print its line.

    Args:
        name: What is checked.
        check: The check.
        args: The command line.

    Returns:
        Whether it passed.
    """
    try:
        found = check(args)
    except Exception as error:
        print(f"{name:<12} WRONG  {error}")
        return False
    print(f"{name:<12} ok     {found}")
    return True


def check_python(_args: argparse.Namespace) -> str:
    """Isaac Lab 3.0 runs on one version of Python.

    Raises:
        ValueError: If this is another.
    """
    found = versions()["python"]
    if sys.version_info[:2] != (3, 12):
        raise ValueError(f"Python is {found}, expected 3.12: run `make demo`, which finds one.")
    return f"{found} at {sys.executable}"


def check_packages(_args: argparse.Namespace) -> str:
    """Everything the demo imports is installed.

    Raises:
        ValueError: If something is missing.
    """
    found = versions(PACKAGES)
    missing = [name for name, number in found.items() if number is None]
    if missing:
        raise ValueError(f"{', '.join(missing)} missing: pip install -e '.[isaaclab,demo]'")
    return ", ".join(f"{name} {number}" for name, number in found.items() if name != "python")


def check_imports(_args: argparse.Namespace) -> str:
    """The package imports."""
    for name in ("rsl_tbptt", "rsl_tbptt.core", "rsl_tbptt.algorithms"):
        importlib.import_module(name)
    return "rsl_tbptt and its algorithms"


def check_tasks(_args: argparse.Namespace) -> str:
    """Isaac Lab finds this package's tasks.

    Raises:
        ValueError: If it does not.
    """
    names = {point.name for point in entry_points(group="isaaclab.tasks")}
    if "rsl_tbptt" not in names:
        raise ValueError(
            f"isaaclab.tasks has {sorted(names)}, expected rsl_tbptt among them: install again with"
            " pip install -e ."
        )
    return "rsl_tbptt is registered with isaaclab.tasks"


def check_command(_args: argparse.Namespace) -> str:
    """Isaac Lab's command is there."""
    return executable(["isaaclab"])[0]


def check_device(args: argparse.Namespace) -> str:
    """The device can compute."""
    torch = importlib.import_module("torch")
    torch.ones(1, device=args.device).sum().item()
    gpus = f"{torch.cuda.device_count()} GPU(s) visible"
    return f"{machine(args.device)['device']}; {num_cores()} cores, {gpus}"


def check_output(args: argparse.Namespace) -> str:
    """The run folder can be written."""
    return str(RunFolder(args.output).path)


CHECKS: dict[str, Check] = {
    "python": check_python,
    "packages": check_packages,
    "imports": check_imports,
    "tasks": check_tasks,
    "isaaclab": check_command,
    "device": check_device,
    "run folder": check_output,
}


if __name__ == "__main__":
    raise SystemExit(main())

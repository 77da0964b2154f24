"""Run tests with every supported rsl_rl and in every environment; print one line for each.

`make test-matrix` makes the environments and runs this.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from scripts.ci.summary import closing_line, read, write

ROOT = Path(__file__).resolve().parents[2]

ROWS_AT_A_TIME = 2
"""Most of them keep one core busy."""

CONTRACT = ("tests/contract",)
ALGORITHMS = (
    "tests/algorithms",
    "tests/runners",
    # Runs our own code only, but takes long.
    "--ignore=tests/algorithms/update/test_distributed.py",
)

NEXT_TORCH = "2.15.0"
"""Ahead of the one that Isaac Lab asks for; the Makefile installs it."""

PRINT_RELEASES = (
    "from importlib.metadata import version; print(version('rsl-rl-lib'), version('torch'))"
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run of pytest."""

    name: str
    """What is printed for it."""

    python: str
    """Interpreter of the environment, from the root of the checkout."""

    tests: tuple[str, ...]
    """Arguments of pytest; a pattern stands for the files it matches."""

    rsl_rl: str
    """Release that it runs with: the environment's, or one under ``.rsl_rl``."""

    torch: str | None = None
    """Release under ``.torch`` that it runs with, or None for the environment's."""


def main() -> int:
    """Run all rows.

    Returns:
        0 if something passed and nothing failed in each row, else 1.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mjlab", required=True, help="interpreter of mjlab's environment")
    parser.add_argument(
        "--isaaclab2", required=True, help="interpreter of Isaac Lab 2.3's environment"
    )
    parser.add_argument("--report", type=Path, help="JUnit file for the numbers of all rows")
    args = parser.parse_args()
    return run_matrix(rows(sys.executable, args.mjlab, args.isaaclab2), args.report)


def rows(main_python: str, mjlab_python: str, isaaclab2_python: str) -> list[Row]:
    """Return what is run, the contract of all releases first.

    Args:
        main_python: Interpreter of the environment of ``make test``.
        mjlab_python: Interpreter of mjlab's environment.
        isaaclab2_python: Interpreter of Isaac Lab 2.3's environment.
    """
    contract, algorithms = "contract", "algorithms, runners"
    main, mjlab, isaaclab2 = main_python, mjlab_python, isaaclab2_python
    mjlab_tests = ("tests/integrations/test_mjlab*.py", "tests/tasks/test_mjlab_*.py")
    package_tests = ("tests/test_packaging.py", "-m", "package")
    isaaclab2_tests = ("tests/compat/rsl_rl3", "tests/algorithms/test_numerics.py")
    return [
        Row(name=contract, rsl_rl="3.1.2", python=isaaclab2, tests=CONTRACT),
        Row(name=contract, rsl_rl="5.0.1", python=main, tests=CONTRACT),
        Row(name=contract, rsl_rl="5.4.2", python=main, tests=CONTRACT),
        Row(name=contract, rsl_rl="5.5.1", python=main, tests=CONTRACT),
        Row(name=algorithms, rsl_rl="5.0.1", python=main, tests=ALGORITHMS),
        Row(name=algorithms, rsl_rl="5.4.2", python=main, tests=ALGORITHMS),
        Row(
            name=f"torch {NEXT_TORCH}",
            rsl_rl="5.5.1",
            torch=NEXT_TORCH,
            python=main,
            tests=(*ALGORITHMS, "tests/core", "tests/scripts/test_export.py"),
        ),
        Row(name="mjlab", rsl_rl="5.4.2", python=mjlab, tests=mjlab_tests),
        Row(name="mjlab", rsl_rl="5.5.1", python=mjlab, tests=mjlab_tests),  # the next mjlab's
        Row(name="Isaac Lab 2.3", rsl_rl="3.1.2", python=isaaclab2, tests=isaaclab2_tests),
        Row(name="wheel and sdist", rsl_rl="5.5.1", python=main, tests=package_tests),
    ]


def run_matrix(matrix: list[Row], report: Path | None = None) -> int:
    """Run rows, print a line for each in their order and one such as pytest's for all.

    Args:
        matrix: What to run.
        report: JUnit file for the numbers of all rows.

    Returns:
        The exit status: 0 if something passed and nothing failed in each row, else 1.
    """
    start, total = time.monotonic(), Counter()
    with ThreadPoolExecutor(ROWS_AT_A_TIME) as pool:
        for row, (outcomes, line, output) in zip(matrix, pool.map(run_row, matrix), strict=True):
            well = not (outcomes["failed"] or outcomes["error"])
            print(f"rsl_rl {row.rsl_rl}  {row.name:22}{'' if well else 'WRONG: '}{line}")
            print(end="" if well else f"{output[-8000:]}\n", flush=True)
            total += outcomes
    seconds = time.monotonic() - start
    if report is not None:
        write(report, total, seconds)
    print(closing_line(total, seconds), flush=True)
    return int(bool(total["failed"] or total["error"]))


def run_row(row: Row) -> tuple[Counter[str], str, str]:
    """Run the tests of one row.

    Args:
        row: What to run.

    Returns:
        Tests by outcome, with an error if none passed; a line that says so, or why nothing ran; and
        all output.
    """
    found = [argument for pattern in row.tests for argument in expanded(pattern)]
    if not any(Path(ROOT, argument).exists() for argument in found):
        return Counter(error=1), f"no file is like {' or '.join(row.tests)}", ""
    rsl_rl, _, torch = python(row, "-c", PRINT_RELEASES).stdout.strip().partition(" ")
    for name, installed, expected in (("rsl_rl", rsl_rl, row.rsl_rl), ("torch", torch, row.torch)):
        if expected not in (None, installed):
            reason = f"{name} is {installed}, expected {expected}: run `make test-matrix`"
            return Counter(error=1), reason, ""
    with TemporaryDirectory() as folder:
        report = Path(folder) / "row.xml"
        result = python(row, "-m", "pytest", f"--junitxml={report}", *found)
        outcomes, seconds = read(report)
        line = closing_line(outcomes, seconds) if report.exists() else "pytest did not finish"
    if not (outcomes["failed"] or outcomes["error"]):
        outcomes["error"] += result.returncode != 0 or not outcomes["passed"]
    return outcomes, line, result.stdout


def python(row: Row, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a row's interpreter with its rsl_rl and torch.

    Args:
        row: What is run.
        *arguments: Arguments of the interpreter.

    Returns:
        The finished process, errors in its output.
    """
    aside = [ROOT / ".rsl_rl" / row.rsl_rl, *([ROOT / ".torch" / row.torch] if row.torch else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, aside))}
    return subprocess.run(
        [row.python, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def expanded(pattern: str) -> list[str]:
    """Return the files of the checkout that a pattern matches, or an option as it is."""
    if "*" not in pattern:
        return [pattern]
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(pattern))


if __name__ == "__main__":
    raise SystemExit(main())

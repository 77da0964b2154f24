"""Run tests with every supported rsl_rl and in every environment; print one line for each.

The rows are in matrix.toml. `make test-matrix` makes the environments and runs this.
"""

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

import tomllib

from scripts.ci.summary import closing_line, read, write

ROOT = Path(__file__).resolve().parents[2]
ROWS = Path(__file__).with_name("matrix.toml")
ROWS_AT_A_TIME = 2
"""Most of them keep one core busy."""
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
    tests: list[str]
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
    for environment in ("mjlab", "isaaclab2"):
        parser.add_argument(f"--{environment}", required=True, help="interpreter")
    parser.add_argument("--report", type=Path, help="JUnit file for the numbers of all rows")
    args = parser.parse_args()
    pythons = {"main": sys.executable, "mjlab": args.mjlab, "isaaclab2": args.isaaclab2}
    return run_matrix(rows(pythons), args.report)


def rows(pythons: dict[str, str]) -> list[Row]:
    """Return what is run.

    Args:
        pythons: Interpreters by the names of their environments.
    """
    table = tomllib.loads(ROWS.read_text(encoding="utf-8"))["rows"]
    return [Row(**{**row, "python": pythons[row["python"]]}) for row in table]


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

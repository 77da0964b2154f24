"""What to run once on a machine with a GPU, and send back: ``make gpu``.

Tests, benchmark and profiles run in portions, the most telling ones first, each with a time limit.
A portion that has passed is not run again, so an interrupted run continues where it stopped. The
folder holds what the portions print, the benchmark's data and ``report.md``; it stays below 1 MB.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rsl_tbptt.files import write_json
from rsl_tbptt.tools.machine import machine, versions

MOST_PRINTED = 20_000
"""Characters that are kept of what a portion printed: the last ones."""
BENCHMARK = (
    *("distillation-4096", "ppo-1024-dones-0.05", "ppo-1024-dones-0.2", "ppo-1024-dones-0-"),
    *("ppo-256x128", "distillation-512", "distillation-64", "ppo-memory", "distillation-memory"),
    *("camera-256", "cost"),
)
"""Rows of the benchmark, one portion each: those with this in their names."""
PROFILES = (
    ("distillation", ("--gradient-length", "12", "--done-rate", "0.002")),
    ("ppo", ("--gradient-length", "24", "--done-rate", "0.002", "--num-learning-epochs", "5")),
)
"""The agents' usual cases, whose updates are profiled."""


@dataclass(frozen=True)
class Portion:
    """One command and the time it may take."""

    name: str
    minutes: float
    command: tuple[str, ...]

    def run(self, output: Path) -> dict[str, object]:
        """Run the command; what it printed goes into a file. Return how it ended."""
        start = time.monotonic()
        with subprocess.Popen(
            self.command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                printed, _ = process.communicate(timeout=60 * self.minutes)
                status = "failed" if process.returncode else "passed"
            except BaseException as error:  # Ctrl+C does not reach the child's own session
                os.killpg(process.pid, signal.SIGKILL)  # its own children, too
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                printed, _ = process.communicate()
                status = "ran out of time"
        (output / f"{self.name}.txt").write_text(printed[-MOST_PRINTED:], encoding="utf-8")
        seconds = round(time.monotonic() - start, 1)
        return {"status": status, "seconds": seconds, "command": [*self.command]}

    def has_passed(self, ended: dict[str, dict[str, object]]) -> bool:
        """Return whether this command passed before, by how portions ended."""
        how = ended.get(self.name, {})
        return how.get("status") == "passed" and how.get("command") == [*self.command]


def portions(device: str, output: Path, *, quick: bool) -> Iterator[Portion]:
    """Yield what is run, the most telling first.

    Args:
        device: Such as ``cuda:0``.
        output: Folder of the results.
        quick: Whether the benchmark runs tiny rows: to try this script.
    """
    python = sys.executable
    if shutil.which("nvidia-smi"):
        yield Portion("nvidia-smi", 1, ("nvidia-smi", "-q"))
    doctor = ("doctor", "--device", device, "--output", str(output))
    yield Portion("doctor", 2, (python, "-m", "rsl_tbptt.tools.cli", *doctor))
    pytest = (python, "-m", "pytest", "-rs", "-p", "xdist", "-n", "4", "--dist", "loadgroup")
    kind = device.partition(":")[0]
    yield Portion("tests-scan", 6, (*pytest, "tests/core/scan", "--device", kind))
    yield Portion("tests-algorithms", 3, (*pytest, "tests/algorithms", "-m", "gpu"))
    benchmark = (python, "-m", "scripts.benchmark")
    for rows in BENCHMARK:
        options = ("--rows", rows, "--device", device, "--output", str(output / "bench" / rows))
        tiny = ("--quick",) if quick else ()
        yield Portion(f"bench-{rows}", 5, (*benchmark, "suite", *options, *tiny))
    for algorithm, options in PROFILES:
        size = ("--num-envs", "64" if quick else "4096", "--device", device)
        for precision, own in (("float32", ()), ("bfloat16", ("--use-mixed-precision",))):
            case = ("--algorithm", algorithm, *options, *size, *own)
            yield Portion(f"profile-{algorithm}-{precision}", 2, (*benchmark, "profile", *case))
    yield Portion("host", 2, (*benchmark, "host"))


def run_all(todo: Sequence[Portion], device: str, output: Path, minutes: float = math.inf) -> bool:
    """Run the portions that have not passed yet, and write the report after each.

    Args:
        todo: The portions, in order.
        device: The device.
        output: Folder of the results, with those of an earlier run.
        minutes: Time for all. A portion that might take longer than what is left is not begun.

    Returns:
        Whether all have passed.
    """
    start = time.monotonic()
    output.mkdir(parents=True, exist_ok=True)
    progress = output / "progress.json"
    ended = json.loads(progress.read_text(encoding="utf-8")) if progress.exists() else {}
    for index, portion in enumerate(todo, 1):
        if portion.has_passed(ended):
            continue
        if (time.monotonic() - start) / 60 + portion.minutes > minutes:
            continue
        left = sum(each.minutes for each in todo[index - 1 :])
        print(f"{index}/{len(todo)} {portion.name}, {left:g} minutes left at most", flush=True)
        ended[portion.name] = how = portion.run(output)
        print(f"  {how['status']} after {how['seconds']} s", flush=True)
        for figure in output.rglob("*.svg"):
            figure.unlink()  # large, and the tables have the same numbers
        write_json(progress, ended)
        write_report(todo, ended, device, output)
    return all(portion.has_passed(ended) for portion in todo)


def write_report(
    todo: Sequence[Portion], ended: dict[str, dict[str, object]], device: str, output: Path
) -> None:
    """Write ``report.md``: the machine, versions, how each portion ended and what it found."""
    about = {**machine(device), **versions()}
    lines = ["# rsl_tbptt on a GPU", "", *(f"- {name}: {value}" for name, value in about.items())]
    lines += ["", "| portion | ended | seconds |", "|---|---|---|"]
    lines += [
        f"| {portion.name} | {how['status']} | {how['seconds']} |"
        for portion in todo
        if (how := ended.get(portion.name))
    ]
    for portion in todo:
        printed = output / f"{portion.name}.txt"
        if portion.name in ended and printed.exists() and portion.name != "nvidia-smi":
            text = printed.read_text(encoding="utf-8").strip().splitlines()
            lines += ["", f"## {portion.name}", "", "```text", *text[-40:], "```"]
    (output / "report.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> int:
    """Run all portions; return 1 if one did not pass."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", default="cuda:0", help="cuda:<index>; cpu to try this script")
    parser.add_argument("--output", type=Path, default=Path("runs/gpu"), help="folder of results")
    parser.add_argument("--minutes", type=float, default=math.inf, help="time for this run")
    parser.add_argument("--quick", action="store_true", help="tiny cases: to try this script")
    args = parser.parse_args()
    todo = [*portions(args.device, args.output, quick=args.quick)]
    passed = run_all(todo, args.device, args.output, args.minutes)
    print(f"wrote {args.output}: send it back, report.md first")
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())

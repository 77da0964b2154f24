"""What to run once on a machine with a GPU, and send back: ``make gpu``.

Tests, benchmark and profiles run in portions, the most telling ones first, each with a time limit.
``--minutes 4`` is planned to be enough for the tests and the benchmark of what people train. A
portion that has passed is not run again, so an interrupted run continues where it stopped. The
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
from importlib.util import find_spec
from pathlib import Path

from rsl_tbptt.files import write_json
from rsl_tbptt.installation import machine, versions
from scripts.pipeline.run import TIME_IS_UP

PATIENCE = 3
"""A portion is stopped after so many times its planned minutes."""
MOST_PRINTED = 20_000
"""Characters that are kept of what a portion printed: the last ones."""
TRAINED = {"trained-ppo-4096": 0.9, "trained-ppo-1024": 0.8, "trained-student-4096": 0.5}
"""The first rows of the benchmark, one portion each with its minutes, by a part of their names."""
BENCHMARK = {
    "distillation-4096": 1,
    "ppo-1024-dones-0.05": 1,
    "ppo-1024-dones-0.2": 1,
    "ppo-1024-dones-0-": 1,
    "ppo-256x128": 1,
    "distillation-512": 1,
    "distillation-64": 1,
    "ppo-memory": 1,
    "distillation-memory": 1,
    "camera-256": 1,
    "cost": 1,
    "frames-memory-1024": 2,
    "frames-memory-4096": 2,
}
"""The other rows, one portion each with its minutes, by a part of their names."""
PROFILES = (
    ("distillation", ("--gradient-length", "12", "--done-rate", "0.002")),
    ("ppo", ("--gradient-length", "24", "--done-rate", "0.002", "--num-learning-epochs", "5")),
)
"""The agents' usual cases, whose updates are profiled."""

SLICE = 5
"""Minutes of one run of the study of Go1, which goes on with the next run of this script."""


@dataclass(frozen=True)
class Portion:
    """One command and the time it is planned to take."""

    name: str
    minutes: float
    command: tuple[str, ...]

    def run(self, output: Path, minutes: float) -> dict[str, object]:
        """Run the command for so long at most; what it printed goes into a file.

        Return how it ended.
        """
        start = time.monotonic()
        with subprocess.Popen(
            self.command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                printed, _ = process.communicate(timeout=60 * minutes)
                ends = {0: "passed", TIME_IS_UP: "goes on next time"}
                status = ends.get(process.returncode, "failed")
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
        yield Portion("nvidia-smi", 0.1, ("nvidia-smi", "-q"))
    doctor = ("doctor", "--device", device)
    yield Portion("doctor", 0.3, (python, "-m", "rsl_tbptt.tools.commands.cli", *doctor))
    workers = str(min(14, os.cpu_count() or 1))
    pytest = (python, "-m", "pytest", "-rs", "-p", "xdist", "-n", workers, "--dist", "loadgroup")
    kind = device.partition(":")[0]
    benchmark = (python, "-m", "scripts.benchmark")

    def bench(rows: str, minutes: float) -> Portion:
        options = ("--rows", rows, "--device", device, "--output", str(output / "bench" / rows))
        return Portion(f"bench-{rows}", minutes, (*benchmark, "suite", *options, *tiny))

    tiny = ("--quick",) if quick else ()
    yield Portion("recorded", 0.7, (*benchmark, "recorded", "--device", device, *tiny))
    marked = ("tests/core/test_recording.py", "tests/algorithms", "-m", "gpu", "--device", kind)
    yield Portion("tests-marked", 0.6, (*pytest, *marked))
    yield from (bench(rows, minutes) for rows, minutes in TRAINED.items())
    yield Portion("tests-scan", 0.9, (*pytest, "tests/core/scan", "--device", kind))
    yield from (bench(rows, minutes) for rows, minutes in BENCHMARK.items())
    for algorithm, options in PROFILES:
        size = ("--num-envs", "64" if quick else "4096", "--tf32", "--device", device)
        for precision, own in (("tf32", ()), ("bfloat16", ("--use-mixed-precision",))):
            case = ("--algorithm", algorithm, *options, *size, *own)
            yield Portion(f"profile-{algorithm}-{precision}", 1, (*benchmark, "profile", *case))
    yield Portion("host", 1, (*benchmark, "host", "--device", device))
    if mjlab := python if find_spec("mjlab") else shutil.which(".venv-mjlab/bin/python"):
        study = (mjlab, "-m", "scripts.pipeline.curves", "configs/go1_curves.yaml")
        # Its checkpoints stay in its own folder, so that the results stay small.
        options = ("--device", device, "--minutes", str(SLICE))
        yield Portion("go1", SLICE, (*study, *options, *(("--quick",) if quick else ())))


def run_all(todo: Sequence[Portion], device: str, output: Path, minutes: float = math.inf) -> bool:
    """Run the portions that have not passed yet, and write the report after each.

    Args:
        todo: The portions, in order.
        device: The device.
        output: Folder of the results, with those of an earlier run.
        minutes: Time for all. A portion whose planned time is not left is not begun.

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
        left = minutes - (time.monotonic() - start) / 60
        if portion.minutes > left:
            continue
        planned = sum(each.minutes for each in todo[index - 1 :])
        print(f"{index}/{len(todo)} {portion.name}, about {planned:.1f} minutes left", flush=True)
        ended[portion.name] = how = portion.run(output, min(PATIENCE * portion.minutes, left))
        print(f"  {how['status']} after {how['seconds']} s", flush=True)
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

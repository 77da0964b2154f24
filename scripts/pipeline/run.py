"""Run stages, each one command, and keep finished results.

A finished stage writes ``stages/<name>.json`` into the run folder. It is not run again if its
command is the same, its result is still there, and no stage that it reads from ran again. The
command names all settings and the files that the stage reads.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from threading import Event

from rsl_tbptt.files import output_path, write_json
from rsl_tbptt.tools.platforms import child_environment, executable
from rsl_tbptt.tools.progress import PATTERN, Progress, clock

LOOK_SECONDS = 1.0
"""Time between two looks into a command's log for its progress."""
GRACE_SECONDS = 10.0
"""Time that a terminated command has before it is killed."""


class StageError(RuntimeError):
    """A stage's command failed or left no result."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One command of a run."""

    name: str
    needs: tuple[str, ...] = ()
    """Earlier stages whose results this one reads."""
    command: Callable[[dict[str, str]], list[str]]
    """Returns the command, given the results of earlier stages as paths in the run folder."""
    output: str
    """Pattern of the result's path, relative to the run folder; the newest match is the result."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """Result and cost of a finished stage."""

    output: str
    """Path of its result, relative to the run folder."""
    command: str
    seconds: float
    peak_memory_gb: float
    """Largest resident memory of the command or one of its children, in 10^9 bytes."""
    finished_at: float
    """Seconds since the epoch."""


def run_stages(
    stages: Sequence[Stage], folder: Path, device: str, jobs: int | None = None
) -> dict[str, Record]:
    """Run every stage that is not finished.

    Args:
        stages: The stages in order.
        folder: Run folder; created if missing.
        device: Device that the commands compute on.
        jobs: Number of stages that run at a time. None means two on a CPU, where each uses one
            core, and one on a GPU.

    Returns:
        The stages' records by name.

    Raises:
        ValueError: If ``jobs`` is below 1, or the folder cannot be written.
        StageError: If a command fails or leaves no result. Any error, and Ctrl+C, also end the
            other commands.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"--jobs is {jobs}, expected at least 1.")
    output_path(folder / "stages", Path("stages"))
    print(f"Run folder {folder}: commands run there, their output is in stages/*.log\n")
    titles = {s.name: f"[{number}/{len(stages)}] {s.name}" for number, s in enumerate(stages, 1)}
    by_name, records = {stage.name: stage for stage in stages}, dict[str, Record]()
    graph = TopologicalSorter({stage.name: stage.needs for stage in stages})
    graph.prepare()
    running, stop = dict[Future[Record], str](), Event()
    with ThreadPoolExecutor(jobs or (2 if device == "cpu" else 1)) as pool:
        try:
            while graph.is_active():
                for name in graph.get_ready():
                    stage = by_name[name]
                    needs = {need: records[need] for need in stage.needs}
                    arguments = (stage, titles[name], folder, device, needs, stop)
                    running[pool.submit(_run, *arguments)] = name
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    name = running.pop(future)
                    records[name] = future.result()
                    graph.done(name)
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return {stage.name: records[stage.name] for stage in stages}


def _run(
    stage: Stage, title: str, folder: Path, device: str, needs: dict[str, Record], stop: Event
) -> Record:
    """Run a stage, unless it is finished, and write its record.

    Raises:
        StageError: If its command fails or leaves no result.
    """
    command = stage.command({name: need.output for name, need in needs.items()})
    shown, file = shlex.join(command), folder / "stages" / f"{stage.name}.json"
    record = read_record(folder, stage.name)
    if (
        record is not None
        and record.command == shown
        and all(need.finished_at < record.finished_at for need in needs.values())
        and (folder / record.output).exists()
    ):
        print(f"{title}: finished before in {clock(record.seconds)}, reused", flush=True)
        return record
    file.unlink(missing_ok=True)
    print(f"{title}\n  {shown}", flush=True)
    began, log = time.time(), file.with_suffix(".log")
    with log.open("wb") as written:
        process = subprocess.Popen(
            executable(command),
            cwd=folder,
            env=child_environment(device),
            stdout=written,
            stderr=subprocess.STDOUT,
        )
    peak_bytes = _wait(process, title, log, stop)
    found = [path for path in folder.glob(stage.output) if path.stat().st_mtime >= began]
    if process.returncode != 0 or not found:
        reason = f"failed with status {process.returncode}"
        if process.returncode == 0:
            reason = f"left no result: {stage.output} was not written"
        last_lines = log.read_text("utf-8", errors="replace").splitlines()[-25:]
        raise StageError("\n".join([*last_lines, "", f"{stage.name} {reason}: see {log}"]))
    record = Record(
        output=max(found, key=lambda path: path.stat().st_mtime).relative_to(folder).as_posix(),
        command=shown,
        seconds=round(time.time() - began, 1),
        peak_memory_gb=round(peak_bytes / 1e9, 2),
        finished_at=time.time(),
    )
    write_json(file, asdict(record))
    peak = f"peak memory {record.peak_memory_gb:.2f} GB"
    print(f"{title}  done in {clock(record.seconds)}, {peak}", flush=True)
    return record


def _wait(process: subprocess.Popen[bytes], title: str, log: Path, stop: Event) -> int:
    """Wait until a command ends, print its progress, and return its peak memory in bytes."""
    progress, looked = None, time.monotonic()
    # wait4 instead of Popen.poll, because it returns the peak memory of this child alone.
    while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
        if stop.wait(0.05):
            process.terminate()
            try:
                process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            return 0
        if time.monotonic() - looked >= LOOK_SECONDS:
            progress, looked = _look(log, title, progress), time.monotonic()
    process.returncode = os.waitstatus_to_exitcode(ended[1])
    return ended[2].ru_maxrss * 1024  # Linux counts in 1024 bytes


def _look(log: Path, title: str, progress: Progress | None) -> Progress | None:
    """Print a command's progress from its log; each of its loops has its own progress."""
    found = PATTERN.findall(log.read_text("utf-8", errors="replace"))
    if not found:
        return None
    done, total = map(int, found[-1])
    if progress is None or progress.total != total or done < progress.done:
        # Lines even on a terminal, because several commands run at a time.
        progress = Progress(title, total, done, lines=True)
    progress.update(done)
    return progress


def read_record(folder: Path, name: str) -> Record | None:
    """Read a stage's record; None if it is missing or unreadable."""
    try:
        return Record(**json.loads((folder / "stages" / f"{name}.json").read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def run_script(parser: argparse.ArgumentParser, work: Callable[[argparse.Namespace], None]) -> int:
    """Run a script that runs stages.

    Args:
        parser: Parser with the options of this script only.
        work: Function to call with the command line, whose ``output`` is the run folder.

    Returns:
        The exit status. If the work ends early, the reason is printed in one line.
    """
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("config", type=Path, help="a file in configs/, or your own")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:<index>")
    parser.add_argument("--output", type=Path, help="run folder, by default runs/<config>")
    parser.add_argument("--jobs", type=int, help="stages at a time; default: CPU 2, GPU 1")
    args = parser.parse_args()
    args.output = (args.output or default_run(args.config)).resolve()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends commands like Ctrl+C
    try:
        work(args)
    except KeyboardInterrupt:
        print("\ninterrupted: run the same command again to continue", file=sys.stderr)
        return 130
    except (ValueError, OSError, StageError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    return 0


def default_run(config: Path) -> Path:
    """Return the default run folder of an experiment."""
    return Path("runs") / config.stem


def cost(records: dict[str, Record], seconds: float) -> str:
    """Return a line with a run's time, now (``seconds``) and in all stages, and its peak memory."""
    peak = max(record.peak_memory_gb for record in records.values())
    spent = sum(record.seconds for record in records.values())
    return f"time: {clock(seconds)} now, {clock(spent)} for all stages; peak memory {peak:.2f} GB"

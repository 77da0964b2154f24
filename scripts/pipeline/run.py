"""Run stages, each one command, and keep what is finished.

A finished stage leaves ``stages/<name>.json`` in the run folder. It is not run again while its
command, which names all settings and the files that it reads, is the same, its result is still
there, and no stage that it reads from ran again.
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
"""Between two looks into the log of a command for how far it is."""
GRACE_SECONDS = 10.0
"""How long a command that is asked to end may take before it is killed."""


class StageError(RuntimeError):
    """A stage's command failed or left no result."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One command of a run."""

    name: str
    needs: tuple[str, ...] = ()
    """Earlier stages whose results it reads."""
    command: Callable[[dict[str, str]], list[str]]
    """Writes the command from the results of earlier stages, paths relative to the run folder."""
    output: str
    """Pattern of its result, relative to the run folder; the newest file counts."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """What a finished stage leaves."""

    output: str
    """Its result. Path relative to the run folder."""
    command: str
    seconds: float
    peak_memory_gb: float
    """Largest resident memory of the command or one of its children, in 10^9 bytes."""
    finished_at: float
    """In seconds since the epoch."""


def run_stages(
    stages: Sequence[Stage], folder: Path, device: str, jobs: int | None = None
) -> dict[str, Record]:
    """Run every stage that is not finished.

    Args:
        stages: The stages in order.
        folder: Run folder; created if missing.
        device: Device that the commands compute on.
        jobs: Stages at a time. None runs two on a CPU, where each computes on one core, and one on
            a GPU.

    Returns:
        The stages' records by name.

    Raises:
        ValueError: If ``jobs`` is below 1, or the folder cannot be written.
        StageError: If a command fails or leaves no result. An error, like Ctrl+C, ends the other
            commands.
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
    """Run a stage, unless it is finished, and leave its record.

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
    """Wait until a command ends, say how far it is, and return its peak memory in bytes."""
    progress, looked = None, time.monotonic()
    # wait4 instead of Popen.poll: it tells the peak memory of this child alone.
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
    """Say how far a command is by its log; what it does next has a progress of its own."""
    found = PATTERN.findall(log.read_text("utf-8", errors="replace"))
    if not found:
        return None
    done, total = map(int, found[-1])
    if progress is None or progress.total != total or done < progress.done:
        # Lines, on a terminal too: several commands run at a time.
        progress = Progress(title, total, done, lines=True)
    progress.update(done)
    return progress


def read_record(folder: Path, name: str) -> Record | None:
    """Read a stage's record; None if it has none or an unreadable one."""
    try:
        return Record(**json.loads((folder / "stages" / f"{name}.json").read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def run_script(parser: argparse.ArgumentParser, work: Callable[[argparse.Namespace], None]) -> int:
    """Be a script that runs stages.

    Args:
        parser: What the script alone takes.
        work: What it does with the command line, whose ``output`` is the run folder.

    Returns:
        The exit status; why the work ended early is printed in one line.
    """
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("config", type=Path, help="a file in configs/, or your own")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:<index>")
    parser.add_argument("--output", type=Path, help="run folder, by default runs/<config>")
    parser.add_argument("--jobs", type=int, help="stages at a time: on a CPU 2, on a GPU 1")
    args = parser.parse_args()
    args.output = (args.output or default_run(args.config)).resolve()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the commands as Ctrl+C does
    try:
        work(args)
    except KeyboardInterrupt:
        print("\ninterrupted: the same command goes on with the unfinished stage", file=sys.stderr)
        return 130
    except (ValueError, OSError, StageError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    return 0


def default_run(config: Path) -> Path:
    """Return the run folder of an experiment where none is named."""
    return Path("runs") / config.stem


def cost(records: dict[str, Record], seconds: float) -> str:
    """Write in a line what a run took: now, ``seconds``, and in all its stages."""
    peak = max(record.peak_memory_gb for record in records.values())
    spent = sum(record.seconds for record in records.values())
    return f"time: {clock(seconds)} now, {clock(spent)} for all stages; peak memory {peak:.2f} GB"

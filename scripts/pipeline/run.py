"""Run stages, each one command, and keep what is finished.

A finished stage leaves ``stages/<name>.json`` in the run folder. It is not run again while its
settings, and the very runs that it reads from, are the same.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rsl_tbptt.files import write_json
from rsl_tbptt.platforms.commands import child_environment, executable, shown

PROGRESS = re.compile(r"(?:Learning iteration|\[progress\]) (\d+/\d+)")
"""What rsl_rl and this package print on how far they are."""
PROGRESS_EVERY_SECONDS = 10.0


class StageError(RuntimeError):
    """A stage's command failed or left no result."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One command of a run."""

    name: str
    needs: tuple[str, ...] = ()
    """Earlier stages whose outputs it reads."""
    settings: dict[str, Any]
    """Everything else that its result depends on; JSON values."""
    command: Callable[[dict[str, str]], list[str]]
    """Writes the command from the outputs of earlier stages, paths relative to the run folder."""
    output: Callable[[float], Path]
    """Finds the result of a command that began at the given time, or raises FileNotFoundError."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """What a finished stage leaves."""

    depends_on: dict[str, Any]
    """Its settings, and when the stages that it reads from were finished."""
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
        stages: The stages in order; needs come first.
        folder: Run folder; created if missing.
        device: Device that the commands compute on.
        jobs: Stages at a time. None runs two on a CPU, where each computes on one core, and one on
            a GPU.

    Returns:
        The stages' records by name.

    Raises:
        ValueError: If ``jobs`` is below 1, or the folder cannot be written.
        StageError: If a command fails or leaves no result. What runs at the same time is ended.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"--jobs is {jobs}, expected at least 1.")
    folder = folder.resolve()
    try:
        (folder / "stages").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"The run folder is {folder}, expected one that can be written ({error.strerror}):"
            " name another with --output, or with `make demo RUN=folder`."
        ) from error
    print(f"Run folder {folder}: commands run there, their output is in stages/*.log\n")
    running: list[subprocess.Popen[str]] = []
    futures: dict[str, Future[Record]] = {}
    with ThreadPoolExecutor(jobs or (2 if device == "cpu" else 1)) as pool:
        for number, stage in enumerate(stages, start=1):
            title = f"[{number}/{len(stages)}] {stage.name}"
            # Needs were submitted before, so the stage that waits for them does not block them.
            needs = {name: futures[name] for name in stage.needs}
            work = (stage, needs, folder, device, title, running)
            futures[stage.name] = pool.submit(_finished, *work)
        try:
            for future in as_completed(futures.values()):
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.terminate()
            raise
    return {name: future.result() for name, future in futures.items()}


def read_record(folder: Path, name: str) -> Record | None:
    """Read a stage's record; None if it has none or an unreadable one."""
    try:
        return Record(**json.loads((folder / "stages" / f"{name}.json").read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _finished(
    stage: Stage,
    needs: dict[str, Future[Record]],
    folder: Path,
    device: str,
    title: str,
    running: list[subprocess.Popen[str]],
) -> Record:
    """Return a stage's record; run its command first, if it has none that is up to date."""
    records = {name: need.result() for name, need in needs.items()}
    finished_at = {name: record.finished_at for name, record in records.items()}
    depends_on = json.loads(json.dumps({"settings": stage.settings, "needs": finished_at}))
    record = read_record(folder, stage.name)
    if record and record.depends_on == depends_on and (folder / record.output).exists():
        print(f"{title}: finished before in {clock(record.seconds)}, reused", flush=True)
        return record
    path = folder / "stages" / f"{stage.name}.json"
    path.unlink(missing_ok=True)
    command = stage.command({name: record.output for name, record in records.items()})
    print(f"{title}\n  {shown(command)}", flush=True)
    began = time.time()
    peak_memory_gb = _run(executable(command), stage, folder, device, title, running)
    try:
        output = stage.output(began)
    except FileNotFoundError as error:
        raise _failure(folder, stage, f"left no result: {error}") from error
    record = Record(
        depends_on=depends_on,
        output=output.relative_to(folder).as_posix(),
        command=shown(command),
        seconds=round(time.time() - began, 1),
        peak_memory_gb=peak_memory_gb,
        finished_at=time.time(),
    )
    write_json(path, asdict(record))
    print(f"{title}  done in {clock(record.seconds)}, peak memory {peak_memory_gb:.2f} GB")
    return record


def _run(
    command: list[str],
    stage: Stage,
    folder: Path,
    device: str,
    title: str,
    running: list[subprocess.Popen[str]],
) -> float:
    """Run a stage's command to its end, its output in the stage's log; return its peak memory.

    Raises:
        StageError: If it fails.
    """
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=child_environment(device),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    running.append(process)
    _follow(process, _log(folder, stage), title)
    # wait4 instead of Popen.wait: it tells the peak of this child alone.
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    running.remove(process)
    if process.returncode != 0:
        raise _failure(folder, stage, f"failed with status {process.returncode}")
    return round(usage.ru_maxrss * 1024 / 1e9, 2)  # Linux counts in 1024 bytes


def _log(folder: Path, stage: Stage) -> Path:
    return folder / "stages" / f"{stage.name}.log"


def _failure(folder: Path, stage: Stage, reason: str) -> StageError:
    """Return an error with the end of a stage's output."""
    log = _log(folder, stage)
    last_lines = log.read_text(encoding="utf-8").splitlines()[-25:]
    return StageError("\n".join([*last_lines, "", f"{stage.name} {reason}: see {log}"]))


def _follow(process: subprocess.Popen[str], log: Path, title: str) -> None:
    """Write a command's output into its log until it ends, and say now and then how far it is."""
    assert process.stdout is not None  # it is a pipe
    told = time.monotonic()
    with process.stdout, log.open("w", encoding="utf-8") as sink:
        for line in process.stdout:
            sink.write(line)
            sink.flush()
            place = PROGRESS.search(line)
            if place and time.monotonic() - told > PROGRESS_EVERY_SECONDS:
                told = time.monotonic()
                print(f"{title}  {place[1]}", flush=True)


def run_parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """Return the command line of a script that runs stages."""
    parser = argparse.ArgumentParser(
        prog=program, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", type=Path, help="a file in configs/, or your own")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:<index>")
    parser.add_argument("--output", type=Path, help="run folder, by default runs/<config>")
    parser.add_argument("--jobs", type=int, help="stages at a time: on a CPU 2, on a GPU 1")
    return parser


def exit_status(work: Callable[[], None]) -> int:
    """Do the work of a script that runs stages; say in one line why it ended early."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the commands as Ctrl+C does
    try:
        work()
    except KeyboardInterrupt:
        print("\ninterrupted: the same command goes on with the unfinished stage", file=sys.stderr)
        return 130
    except (ValueError, FileNotFoundError, StageError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    return 0


def cost(records: dict[str, Record], seconds: float) -> str:
    """Write in a line what a run took: now, ``seconds``, and in all its stages."""
    peak = max(record.peak_memory_gb for record in records.values())
    spent = sum(record.seconds for record in records.values())
    return f"time: {clock(seconds)} now, {clock(spent)} for all stages; peak memory {peak:.2f} GB"


def clock(seconds: float) -> str:
    """Write a duration as minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"

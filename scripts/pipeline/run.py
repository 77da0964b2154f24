"""Run stages, each one command, and keep what is finished.

A finished stage leaves ``stages/<name>.json`` in the run folder. It is not run again while its
command, which names all settings and the files that it reads, is the same, its result is still
there, and no stage that it reads from ran again.
"""

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryFile

from rsl_tbptt.files import write_json
from rsl_tbptt.tools.platforms import child_environment, executable

PROGRESS = re.compile(r"(?:Learning iteration|\[progress\]) (\d+/\d+)")
"""What rsl_rl and this package print on how far they are."""
PROGRESS_EVERY_SECONDS = 10.0
GRACE_SECONDS = 10.0
"""How long a command that is asked to end may take before it is killed."""


class StageError(RuntimeError):
    """A stage's command failed or left no result."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One command of a run."""

    name: str
    needs: tuple[str, ...] = ()
    """Earlier stages whose outputs it reads."""
    command: Callable[[dict[str, str]], list[str]]
    """Writes the command from the outputs of earlier stages, paths relative to the run folder."""
    output: Callable[[float], Path]
    """Finds the result of a command that began at the given time, or raises FileNotFoundError."""


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
        stages: The stages in order; needs come first.
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
    jobs = jobs or (2 if device == "cpu" else 1)
    folder = folder.resolve()
    try:
        (folder / "stages").mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder / "stages").close()
    except OSError as error:
        raise ValueError(
            f"The run folder is {folder}, expected one that can be written ({error.strerror}):"
            " name another with --output, or with `make demo RUN=folder`."
        ) from error
    print(f"Run folder {folder}: commands run there, their output is in stages/*.log\n")
    titles = {s.name: f"[{number}/{len(stages)}] {s.name}" for number, s in enumerate(stages, 1)}
    left, records = [*stages], dict[str, Record]()
    running: list[_Command] = []
    try:
        while left or running:
            for stage in [stage for stage in left if records.keys() >= set(stage.needs)]:
                needs = {name: records[name] for name in stage.needs}
                if record := _reusable(stage, folder, needs):
                    print(
                        f"{titles[stage.name]}: finished before in {clock(record.seconds)}, reused"
                    )
                    records[stage.name] = record
                    left.remove(stage)
                elif len(running) < jobs:
                    running.append(_Command(stage, titles[stage.name], folder, device, needs))
                    left.remove(stage)
            for command in [*running]:
                if record := command.finished():
                    records[command.stage.name] = record
                    running.remove(command)
            time.sleep(0.05 if running else 0)
    except BaseException:
        for command in running:
            command.process.terminate()
        for command in running:
            command.end()
        raise
    return {stage.name: records[stage.name] for stage in stages}


def read_record(folder: Path, name: str) -> Record | None:
    """Read a stage's record; None if it has none or an unreadable one."""
    try:
        return Record(**json.loads((folder / "stages" / f"{name}.json").read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _reusable(stage: Stage, folder: Path, needs: dict[str, Record]) -> Record | None:
    """Return a stage's record if it is up to date and its result is still there."""
    record = read_record(folder, stage.name)
    if record is None or record.command != shlex.join(_command(stage, needs)):
        return None
    newer = all(need.finished_at < record.finished_at for need in needs.values())
    return record if newer and (folder / record.output).exists() else None


def _command(stage: Stage, needs: dict[str, Record]) -> list[str]:
    return stage.command({name: record.output for name, record in needs.items()})


class _Command:
    """A stage's command, its output in the stage's log."""

    def __init__(
        self, stage: Stage, title: str, folder: Path, device: str, needs: dict[str, Record]
    ) -> None:
        """Start it; from here on the stage is unfinished."""
        self.stage, self._title, self._folder = stage, title, folder
        self._record = folder / "stages" / f"{stage.name}.json"
        self._record.unlink(missing_ok=True)
        command = _command(stage, needs)
        self._shown, self._log = shlex.join(command), self._record.with_suffix(".log")
        print(f"{title}\n  {self._shown}", flush=True)
        self._began, self._told, self._place = time.time(), time.monotonic(), ""
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                executable(command),
                cwd=folder,
                env=child_environment(device),
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def finished(self) -> Record | None:
        """Leave and return the stage's record if the command has ended; say how far it is if not.

        Raises:
            StageError: If it failed or left no result.
        """
        # wait4 instead of Popen.poll: it tells the peak memory of this child alone.
        pid, status, usage = os.wait4(self.process.pid, os.WNOHANG)
        if pid == 0:
            self._tell_progress()
            return None
        self.process.returncode = os.waitstatus_to_exitcode(status)
        if self.process.returncode != 0:
            raise StageError(self._failure(f"failed with status {self.process.returncode}"))
        try:
            output = self.stage.output(self._began)
        except FileNotFoundError as error:
            raise StageError(self._failure(f"left no result: {error}")) from error
        record = Record(
            output=output.relative_to(self._folder).as_posix(),
            command=self._shown,
            seconds=round(time.time() - self._began, 1),
            peak_memory_gb=round(usage.ru_maxrss * 1024 / 1e9, 2),  # Linux counts in 1024 bytes
            finished_at=time.time(),
        )
        write_json(self._record, asdict(record))
        peak = f"peak memory {record.peak_memory_gb:.2f} GB"
        print(f"{self._title}  done in {clock(record.seconds)}, {peak}", flush=True)
        return record

    def end(self) -> None:
        """Wait until the command has ended as it was asked to, or kill it."""
        try:
            self.process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _tell_progress(self) -> None:
        if time.monotonic() - self._told < PROGRESS_EVERY_SECONDS:
            return
        self._told = time.monotonic()
        found = PROGRESS.findall(self._log.read_text("utf-8", errors="replace"))
        if found and found[-1] != self._place:
            self._place = found[-1]
            print(f"{self._title}  {self._place}", flush=True)

    def _failure(self, reason: str) -> str:
        last_lines = self._log.read_text("utf-8", errors="replace").splitlines()[-25:]
        return "\n".join([*last_lines, "", f"{self.stage.name} {reason}: see {self._log}"])


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
    except (ValueError, OSError, StageError) as error:
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

"""Run stages, each one command, and keep finished results.

A finished stage writes ``stages/<name>.json`` into the run folder. It is not run again if its
command is the same, its result is still there, and no stage that it reads from ran again. The
command names all settings and the files that the stage reads. A training whose time was up goes on
from its newest checkpoint when it is run again.
"""

import argparse
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from graphlib import TopologicalSorter
from pathlib import Path
from threading import TIMEOUT_MAX, Event, Timer

from rsl_tbptt.files import output_path, write_json
from rsl_tbptt.tools.platforms import executable

LOOK_SECONDS = 1.0
"""Time between two looks at the memory in use on a GPU."""
PROGRESS_SECONDS = 30.0
"""Time between two lines about a training's progress."""
PROGRESS = re.compile(r"Learning iteration (\d+/\d+)")
"""rsl_rl's line of an iteration."""
GRACE_SECONDS = 10.0
"""Time that a terminated command has before it is killed."""
TIME_IS_UP = 75
"""Exit status of a script that has stages left: try again (sysexits.h, EX_TEMPFAIL)."""


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
    rest: "Callable[[Path, float], Stage | None] | None" = None
    """Returns a stage that goes on where this one was broken off; None if that cannot be done.

    It takes the run folder and the time at which the stage first began.
    """


@dataclass(frozen=True, kw_only=True)
class Record:
    """Result and cost of a stage; its seconds and peaks are of all attempts."""

    output: str = ""
    """Path of its result, relative to the run folder; empty if the stage was broken off."""
    command: str
    seconds: float = 0.0
    peak_memory_gb: float = 0.0
    """Largest resident memory of the command or one of its children, in 10^9 bytes."""
    gpu_memory_gb: float | None = None
    """Largest memory in use on the GPU, other programs included, in 10^9 bytes."""
    began_at: float
    """Seconds since the epoch."""
    finished_at: float = 0.0
    """Seconds since the epoch; 0 if it was broken off."""


def run_stages(
    stages: Sequence[Stage],
    folder: Path,
    device: str,
    jobs: int | None = None,
    minutes: float = math.inf,
) -> dict[str, Record]:
    """Run every stage that is not finished, earlier ones first.

    Args:
        stages: The stages in order.
        folder: Run folder; created if missing.
        device: Device that the commands compute on.
        jobs: Number of stages that run at a time. None means two on a CPU, where each uses one
            core, and one on a GPU.
        minutes: Time after which running commands are ended.

    Returns:
        The records of the finished stages by name: all, unless the time was up.

    Raises:
        ValueError: If ``jobs`` is below 1, or the folder cannot be written.
        StageError: If a command fails or leaves no result. Any error, and Ctrl+C, also end the
            other commands.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"--jobs is {jobs}, expected at least 1.")
    output_path(folder / "stages", Path("stages"))
    print(f"Run folder {folder}: commands run there, their output is in stages/*.log\n")
    titles = [f"[{number}/{len(stages)}] {s.name}" for number, s in enumerate(stages, 1)]
    numbers, records = {s.name: number for number, s in enumerate(stages)}, dict[str, Record]()
    graph = TopologicalSorter({stage.name: stage.needs for stage in stages})
    graph.prepare()
    ready, running, stop = list[int](), dict[Future[Record], str](), Event()
    timer = Timer(min(60 * minutes, TIMEOUT_MAX), stop.set)
    timer.start()
    with ThreadPoolExecutor(jobs := jobs or (2 if device == "cpu" else 1)) as pool:
        try:
            while graph.is_active():
                ready = sorted([*ready, *(numbers[name] for name in graph.get_ready())])
                while ready and len(running) < jobs and not stop.is_set():
                    stage, title = stages[ready[0]], titles[ready.pop(0)]
                    needs = {need: records[need] for need in stage.needs}
                    arguments = (stage, title, folder, device, needs, stop)
                    running[pool.submit(_run, *arguments)] = stage.name
                if not running:
                    break  # the time is up
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    name, record = running.pop(future), future.result()
                    if record.output:
                        records[name] = record
                        graph.done(name)
        except BaseException:
            stop.set()
            raise
        finally:
            timer.cancel()
    return {stage.name: records[stage.name] for stage in stages if stage.name in records}


def _run(
    stage: Stage, title: str, folder: Path, device: str, needs: dict[str, Record], stop: Event
) -> Record:
    """Run a stage, unless it is finished, and write its record.

    Raises:
        StageError: If its command fails or leaves no result.
    """
    outputs = {name: need.output for name, need in needs.items()}
    command = stage.command(outputs)
    shown, file = shlex.join(command), folder / "stages" / f"{stage.name}.json"
    record = read_record(folder, stage.name)
    if (
        record is None
        or record.command != shown
        or any(need.finished_at >= record.began_at for need in needs.values())
        or not (folder / record.output).exists()
    ):
        record = Record(command=shown, began_at=time.time())
    elif record.output:
        print(f"{title}: finished before in {clock(record.seconds)}, reused", flush=True)
        return record
    elif stage.rest and (rest := stage.rest(folder, record.began_at)):
        command, stage = rest.command(outputs), rest
    write_json(file, asdict(record))
    print(f"{title}\n  {shlex.join(command)}", flush=True)
    began, log = time.time(), file.with_suffix(".log")
    with log.open("wb") as written:
        process = subprocess.Popen(
            executable(command),
            cwd=folder,
            env=child_environment(device),
            stdout=written,
            stderr=subprocess.STDOUT,
        )
    peak_bytes, gpu_bytes = _wait(process, title, log, stop, device)
    gpu_memory = max(gpu_bytes / 1e9, record.gpu_memory_gb or 0.0)
    record = replace(
        record,
        seconds=round(record.seconds + time.time() - began, 1),
        peak_memory_gb=round(max(peak_bytes / 1e9, record.peak_memory_gb), 2),
        gpu_memory_gb=round(gpu_memory, 2) if gpu_memory else None,
    )
    found = [path for path in folder.glob(stage.output) if path.stat().st_mtime >= began]
    if process.returncode == 0 and found:
        output = max(found, key=lambda path: path.stat().st_mtime).relative_to(folder).as_posix()
        record = replace(record, output=output, finished_at=time.time())
        peak = f"peak memory {record.peak_memory_gb:.2f} GB"
        print(f"{title}  done in {clock(record.seconds)}, {peak}", flush=True)
    elif not stop.is_set():
        file.unlink()
        reason = f"failed with status {process.returncode}"
        if process.returncode == 0:
            reason = f"left no result: {stage.output} was not written"
        last_lines = log.read_text("utf-8", errors="replace").splitlines()[-25:]
        raise StageError("\n".join([*last_lines, "", f"{stage.name} {reason}: see {log}"]))
    write_json(file, asdict(record))
    return record


def child_environment(device: str) -> dict[str, str]:
    """Return the environment variables for a command.

    A second thread does not speed up networks of this size, and on busy cores threads wait for each
    other: next to one other process on 2 cores an update took 4.8 s with two threads and 0.1 s with
    one. A number that the user sets is kept.
    """
    environment = {"PYTHONUNBUFFERED": "1", "MPLBACKEND": "Agg", **os.environ}
    if device == "cpu":
        environment.setdefault("OMP_NUM_THREADS", "1")
    return environment


def _wait(
    process: subprocess.Popen[bytes], title: str, log: Path, stop: Event, device: str
) -> tuple[int, int]:
    """Wait until a command ends and print its progress; return its peak memory and the GPU's."""
    looked, gpu_bytes = time.monotonic(), 0
    shown = looked
    # wait4 instead of Popen.poll, because it returns the peak memory of this child alone.
    while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
        if stop.wait(0.05):
            process.terminate()
            try:
                process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            return 0, gpu_bytes
        if time.monotonic() - looked >= LOOK_SECONDS:
            gpu_bytes, looked = max(gpu_bytes, _used_gpu_bytes(device)), time.monotonic()
        if time.monotonic() - shown >= PROGRESS_SECONDS:
            _print_progress(log, title)
            shown = time.monotonic()
    process.returncode = os.waitstatus_to_exitcode(ended[1])
    return ended[2].ru_maxrss * 1024, gpu_bytes  # Linux counts in 1024 bytes


def _used_gpu_bytes(device: str) -> int:
    """Return the memory in use on a GPU, by all programs; 0 on a CPU."""
    kind, _, index = device.partition(":")
    if kind != "cuda" or not shutil.which("nvidia-smi"):
        return 0
    query = ["--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    told = subprocess.run(
        ["nvidia-smi", f"--id={index or 0}", *query], capture_output=True, text=True, check=False
    )
    return int(told.stdout) * 2**20 if told.stdout.strip().isdigit() else 0  # it counts in MiB


def _print_progress(log: Path, title: str) -> None:
    """Print the newest iteration in a training's log."""
    if found := PROGRESS.findall(log.read_text("utf-8", errors="replace")):
        print(f"{title}  iteration {found[-1]}", flush=True)


def read_record(folder: Path, name: str) -> Record | None:
    """Read a stage's record; None if it is missing or unreadable."""
    try:
        return Record(**json.loads((folder / "stages" / f"{name}.json").read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def run_script(
    parser: argparse.ArgumentParser, work: Callable[[argparse.Namespace], bool | None]
) -> int:
    """Run a script that runs stages.

    Args:
        parser: Parser with the options of this script only.
        work: Function to call with the command line, whose ``output`` is the run folder. It returns
            whether all is done; None counts as done.

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
        if work(args) is False:
            print("\nthe time is up: run the same command again to continue", file=sys.stderr)
            return TIME_IS_UP
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


def clock(seconds: float) -> str:
    """Write a duration as minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"

"""Run the stages of a run, with progress and remaining time on the screen."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from subprocess import Popen

from rich.progress import Progress

from rsl_tbptt.platforms.commands import child_environment, executable, shown
from scripts.pipeline.process import Finished, end, run_logged, tail
from scripts.pipeline.progress import clock, displayed, new_bars
from scripts.pipeline.run_folder import Marker, RunFolder, Stage


class StageError(RuntimeError):
    """A stage's command failed."""


class Conductor:
    """Runs what is unfinished and reuses the rest."""

    def __init__(self, run: RunFolder, device: str, jobs: int | None = None) -> None:
        """Prepare to run stages.

        Args:
            run: The run folder.
            device: Device that the commands compute on.
            jobs: Stages that run at the same time, as far as they do not need each other. None
                runs two on a CPU, where each computes on one core, and one on a GPU.

        Raises:
            ValueError: If there would be none.
        """
        if jobs is not None and jobs < 1:
            raise ValueError(f"--jobs is {jobs}, expected at least 1.")
        self._run = run
        self._device = device
        self._jobs = jobs or (min(2, os.cpu_count() or 1) if device == "cpu" else 1)
        self._processes: list[Popen[bytes]] = []

    def run_all(self, stages: Sequence[Stage]) -> dict[str, Marker]:
        """Run every stage that is not finished.

        Args:
            stages: The stages in order; needs come first.

        Returns:
            The stages' markers by name.

        Raises:
            StageError: If a command fails or leaves no result; those that run beside it are ended.
        """
        print(f"Run folder {self._run.path}: commands run there, their output is in stages/*.log\n")
        titles = {s.name: f"[{n}/{len(stages)}] {s.name}" for n, s in enumerate(stages, start=1)}
        pending = unfinished(stages, self._run)
        markers: dict[str, Marker] = {}
        for stage in stages:
            if stage.name not in pending and (marker := self._run.marker(stage.name)):
                print(f"{titles[stage.name]}: finished before in {clock(marker.seconds)}, reused")
                markers[stage.name] = marker
        left = [stage for stage in stages if stage.name not in markers]
        running: dict[Future[Marker], Stage] = {}
        with new_bars() as bars, self._pool(running) as pool:
            everything = bars.add_task("all", total=sum(s.expected_seconds for s in left), where="")
            while left or running:
                ready = [stage for stage in left if markers.keys() >= set(stage.needs)]
                for stage in ready[: self._jobs - len(running)]:
                    left.remove(stage)
                    outputs = {need: markers[need].output for need in stage.needs}
                    work = partial(self._run_stage, stage, outputs, titles[stage.name], bars)
                    running[pool.submit(work)] = stage
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    stage = running.pop(future)
                    markers[stage.name] = future.result()
                    bars.advance(everything, stage.expected_seconds)
        return {name: markers[name] for name in titles}

    @contextmanager
    def _pool(self, running: Iterable[Future[Marker]]) -> Iterator[ThreadPoolExecutor]:
        """Yield threads for stages; where one fails, end the commands of the others."""
        with ThreadPoolExecutor(self._jobs) as pool:
            try:
                yield pool
            except BaseException:
                while wait(running, timeout=0.1).not_done:
                    for process in self._processes:
                        end(process)
                raise

    def _run_stage(
        self, stage: Stage, outputs: dict[str, str], title: str, bars: Progress
    ) -> Marker:
        """Run one stage's command and leave its marker."""
        command = stage.command(outputs)
        print(f"{title}\n  {shown(command)}", flush=True)
        self._run.start(stage)
        began = time.time()
        with displayed(title, bars) as read:
            done = run_logged(
                executable(command),
                folder=self._run.path,
                log=self._run.log(stage.name),
                environment=child_environment(self._device),
                on_start=self._processes.append,
                on_line=read,
            )
        marker = self._run.finish(stage, self._output(stage, done, began), shown(command), done)
        memory = f"{marker.peak_memory_gb:.2f} GB"
        print(f"{title}  done in {clock(marker.seconds)}, peak memory {memory}\n", flush=True)
        return marker

    def _output(self, stage: Stage, done: Finished, began: float) -> Path:
        """Find the result of a command that has ended.

        Raises:
            StageError: If the command failed or left no result.
        """
        log = self._run.log(stage.name)
        if done.status != 0:
            raise StageError(
                f"{tail(log)}\n\n{stage.name} failed with status {done.status}: see {log}"
            )
        try:
            return stage.output(began)
        except FileNotFoundError as error:
            raise StageError(
                f"{tail(log)}\n\n{stage.name} left no result: {error} See {log}"
            ) from error


def unfinished(stages: Sequence[Stage], run: RunFolder) -> set[str]:
    """Name the stages that have to run: unfinished ones and those that read from them.

    Args:
        stages: The stages in order; needs come first.
        run: The run folder.

    Returns:
        Names of stages.
    """
    pending: set[str] = set()
    for stage in stages:
        if run.finished(stage) is None or not pending.isdisjoint(stage.needs):
            pending.add(stage.name)
    return pending


def run_parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """Return a command line for a script that runs a preset's stages.

    Args:
        program: How it is called.
        description: What ``--help`` says.

    Returns:
        A parser of the preset, the device and the run folder.
    """
    parser = argparse.ArgumentParser(
        prog=program, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", type=Path, help="preset: a file in configs/, or your own")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:<index>")
    parser.add_argument("--output", type=Path, help="run folder, by default runs/<preset>")
    parser.add_argument("--jobs", type=int, help="stages at a time: on a CPU 2, on a GPU 1")
    return parser


def exit_status(work: Callable[[], None]) -> int:
    """Do the work of a script that runs stages, and say in one line why it ended early.

    Args:
        work: The work.

    Returns:
        The exit status.
    """
    # A run that is told to stop ends its child too, as with Ctrl+C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        work()
    except KeyboardInterrupt:
        print("\ninterrupted: the same command goes on with the unfinished stage", file=sys.stderr)
        return 130
    except (ValueError, FileNotFoundError, StageError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    return 0


def cost(markers: dict[str, Marker], seconds: float) -> str:
    """Write what a run took.

    Args:
        markers: Its stages' markers.
        seconds: Duration of this call.

    Returns:
        One line.
    """
    peak = max(marker.peak_memory_gb for marker in markers.values())
    spent = sum(marker.seconds for marker in markers.values())
    return f"time: {clock(seconds)} now, {clock(spent)} for all stages; peak memory {peak:.2f} GB"

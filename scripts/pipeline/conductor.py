"""Run stages one after the other, with progress and remaining time on the screen."""

import argparse
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rsl_tbptt.platforms.commands import child_environment, executable, shown
from scripts.pipeline.process import Finished, run_logged, tail
from scripts.pipeline.progress import Progress, clock, displayed
from scripts.pipeline.run_folder import Marker, RunFolder, Stage


class StageError(RuntimeError):
    """A stage's command failed."""


class Conductor:
    """Runs what is unfinished and reuses the rest."""

    def __init__(self, run: RunFolder, device: str) -> None:
        """Prepare to run stages.

        Args:
            run: The run folder.
            device: Device that the commands compute on.
        """
        self._run = run
        self._device = device
        self._measured = self._expected = 0.0

    def run_all(self, stages: Sequence[Stage]) -> dict[str, Marker]:
        """Run every stage that is not finished.

        Args:
            stages: The stages in order; needs come first.

        Returns:
            The stages' markers by name.

        Raises:
            StageError: If a command fails or leaves no result.
        """
        print(f"Run folder {self._run.path}: commands run there, their output is in stages/*.log\n")
        pending = unfinished(stages, self._run)
        markers: dict[str, Marker] = {}
        for number, stage in enumerate(stages, start=1):
            title = f"[{number}/{len(stages)}] {stage.name}"
            marker = None if stage.name in pending else self._run.marker(stage.name)
            if marker is None:
                after = [s for s in stages[number:] if s.name in pending]
                command = stage.command({name: markers[name].output for name in stage.needs})
                marker = self._run_stage(stage, command, title, after)
            else:
                print(f"{title}: finished before in {clock(marker.seconds)}, reused")
            markers[stage.name] = marker
        return markers

    def _run_stage(
        self, stage: Stage, command: list[str], title: str, after: Sequence[Stage]
    ) -> Marker:
        """Run one stage's command and leave its marker."""
        self._run.start(stage)
        print(f"{title}\n  {shown(command)}", flush=True)
        # What this machine needed so far corrects the guesses for the rest.
        pace = self._measured / self._expected if self._expected else 1.0
        seconds_after = pace * sum(s.expected_seconds for s in after)
        progress = Progress(pace * stage.expected_seconds, seconds_after)

        began = time.time()
        with displayed(title, progress) as read:
            done = run_logged(
                executable(command),
                folder=self._run.path,
                log=self._run.log(stage.name),
                environment=child_environment(self._device),
                on_line=read,
            )
        output = self._output(stage, done, began)
        self._measured += done.seconds
        self._expected += stage.expected_seconds
        print(f"{title}  done in {clock(done.seconds)}, peak memory {done.peak_memory_gb:.2f} GB\n")
        return self._run.finish(stage, output, shown(command), done)

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

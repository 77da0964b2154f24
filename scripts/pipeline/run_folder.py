"""Stages of a run that are done once: what a stage depends on, and whether it is finished."""

import hashlib
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rsl_tbptt.files import write_json
from scripts.pipeline.process import Finished


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One command of a run."""

    name: str
    needs: tuple[str, ...] = ()
    """Stages whose outputs it reads."""
    settings: dict[str, Any]
    """Everything else that its result depends on; JSON values."""
    command: Callable[[dict[str, str]], list[str]]
    """Writes the command from the outputs of earlier stages, paths relative to the run folder."""
    output: Callable[[float], Path]
    """Finds the result of a command that began at the given time, or raises FileNotFoundError."""
    expected_seconds: float


@dataclass(frozen=True, kw_only=True)
class Marker:
    """What a finished stage leaves: the proof that it is finished, and with which settings."""

    fingerprint: str
    output: str
    """Its result. Path relative to the run folder."""
    command: str
    seconds: float
    peak_memory_gb: float
    finished_at: float
    """In seconds since the epoch."""


class RunFolder:
    """The folder of one run, and the markers of its finished stages."""

    def __init__(self, path: Path) -> None:
        """Open or create a run folder.

        Args:
            path: The folder.

        Raises:
            ValueError: If it cannot be written.
        """
        self.path = path.resolve()
        self.stages = self.path / "stages"
        try:
            self.stages.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.stages).close()
        except OSError as error:
            raise ValueError(
                f"The run folder is {path}, expected one that can be written ({error.strerror}):"
                " name another with --output, or with `make demo RUN=folder`."
            ) from error

    def log(self, name: str) -> Path:
        """Return the file for a stage's output on screen."""
        return self.stages / f"{name}.log"

    def fingerprint(self, stage: Stage) -> str:
        """Digest a stage's settings and the very runs of the stages it reads from.

        A stage that ran again changes the digest of all that follow, even with equal settings.
        """
        markers = {name: self.marker(name) for name in stage.needs}
        needs = {name: marker and marker.finished_at for name, marker in markers.items()}
        text = json.dumps({"settings": stage.settings, "needs": needs}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def marker(self, name: str) -> Marker | None:
        """Read a stage's marker; None if it has none or an unreadable one."""
        try:
            text = (self.stages / f"{name}.json").read_text(encoding="utf-8")
            return Marker(**json.loads(text))
        except (OSError, ValueError, TypeError):
            return None

    def finished(self, stage: Stage) -> Marker | None:
        """Return a stage's marker if it is finished with its present settings, else None."""
        marker = self.marker(stage.name)
        if marker is None or marker.fingerprint != self.fingerprint(stage):
            return None
        return marker if (self.path / marker.output).exists() else None

    def start(self, stage: Stage) -> None:
        """Take a stage's marker away: from here on it is unfinished."""
        (self.stages / f"{stage.name}.json").unlink(missing_ok=True)

    def finish(self, stage: Stage, output: Path, command: str, done: Finished) -> Marker:
        """Leave a stage's marker.

        Args:
            stage: The stage.
            output: Its result, inside the run folder.
            command: What was run, as shown.
            done: How it ended.

        Returns:
            The marker.
        """
        marker = Marker(
            fingerprint=self.fingerprint(stage),
            output=output.relative_to(self.path).as_posix(),
            command=command,
            seconds=round(done.seconds, 1),
            peak_memory_gb=round(done.peak_memory_gb, 2),
            finished_at=time.time(),
        )
        write_json(self.stages / f"{stage.name}.json", asdict(marker))
        return marker

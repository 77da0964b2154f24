"""Writing checkpoints whole or not at all."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from rsl_tbptt.checkpoints.reading import NUMBERED
from rsl_tbptt.files import complete, delete_unfinished, write_json

FIXES = {
    errno.ENOSPC: "free some space there, or keep fewer checkpoints (keep_last)",
    errno.EDQUOT: "free some of your quota there, or keep fewer checkpoints (keep_last)",
    errno.EROFS: "choose another folder or mount it writable",
}


class NotWrittenError(ValueError):
    """A checkpoint could not be written; those that are there are as before."""


def save_checkpoint(checkpoint: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write ``checkpoint`` whole or not at all; see ``files.complete``.

    What killed processes left half written in its folder is deleted.

    Args:
        checkpoint: What ``torch.save`` accepts.
        path: Target file or a link to it; its folder is created.

    Raises:
        NotWrittenError: If it cannot be written; in one line with the reason and the fix.
    """
    path = Path(path)
    try:
        with complete(path) as unfinished, unfinished.open("xb") as file, _as_os_error():
            torch.save(checkpoint, file)
    except OSError as error:
        raise NotWrittenError(
            f"The checkpoint '{path}' cannot be written ({_reason(error, path)}): {_fix(error)}."
        ) from error
    delete_unfinished(path)


def check_writable(folder: str | os.PathLike[str]) -> None:
    """Create ``folder`` if it is missing and check that files can be written there.

    Raises:
        NotWrittenError: If they cannot.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))  # an empty file fits on a full disk
    except OSError as error:
        raise NotWrittenError(
            f"The run folder '{folder}' cannot be written ({error.strerror}): {_fix(error)}."
        ) from error


class FailedSaves:
    """Lets a training go on where a checkpoint cannot be written, and warns of it."""

    def __init__(self) -> None:
        """Begin with the last one written."""
        self._failed = False

    @contextmanager
    def passed_over(self, again: bool) -> Iterator[None]:
        """Warn where writing fails inside, once until it works again.

        Args:
            again: Whether another checkpoint will follow; if not, the failure is an error.

        Raises:
            NotWrittenError: If it is the last one that cannot be written.
        """
        try:
            yield
            self._failed = False
        except NotWrittenError as error:
            if not again:
                raise
            if not self._failed:
                self._failed = True
                warnings.warn(
                    f"{error} Older checkpoints are as before; training goes on, and the next one"
                    " is tried when it is due.",
                    stacklevel=4,
                )


@contextmanager
def _as_os_error() -> Iterator[None]:
    """Raise what the file said where torch's archive writer puts its own error over it.

    Raises:
        OSError: If there is one behind what was raised inside.
        RuntimeError: Otherwise, as it was.
    """
    try:
        yield
    except RuntimeError as error:
        below: BaseException | None = error
        while below is not None and not isinstance(below, OSError):
            below = below.__cause__ or below.__context__
        if below is None:
            raise
        raise OSError(below.errno, below.strerror) from error


def _reason(error: OSError, path: Path) -> str:
    """Say what failed, and how much space is left."""
    folders = path.resolve().parents
    free = shutil.disk_usage(next(each for each in folders if each.exists())).free
    return f"{error.strerror or error}; {free:,} bytes are free in its folder"


def _fix(error: OSError) -> str:
    return FIXES.get(error.errno or 0, "choose another folder or change its permissions")


NOTES = "checkpoints.json"
"""What was written into a run's folder; only checkpoints that it notes as they are are deleted."""


@dataclass(frozen=True, kw_only=True)
class Note:
    """A checkpoint as it was written."""

    file: str
    iteration: int
    mean_return: float | None
    """Mean return of the newest episodes in training, None before any has ended."""
    size: int
    mtime_ns: int

    def is_plausible(self) -> bool:
        """Return whether a runner of this package can have written it.

        Anybody may edit the notes, and what they name is deleted one day.
        """
        name, rating = self.file, self.mean_return
        return (
            isinstance(name, str)
            and NUMBERED.fullmatch(name) is not None  # no folder in it
            and (rating is None or (isinstance(rating, int | float) and math.isfinite(rating)))
        )


class KeptCheckpoints:
    """Deletes a run's older checkpoints; files that it did not write itself stay."""

    def __init__(self, folder: Path, keep_last: int, keep_best: bool) -> None:
        """Go on with what an earlier process noted in ``folder``.

        Args:
            folder: The run's folder.
            keep_last: Newest checkpoints to keep.
            keep_best: Whether the one of the highest mean return is kept beside them.
        """
        self._folder, self._keep_last, self._keep_best = folder, keep_last, keep_best
        self._notes = _read_notes(folder / NOTES)

    def add(self, path: Path, iteration: int, mean_return: float | None) -> None:
        """Note a checkpoint that has just been written, and delete those that it outdates.

        Args:
            path: The file, in the run's folder.
            iteration: Its iteration.
            mean_return: Mean return of the newest episodes, None before any has ended.
        """
        if mean_return is not None and not math.isfinite(mean_return):
            mean_return = None
        written = path.stat()
        note = Note(
            file=path.name,
            iteration=iteration,
            mean_return=mean_return,
            size=written.st_size,
            mtime_ns=written.st_mtime_ns,
        )
        others = [other for other in self._notes if other.file != note.file]
        ours = [other for other in others if self._is_as_written(other)]
        self._notes = self._chosen([*ours, note])
        try:
            for other in ours:
                if other not in self._notes:
                    (self._folder / other.file).unlink(missing_ok=True)
            # Last: a file that is noted and gone does no harm, one that is not noted would stay.
            write_json(self._folder / NOTES, [asdict(each) for each in self._notes])
        except OSError as error:  # the checkpoint is written, and the next time comes
            warnings.warn(
                f"'{self._folder / NOTES}' cannot be written ({error.strerror}): checkpoints that"
                " it does not note are kept.",
                stacklevel=3,
            )

    def _chosen(self, notes: list[Note]) -> list[Note]:
        """Return those to keep, in the order in which they were written."""
        kept = notes[-self._keep_last :]
        rated = [note for note in notes if note.mean_return is not None]
        if self._keep_best and rated:
            kept.append(max(reversed(rated), key=lambda note: note.mean_return or 0.0))
        return [note for note in notes if note in kept]

    def _is_as_written(self, note: Note) -> bool:
        """Return whether a file is there and nobody has changed it."""
        path = self._folder / note.file
        if not path.is_file():
            return False
        found = path.stat()
        return (found.st_size, found.st_mtime_ns) == (note.size, note.mtime_ns)


def check_kept(train_cfg: Mapping[str, Any]) -> None:
    """Check ``keep_last`` and ``keep_best`` of a runner's config.

    Raises:
        ValueError: If one is not valid, or the second has no effect.
    """
    last, best = train_cfg.get("keep_last"), train_cfg.get("keep_best")
    if last is not None and (not isinstance(last, int) or isinstance(last, bool) or last < 1):
        raise ValueError(
            f"keep_last is {last!r}, expected an integer of at least 1: the number of newest"
            " checkpoints to keep. Use None to keep all."
        )
    if best is not None and not isinstance(best, bool):
        raise ValueError(f"keep_best is {best!r}, expected True or False.")
    if best and last is None:
        raise ValueError(
            "keep_best is True and keep_last None, expected a number in keep_last: without it every"
            " checkpoint is kept, the best too."
        )


def kept_checkpoints(train_cfg: Mapping[str, Any], log_dir: str | None) -> KeptCheckpoints | None:
    """Return what a runner's config asks for, None where everything is kept."""
    if log_dir is None or train_cfg.get("keep_last") is None:
        return None
    return KeptCheckpoints(Path(log_dir), train_cfg["keep_last"], bool(train_cfg.get("keep_best")))


def _read_notes(path: Path) -> list[Note]:
    """Read the notes of an earlier process; without readable ones nothing of it is deleted."""
    if not path.is_file():
        return []
    try:
        notes = [Note(**note) for note in json.loads(path.read_text(encoding="utf-8"))]
    except (ValueError, TypeError) as error:
        warnings.warn(
            f"'{path}' cannot be read ({error}): checkpoints that it noted are kept.", stacklevel=4
        )
        return []
    return list({note.file: note for note in notes if note.is_plausible()}.values())

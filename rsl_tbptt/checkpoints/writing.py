"""Writing checkpoints completely or not at all, and deleting all but the newest and the best."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rsl_tbptt.checkpoints.reading import NUMBERED
from rsl_tbptt.files import complete, delete_unfinished, write_json

NOTES = "checkpoints.json"
"""A runner's notes on its checkpoints; only files that are unchanged since are deleted."""


class NotWrittenError(ValueError):
    """A checkpoint could not be written; existing ones are unchanged."""


def save_checkpoint(checkpoint: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write ``checkpoint`` completely or not at all; see ``files.complete``.

    It also deletes unfinished files that killed processes have left in the folder.

    Args:
        checkpoint: Any value that ``torch.save`` accepts.
        path: Target file or a link to it; its folder is created.

    Raises:
        NotWrittenError: If it cannot be written; one line with the reason and the fix.
        RuntimeError: If torch fails for a reason other than the file.
    """
    path = Path(path)
    try:
        with complete(path) as unfinished, unfinished.open("xb") as file:
            torch.save(checkpoint, file)
    except (OSError, RuntimeError) as error:
        # torch's archive writer raises its own RuntimeError while it handles the file's error.
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise RuntimeError(f"The checkpoint '{path}' cannot be written: {error}") from error
        folder = next(each for each in path.resolve().parents if each.exists())
        raise NotWrittenError(
            f"The checkpoint '{path}' cannot be written ({cause.strerror or cause};"
            f" {shutil.disk_usage(folder).free:,} bytes are free in its folder): {_fix(cause)}."
        ) from error
    delete_unfinished(path)


def check_writable(folder: str | os.PathLike[str]) -> None:
    """Create ``folder`` if it is missing and check that files can be written there.

    Raises:
        NotWrittenError: If they cannot be written.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))  # an empty file would fit on a full disk
    except OSError as error:
        raise NotWrittenError(
            f"The run folder '{folder}' cannot be written ({error.strerror}): {_fix(error)}."
        ) from error


def _fix(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space there, or keep fewer checkpoints (keep_last)"
    return "choose another folder or make it writable"


class CheckpointWriter:
    """Writes the checkpoints of one training, which continues if an intermediate write fails."""

    _failed = False

    def write(self, checkpoint: dict[str, Any], path: Path, is_last: bool) -> bool:
        """Write a checkpoint; on failure warn, once until writing works again.

        Args:
            checkpoint: Any value that ``torch.save`` accepts.
            path: The file.
            is_last: Whether no other checkpoint follows, which makes a failure an error.

        Returns:
            Whether it was written.

        Raises:
            NotWrittenError: If the last one cannot be written.
        """
        try:
            save_checkpoint(checkpoint, path)
        except NotWrittenError as error:
            if is_last:
                raise
            if not self._failed:
                warnings.warn(
                    f"{error} Older checkpoints are unchanged; training goes on and tries again"
                    " when the next one is due.",
                    stacklevel=3,
                )
            self._failed = True
            return False
        self._failed = False
        return True


class KeptCheckpoints:
    """Deletes a run's older checkpoints, but only files that it wrote itself."""

    def __init__(self, folder: Path, keep_last: int, keep_best: bool) -> None:
        """Read the notes that an earlier process wrote in ``folder``.

        Args:
            folder: The run's folder.
            keep_last: Number of newest checkpoints to keep.
            keep_best: Whether to keep the one with the highest mean return as well.
        """
        self._folder, self._keep_last, self._keep_best = folder, keep_last, keep_best
        self._notes = _read_notes(folder / NOTES)

    def add(self, path: Path, iteration: int, mean_return: float | None) -> None:
        """Note a checkpoint that has just been written, and delete older ones.

        Args:
            path: The file, in the run's folder.
            iteration: Its iteration.
            mean_return: Mean return of the newest episodes, or None if it is not known yet.
        """
        if mean_return is not None and not math.isfinite(mean_return):
            mean_return = None
        note = {"file": path.name, "iteration": iteration, "mean_return": mean_return}
        note |= _size_and_time(path)
        others = [other for other in self._notes if other["file"] != path.name]
        ours = [other for other in others if self._is_as_written(other)]
        self._notes = self._chosen([*ours, note])
        try:
            for other in ours:
                if other not in self._notes:
                    (self._folder / other["file"]).unlink(missing_ok=True)
            # Last: a noted file that is gone does no harm, but a file without a note would stay.
            write_json(self._folder / NOTES, self._notes)
        except OSError as error:  # the checkpoint is written, and the next time may succeed
            warnings.warn(
                f"'{self._folder / NOTES}' cannot be written ({error.strerror}): checkpoints that"
                " it does not note are kept.",
                stacklevel=3,
            )

    def _chosen(self, notes: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the notes to keep, in the order in which they were written."""
        kept = notes[-self._keep_last :]
        rated = [note for note in notes if note["mean_return"] is not None]
        if self._keep_best and rated:
            kept.append(max(reversed(rated), key=lambda note: note["mean_return"]))
        return [note for note in notes if note in kept]

    def _is_as_written(self, note: dict[str, Any]) -> bool:
        """Return whether a file exists and nobody has changed it."""
        path = self._folder / note["file"]
        return path.is_file() and _size_and_time(path).items() <= note.items()


def check_kept(train_cfg: Mapping[str, Any]) -> None:
    """Check ``keep_last`` and ``keep_best`` of a runner's config.

    Raises:
        ValueError: If one is not valid, or ``keep_best`` has no effect.
    """
    last, best = train_cfg.get("keep_last"), train_cfg.get("keep_best")
    if last is not None and (type(last) is not int or last < 1):
        raise ValueError(f"keep_last is {last!r}, expected an integer of at least 1 or None.")
    if not isinstance(best, (bool, type(None))):
        raise ValueError(f"keep_best is {best!r}, expected True or False.")
    if best and last is None:
        raise ValueError(
            "keep_best is True and keep_last None, expected a number in keep_last: without it every"
            " checkpoint is kept."
        )


def _size_and_time(path: Path) -> dict[str, int]:
    found = path.stat()
    return {"size": found.st_size, "mtime_ns": found.st_mtime_ns}


def _read_notes(path: Path) -> list[dict[str, Any]]:
    """Read the notes of an earlier process; if that fails, none of its files is deleted."""
    try:
        notes = json.loads(path.read_text(encoding="utf-8"))
        return list({note["file"]: note for note in notes if _is_plausible(note)}.values())
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, LookupError) as error:
        warnings.warn(
            f"'{path}' cannot be read ({error!r}): checkpoints that it noted are kept.",
            stacklevel=4,
        )
        return []


def _is_plausible(note: dict[str, Any]) -> bool:
    """Return whether a runner can have written a note, since files with notes may be deleted."""
    name, rating = note["file"], note["mean_return"]
    is_own = isinstance(name, str) and NUMBERED.fullmatch(name)  # cannot contain a folder
    is_rating = rating is None or (isinstance(rating, int | float) and math.isfinite(rating))
    return bool(is_own and is_rating)

"""Writing checkpoints completely or not at all, and deleting all but the newest."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from rsl_tbptt.files import complete, delete_unfinished


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


class KeptCheckpoints:
    """Deletes the older ones of the checkpoints that this process has written for a training."""

    def __init__(self, keep_last: int) -> None:
        """Set the number of newest checkpoints to keep."""
        self._keep_last = keep_last
        self._written: list[Path] = []

    def add(self, path: Path) -> None:
        """Note a checkpoint that has just been written, and delete older ones."""
        # A file that is written again is the newest.
        self._written = [*(each for each in self._written if each != path), path]
        while len(self._written) > self._keep_last:
            with suppress(OSError):  # the new file is written, which matters more
                self._written.pop(0).unlink()


def check_kept(train_cfg: Mapping[str, Any]) -> None:
    """Check ``keep_last`` of a runner's config, and refuse ``keep_best``, which is gone.

    Raises:
        ValueError: If ``keep_last`` is not valid, or ``keep_best`` is there.
    """
    last = train_cfg.get("keep_last")
    if last is not None and (type(last) is not int or last < 1):
        raise ValueError(f"keep_last is {last!r}, expected an integer of at least 1 or None.")
    if "keep_best" in train_cfg:
        raise ValueError(
            f"keep_best is {train_cfg['keep_best']!r}, expected no such key: the return of a"
            " training does not tell the best policy. Keep more checkpoints by keep_last, and"
            " compare them by rsl-tbptt evaluate."
        )

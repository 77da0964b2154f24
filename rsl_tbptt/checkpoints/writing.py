"""Writing checkpoints whole or not at all."""

import errno
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from rsl_tbptt.files import complete, delete_unfinished

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

"""The newest whole checkpoint of a run's folder, after whatever ended the run."""

from __future__ import annotations

import os
import re
import warnings
from contextlib import suppress
from pathlib import Path

LATEST = "latest"
"""As a file's name: the newest valid checkpoint of that folder."""

NUMBERED = re.compile(r"(?:model|safe)_(\d+)\.pt")
"""Names of checkpoints with their iteration: a runner's, and an algorithm's own line."""


def checkpoint_file(path: str | os.PathLike[str]) -> Path:
    """Return the file that a user names as a checkpoint.

    Args:
        path: A file; or a run's folder, or ``FOLDER/latest``, for the newest valid one in it.

    Returns:
        The file. One that is named itself is not looked at.

    Raises:
        ValueError: If a folder holds no valid checkpoint.
    """
    path = Path(path)
    if path.is_dir():
        return latest_checkpoint(path)
    if path.name == LATEST and not path.exists():
        return latest_checkpoint(path.parent)
    return path


def latest_checkpoint(folder: str | os.PathLike[str]) -> Path:
    """Find the checkpoint of the highest iteration that can be loaded.

    The iteration is that of the name, as times do not survive a copy; of two of one iteration the
    one written last comes first. Each is read whole, without running code it may contain; one that
    is damaged is passed over with a warning that names it. A training may write and delete files
    meanwhile.

    Args:
        folder: A run's folder with ``model_<iteration>.pt`` or ``safe_<iteration>.pt``.

    Returns:
        The file.

    Raises:
        ValueError: If the folder is missing or holds no valid checkpoint.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"The run folder '{folder}' does not exist: check the path.")
    found = numbered_checkpoints(folder)
    for path in found:
        if _is_valid(path):
            return path
        if not path.exists():  # deleted since; whoever deletes one has written a newer one
            return latest_checkpoint(folder)
    raise ValueError(
        f"The run folder '{folder}' holds no valid checkpoint, expected model_<iteration>.pt"
        f" ({len(found)} of that form cannot be loaded): name another run or file."
    )


def numbered_checkpoints(folder: Path) -> list[Path]:
    """Return a folder's checkpoints of any iteration, valid or not, the newest first."""
    found = []
    for path in folder.iterdir():
        if match := NUMBERED.fullmatch(path.name):
            with suppress(FileNotFoundError):  # deleted since
                found.append((int(match[1]), path.stat().st_mtime_ns, path))
    return [path for _, _, path in sorted(found, reverse=True)]


def _is_valid(path: Path) -> bool:
    """Return whether a checkpoint can be loaded and has what every runner writes.

    If not there is a warning, but for a file that has gone.
    """
    from rsl_tbptt.checkpoints.reading import read_checkpoint  # slow; a file needs none of it

    try:
        checkpoint = read_checkpoint(str(path), "cpu")
    except ValueError as error:
        reason = str(error)
    else:
        models = [key for key in checkpoint if key.endswith("state_dict") and checkpoint[key]]
        if models and isinstance(checkpoint.get("iter"), int):
            return True
        reason = (
            f"'{path}' holds {sorted(checkpoint)}, expected 'iter' and the parameters of models."
        )
    if path.exists():
        warnings.warn(f"Passed over a checkpoint. {reason}", stacklevel=3)
    return False

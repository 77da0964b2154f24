"""Writing checkpoints whole or not at all."""

import os
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import Any

import torch


def save_checkpoint(checkpoint: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write ``checkpoint`` to a temporary file beside ``path`` and rename it into place.

    A crash, a full disk or a kill leaves the previous file as it was. As with a plain ``open``, a
    new file has the mode that the umask leaves, an old one keeps its own, and a link stays.

    Args:
        checkpoint: What ``torch.save`` accepts.
        path: Target file or a link to it; its folder is created.

    Raises:
        ValueError: If the folder cannot be written.
    """
    path = Path(path).resolve()  # the target of a link
    check_writable(path.parent)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")  # mkstemp's have mode 0600
    try:
        with temporary.open("xb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def check_writable(folder: str | os.PathLike[str]) -> None:
    """Create ``folder`` if it is missing and check that files can be written there.

    Raises:
        ValueError: If they cannot.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"The run folder '{folder}' cannot be written ({error.strerror}): choose another folder"
            " or change its permissions."
        ) from error

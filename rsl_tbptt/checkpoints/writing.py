"""Writing checkpoints whole or not at all."""

import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from rsl_tbptt.files import complete


def save_checkpoint(checkpoint: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write ``checkpoint`` whole or not at all; see ``files.complete``.

    Args:
        checkpoint: What ``torch.save`` accepts.
        path: Target file or a link to it; its folder is created.

    Raises:
        ValueError: If the folder cannot be written.
    """
    path = Path(path)
    check_writable(path.resolve().parent)
    with complete(path) as unfinished, unfinished.open("xb") as file:
        torch.save(checkpoint, file)


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

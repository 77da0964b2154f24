"""Files that are complete or as before, whenever they are read."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def complete(path: Path) -> Iterator[Path]:
    """Give a path to write to; what was written replaces the file if nothing failed.

    A crash, a full disk or a kill leaves the previous file as it was. As with a plain ``open``, a
    new file has the mode that the umask leaves, an old one keeps its own, and a link stays.

    Args:
        path: The file or a link to it; its folder is created.

    Yields:
        A path beside it with the same suffix, which is gone afterwards.
    """
    path = path.resolve()  # the target of a link
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{uuid.uuid4().hex}-{path.name}")  # mkstemp's have mode 0600
    try:
        yield unfinished
        with unfinished.open("r+b") as written:
            os.fsync(written.fileno())
        if path.exists():
            shutil.copymode(path, unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file that is either complete or as before.

    Args:
        path: The file; its folder is created.
        value: JSON value.
    """
    with complete(path) as unfinished:
        unfinished.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def output_path(given: Path | None, default: Path) -> Path:
    """Choose where results go, and make sure that they can be written, before they are computed.

    Args:
        given: What the user named; what lies there may be replaced.
        default: Otherwise, a file with a suffix or a folder without one. If there is one with
            content, ``-2``, ``-3`` and so on in its name keep it.

    Returns:
        The file, whose folder exists, or the folder.

    Raises:
        ValueError: If nothing can be written there.
    """
    path, number = given or default, 1
    while given is None and _has_content(path):
        number += 1
        path = default.with_name(f"{default.stem}-{number}{default.suffix}")
    folder = path.parent if default.suffix else path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        if default.suffix and path.exists():
            path.open("r+b").close()  # not a folder
    except OSError as error:
        what = "a file" if default.suffix else "a folder"
        raise ValueError(
            f"The output is {path}, expected {what} that can be written: {error}. Name another"
            " one with --output."
        ) from error
    return path


def _has_content(path: Path) -> bool:
    """Return whether there is a file, or a folder with something in it."""
    return any(path.iterdir()) if path.is_dir() else path.exists()

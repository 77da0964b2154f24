"""Files that are complete or as before, whenever they are read."""

from __future__ import annotations

import json
import os
import shutil
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

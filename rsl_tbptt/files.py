"""Files that are complete or as before, whenever they are read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def complete(path: Path) -> Iterator[Path]:
    """Give a path to write to; what was written replaces the file if nothing failed.

    Args:
        path: The file; its folder is created.

    Yields:
        A path beside it with the same suffix, which is gone afterwards.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"unfinished-{path.name}")
    try:
        yield unfinished
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

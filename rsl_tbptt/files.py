"""Files that are complete or as before, whenever they are read."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_UNFINISHED = re.compile(r"\.[0-9a-f]{32}-.+")
_LONGEST_WRITE_S = 3600.0


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
        _sync_folder(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Bring a new name to the disk, before a caller deletes what it replaces.

    Windows opens no folders, and some file systems sync none.
    """
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def delete_unfinished(written: Path) -> None:
    """Delete what killed processes left of files that they wrote by :func:`complete`.

    Args:
        written: A file just written; those in its folder go that are an hour older, by the clock of
            their file system, so that nobody can still be writing them.
    """
    written = written.resolve()
    with suppress(OSError):  # another process deletes them, too, or may not
        before = written.stat().st_mtime - _LONGEST_WRITE_S
        for path in written.parent.iterdir():
            if _UNFINISHED.fullmatch(path.name) and path.stat().st_mtime < before:
                path.unlink()


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file that is either complete or as before.

    Args:
        path: The file; its folder is created.
        value: JSON value.
    """
    with complete(path) as unfinished:
        unfinished.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def read_yaml(
    text: str, sequence: type = tuple, other: Callable[[Any], Any] = lambda _: None
) -> Any:
    """Read YAML as Isaac Lab and mjlab write it, without running code that it may contain.

    Args:
        text: The YAML. Reading it needs pyyaml, which both bring.
        sequence: What Python's tuples are read as, ``tuple`` or ``list``.
        other: Returns what stands for Python's other objects, given their nodes.

    Returns:
        What is written there.

    Raises:
        yaml.YAMLError: If that is no YAML.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """Knows the Python tags, which safe YAML refuses."""

    def read_tuple(loader: yaml.SafeLoader, node: Any) -> Any:
        return sequence(loader.construct_sequence(node, deep=True))

    Loader.add_constructor("tag:yaml.org,2002:python/tuple", read_tuple)
    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *a: other(a[-1]))
    return yaml.load(text, Loader)


def read_config(file: Path, **options: Any) -> dict[str, Any]:
    """Read a config from a YAML file, without running code it may contain.

    Args:
        file: The file.
        options: See :func:`read_yaml`.

    Returns:
        The config.

    Raises:
        ValueError: If it is missing, no YAML or no mapping.
    """
    import yaml  # what reads checkpoints alone can do without

    try:
        config = read_yaml(file.read_text(encoding="utf-8"), **options)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"The config '{file}' cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"The config '{file}' holds {config!r}, expected a mapping of options.")
    return config


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

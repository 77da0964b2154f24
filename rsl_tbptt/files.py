"""Files that are complete or unchanged, whenever they are read; and reading of configs."""

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

AGENT, ENV = Path("params", "agent.yaml"), Path("params", "env.yaml")
"""Where Isaac Lab and mjlab write the configs of agent and environment, next to the checkpoints.

This package's runners write the agent's, too; rsl_rl writes none.
"""
_UNFINISHED = re.compile(r"\.[0-9a-f]{32}-.+")
_LONGEST_WRITE_S = 3600.0


@contextmanager
def complete(path: Path) -> Iterator[Path]:
    """Give a path to write to; the written file replaces ``path`` if nothing failed.

    A crash, a full disk or a kill leaves the previous file unchanged. As with a plain ``open``, a
    new file has the mode that the umask leaves, an old one keeps its own, and a link stays.

    Args:
        path: The file or a link to it; its folder is created.

    Yields:
        A temporary path next to it with the same suffix, which is deleted afterwards.

    Raises:
        OSError: If it cannot be written, with the path.
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
    except OSError as error:
        raise OSError(*_named(error, unfinished, path)) from error
    finally:
        unfinished.unlink(missing_ok=True)


def _named(error: OSError, unfinished: Path, path: Path) -> tuple[Any, ...]:
    """Return an error's arguments with the path that a user knows; a full disk's have none."""
    if error.errno is None:
        return error.args
    name = str(error.filename or unfinished).replace(str(unfinished), str(path))
    return error.errno, error.strerror, name


def _sync_folder(folder: Path) -> None:
    """Flush a new name to the disk, before a caller deletes the file it replaces.

    Windows cannot open folders, and some file systems cannot sync them.
    """
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def delete_unfinished(written: Path) -> None:
    """Delete unfinished files of :func:`complete` that killed processes have left.

    Args:
        written: A file just written. Unfinished files in its folder are deleted if they are an hour
            older by the clock of their file system, so that nobody can still be writing them.
    """
    written = written.resolve()
    with suppress(OSError):  # another process may delete them too, or deleting may not be allowed
        before = written.stat().st_mtime - _LONGEST_WRITE_S
        for path in written.parent.iterdir():
            if _UNFINISHED.fullmatch(path.name) and path.stat().st_mtime < before:
                path.unlink()


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file that is complete or unchanged at any time.

    Args:
        path: The file; its folder is created.
        value: JSON value.
    """
    with complete(path) as unfinished:
        unfinished.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def read_config(file: Path) -> dict[str, Any]:
    """Read a config of Isaac Lab or mjlab without running code that it may contain.

    Args:
        file: The YAML file. Tuples are read as such, other Python objects as None.

    Returns:
        The config.

    Raises:
        ValueError: If the file is missing, not YAML or not a mapping.
    """
    import yaml  # reading checkpoints alone does not need it

    class Loader(yaml.SafeLoader):
        """Accepts Python's tags, which safe YAML refuses."""

    def read_tuple(loader: yaml.SafeLoader, node: Any) -> Any:
        return tuple(loader.construct_sequence(node, deep=True))

    Loader.add_constructor("tag:yaml.org,2002:python/tuple", read_tuple)
    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
    try:
        config = yaml.load(file.read_text(encoding="utf-8"), Loader)
        json.dumps(config, default=str, skipkeys=True)  # fails for YAML that contains itself
    except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        raise ValueError(f"The config '{file}' cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"The config '{file}' holds {config!r}, expected a mapping of options.")
    return config


def output_path(
    given: Path | None, default: Path, mark: bytes | None = None, within: str = ""
) -> Path:
    """Choose the path of results and check that it can be written, before they are computed.

    Args:
        given: The path that the user named; earlier results of this kind may be replaced.
        default: The path otherwise: a file with a suffix or a folder without one. If it exists and
            has content, ``-2``, ``-3`` and so on are appended to its name.
        mark: Bytes in every result of this kind: other content is not replaced. None replaces any.
        within: For a folder, the file in it that has the mark.

    Returns:
        The file, whose folder exists, or the folder.

    Raises:
        ValueError: If the path cannot be written, or holds what another program wrote.
    """
    path, number = given or default, 1
    while given is None and _has_content(path):
        number += 1
        path = default.with_name(f"{default.stem}-{number}{default.suffix}")
    folder = path.parent if default.suffix else path
    what = "a file" if default.suffix else "a folder"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        if default.suffix and path.exists():
            path.open("r+b").close()  # fails for a folder
        is_other = mark is not None and _has_content(path) and mark not in _read(path / within)
    except OSError as error:
        raise ValueError(
            f"The output is {path}, expected {what} that can be written: {error}. Name another"
            " one with --output."
        ) from error
    # A run's folder may come from anybody, and with it links to the user's files.
    if is_other or (path.is_symlink() and path == default) or _leads_out(path):
        raise ValueError(
            f"The output is {path}, which this command has not written, expected a new {what[2:]}"
            " or an earlier result: move it away, or name another one with --output."
        )
    return path


def _has_content(path: Path) -> bool:
    """Return whether the path is a file or a link that is not empty, or a folder that is not."""
    if path.is_dir():
        return any(path.iterdir())
    return path.is_symlink() or (path.exists() and path.stat().st_size > 0)


def _read(file: Path) -> bytes:
    return file.read_bytes() if file.is_file() else b""


def _leads_out(folder: Path) -> bool:
    """Return whether a link in a folder leads out of it."""
    inside = folder.resolve()
    return any(not path.resolve().is_relative_to(inside) for path in folder.rglob("*"))


def cached_folder(name: str, fill: Callable[[Path], None]) -> Path:
    """Return a folder in the user's cache, filled once.

    Args:
        name: Its name, with the version of everything that its content depends on.
        fill: Writes the content into the folder that it gets.

    Raises:
        OSError: If the cache cannot be written; ``XDG_CACHE_HOME`` names another.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "rsl_tbptt")
    folder = cache / name
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, ignore_cleanup_errors=True) as unfinished:
        filled = Path(unfinished, name)
        filled.mkdir()
        fill(filled)
        try:
            filled.rename(folder)
        except OSError:
            if not folder.exists():  # otherwise another process was faster
                raise
    return folder

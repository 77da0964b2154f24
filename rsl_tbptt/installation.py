"""Installed distributions, and the command that installs this package with an extra."""

from __future__ import annotations

import importlib.util
import json
import sys
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path


def installed_version(package: str) -> str | None:
    """Return the version of a distribution, None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def install(extra: str) -> str:
    """Return the command that installs this package with an extra.

    It names where this package came from, a checkout, a wheel or a repository: no registry has it.
    """
    brackets = f"[{extra}]"
    root = Path(__file__).parents[1]
    if (root / "pyproject.toml").is_file():
        return f"{_installer()} -e '{root}{brackets}'"
    try:
        source = json.loads(distribution("rsl-tbptt").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        source = {}
    if not (url := source.get("url")):
        return f"{_installer()} 'PATH{brackets}', where PATH is the wheel or checkout of rsl-tbptt"
    if vcs := source.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    return f"{_installer()} 'rsl-tbptt{brackets} @ {url}'"


def _installer() -> str:
    """Return how packages are installed for this Python: uv's environments hold no pip."""
    if importlib.util.find_spec("pip"):
        return f"{sys.executable} -m pip install"
    return f"uv pip install --python {sys.executable}"

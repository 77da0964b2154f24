"""Installed distributions, how to install this package, and the machine that results come from."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

PACKAGES = ("rsl-tbptt", "rsl-rl-lib", "torch", "tensordict", "numpy")
"""Distributions that decide a run's numbers on every platform."""


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


def versions(packages: tuple[str, ...] = ()) -> dict[str, str | None]:
    """Return the version of Python and of each package, None where it is not installed.

    Args:
        packages: Packages in addition to :data:`PACKAGES`, such as a platform's.
    """
    names = (*PACKAGES, *packages)
    return {"python": platform.python_version()} | {name: installed_version(name) for name in names}


def machine(device: str) -> dict[str, str]:
    """Describe the computer.

    Args:
        device: The device in use, ``cpu`` or ``cuda:<index>``.

    Returns:
        Names to descriptions.
    """
    gigabytes, gpu = "unknown", "not available"
    if device != "cpu":
        import torch

        gpu = torch.cuda.get_device_name(device) if torch.cuda.is_available() else gpu
    if hasattr(os, "sysconf"):  # Windows has none
        gigabytes = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB"
    return {
        "device": device if device == "cpu" else f"{device}, {gpu}",
        "processor": f"{_processor()}, {num_cores()} cores",
        "memory": gigabytes,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def num_cores() -> int:
    """Return how many cores this process may use, which containers limit."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    """Return the processor's name as the system gives it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()

"""Installed distributions, how to install this package, and the machine that results come from."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
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
    """Return the command that installs this package with an extra: no registry has it."""
    return f"pip install 'PATH[{extra}]', where PATH is the checkout or wheel of rsl-tbptt"


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

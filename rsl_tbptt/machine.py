"""What figures are measured on: versions and hardware."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("rsl-tbptt", "rsl-rl-lib", "torch", "tensordict", "numpy")
"""Distributions that decide a run's numbers on every platform."""


def versions(further: tuple[str, ...] = ()) -> dict[str, str | None]:
    """Return the version of Python and of each package, None where it is not installed.

    Args:
        further: Packages beside :data:`PACKAGES`, such as a platform's.

    Returns:
        Versions by name.
    """
    names = (*PACKAGES, *further)
    return {"python": platform.python_version()} | {name: _version(name) for name in names}


def _version(package: str) -> str | None:
    """Return the installed version of a distribution, None without it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def machine(device: str) -> dict[str, str]:
    """Describe the computer.

    Args:
        device: The device in use, ``cpu`` or ``cuda:<index>``.

    Returns:
        Names to descriptions.
    """
    return {
        "device": device if device == "cpu" else f"{device}, {_gpu_name(device)}",
        "processor": f"{_processor()}, {num_cores()} cores",
        "memory": _memory(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def num_cores() -> int:
    """Return how many cores this process may use, which containers limit."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory() -> str:
    """Return the size of the memory, where the system tells it: Windows has no ``sysconf``."""
    if not hasattr(os, "sysconf"):
        return "memory unknown"
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB"


def _processor() -> str:
    """Return the processor's name as the system gives it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _gpu_name(device: str) -> str:
    """Return the name of a GPU."""
    import torch  # takes seconds, and only a GPU needs it

    return torch.cuda.get_device_name(device) if torch.cuda.is_available() else "not available"

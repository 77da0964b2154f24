"""The machine and the versions that results come from."""

import os
import platform as system
from pathlib import Path

from rsl_tbptt.installation import installed_version

PACKAGES = ("rsl-tbptt", "rsl-rl-lib", "torch", "tensordict", "numpy")
"""Distributions that decide a run's numbers on every platform."""


def versions(further: tuple[str, ...] = ()) -> dict[str, str | None]:
    """Return the version of Python and of each package, None where it is not installed.

    Args:
        further: Packages in addition to :data:`PACKAGES`, such as a platform's.
    """
    names = (*PACKAGES, *further)
    return {"python": system.python_version()} | {name: installed_version(name) for name in names}


def machine(device: str) -> dict[str, str]:
    """Describe the computer.

    Args:
        device: The device in use, ``cpu`` or ``cuda:<index>``.

    Returns:
        Names to descriptions.
    """
    gigabytes = "unknown"
    if hasattr(os, "sysconf"):  # Windows has none
        gigabytes = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB"
    return {
        "device": device if device == "cpu" else f"{device}, {_gpu_name(device)}",
        "processor": f"{_processor()}, {num_cores()} cores",
        "memory": gigabytes,
        "system": f"{system.system()} {system.release()} {system.machine()}",
    }


def num_cores() -> int:
    """Return how many cores this process may use, which containers limit."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    """Return the processor's name as the system gives it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else system.processor() or system.machine()


def _gpu_name(device: str) -> str:
    import torch

    return torch.cuda.get_device_name(device) if torch.cuda.is_available() else "not available"

"""Check this setup and say what is wrong with it, one line each."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution, entry_points
from pathlib import Path

from rsl_tbptt.compat.supported import MODELS_ERA, rsl_rl_era
from rsl_tbptt.machine import machine, num_cores, versions
from rsl_tbptt.platforms import PLATFORMS, Platform, load_platform
from rsl_tbptt.platforms.commands import executable

TOOLS = {
    "doctor RUN": ("tensorboard", "yaml"),
    "evaluate": ("scipy", "yaml"),
    "export": ("onnx", "onnxruntime", "onnxscript", "yaml"),
    "play --video": ("PIL", "scipy", "yaml"),
    "bench": ("psutil", "tabulate"),
}
"""Modules of the extra ``tools`` by the command that needs them."""


def diagnose(device: str = "cpu", output: Path = Path()) -> bool:
    """Run all checks and print a line for each.

    Args:
        device: Device that should compute, ``cpu`` or ``cuda:<index>``.
        output: Folder that trainings should be able to write to.

    Returns:
        Whether all passed.
    """
    platforms = [load_platform(name) for name in PLATFORMS]
    installed = [platform for platform in platforms if _is_installed(platform)]
    checks: dict[str, Callable[[], str]] = {
        "python": check_python,
        "packages": check_packages,
        "imports": check_imports,
        **{platform.TITLE: _check_of(platform) for platform in installed},
        "tools": check_tools,
        "device": lambda: check_device(device),
        "folder": lambda: check_folder(output),
    }
    passed = [report(name, check) for name, check in checks.items()]
    for platform in platforms:
        if platform not in installed:
            print(f"{platform.TITLE:<12} -      not installed: {install(platform.EXTRA)}")
    print("\nall is well" if all(passed) else "\nsee the lines marked with WRONG", flush=True)
    return all(passed)


def report(name: str, check: Callable[[], str]) -> bool:
    """Run one check and print its line.

    Args:
        name: What is checked.
        check: Returns what it found, raises what is wrong.

    Returns:
        Whether it passed.
    """
    try:
        found = check()
    except Exception as error:
        print(f"{name:<12} WRONG  {' '.join(str(error).split())}")
        return False
    print(f"{name:<12} ok     {found}")
    return True


def install(extra: str | None) -> str:
    """Return the command that installs an extra of this package, or without one itself.

    It names where this package came from, a checkout, a wheel or a repository: no registry has it.
    """
    brackets = f"[{extra}]" if extra else ""
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


def check_python() -> str:
    """Say which Python this is."""
    return f"{versions()['python']} at {sys.executable}"


def check_packages() -> str:
    """Check that everything is installed that this package asks for, rsl_rl in a known release.

    Raises:
        ValueError: If something is missing.
    """
    found = versions()
    missing = [name for name, number in found.items() if number is None]
    if missing:
        raise ValueError(f"{', '.join(missing)} missing, expected it: {install(None)}")
    rsl_rl_era()
    return _named(found)


def check_imports() -> str:
    """Check that the package imports."""
    names = ["rsl_tbptt.core", "rsl_tbptt.algorithms"]
    if rsl_rl_era() != MODELS_ERA:
        names[-1] = "rsl_tbptt.integrations.rsl_rl_v3"
    for name in names:
        importlib.import_module(name)
    return " and ".join(names)


def _is_installed(platform: Platform) -> bool:
    """Return whether the distribution of a platform is installed."""
    return versions(platform.PACKAGES)[platform.PACKAGES[0]] is not None


def _check_of(platform: Platform) -> Callable[[], str]:
    """Return the check of an installed platform."""
    return lambda: check_platform(platform)


def check_platform(platform: Platform) -> str:
    """Check that a platform is complete, finds this package's tasks and has its command.

    Args:
        platform: One that is installed.

    Returns:
        What was found.

    Raises:
        ValueError: If something is missing.
    """
    found = versions(platform.PACKAGES)
    packages = {name: found[name] for name in platform.PACKAGES}
    if rsl_rl_era() != MODELS_ERA:
        return f"{_named(packages)}; trains with rsl_tbptt.integrations.rsl_rl_v3"
    if platform.TASKS is None or platform.PROGRAM is None:
        return _named(packages)
    missing = [name for name, number in packages.items() if number is None]
    if missing:
        raise ValueError(f"{', '.join(missing)} missing, expected it: {install(platform.EXTRA)}")
    names = sorted(point.name for point in entry_points(group=platform.TASKS))
    if "rsl_tbptt" not in names:
        raise ValueError(
            f"{platform.TASKS} has {names}, expected rsl_tbptt among them: install this package"
            " again."
        )
    return f"{_named(packages)}; tasks registered; {executable([platform.PROGRAM])[0]}"


def check_tools() -> str:
    """Say which commands lack packages; they are no fault, as not everybody needs them."""
    lacking = {
        command: [name for name in names if importlib.util.find_spec(name) is None]
        for command, names in TOOLS.items()
    }
    texts = [f"{command} lacks {', '.join(names)}" for command, names in lacking.items() if names]
    if not texts:
        return f"{', '.join(TOOLS)} have what they need"
    return f"{'; '.join(texts)}: {install('tools')}"


def check_device(device: str) -> str:
    """Check that a device can compute.

    Args:
        device: ``cpu`` or ``cuda:<index>``.

    Returns:
        What was found.
    """
    torch = importlib.import_module("torch")
    torch.ones(1, device=device).sum().item()
    gpus = f"{torch.cuda.device_count()} GPU(s) visible"
    return f"{machine(device)['device']}; {num_cores()} cores, {gpus}"


def check_folder(folder: Path) -> str:
    """Check that a folder can be written to, or made.

    Args:
        folder: The folder.

    Returns:
        Its full path.

    Raises:
        ValueError: If it cannot.
    """
    path = folder.resolve()
    there = next(place for place in (path, *path.parents) if place.exists())
    if not (there.is_dir() and os.access(there, os.W_OK)):
        raise ValueError(f"The folder is {path}, expected one that can be written: name another.")
    return str(path)


def _named(packages: dict[str, str | None]) -> str:
    """Write versions in one line."""
    return ", ".join(f"{name} {number}" for name, number in packages.items() if name != "python")

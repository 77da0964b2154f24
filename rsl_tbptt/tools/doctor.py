"""Check this setup and say what is wrong with it, one line each."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution, entry_points, version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rsl_tbptt.compat import MODELS_ERA, rsl_rl_era
from rsl_tbptt.tools.platforms import PLATFORMS, Platform, executable, load_platform

if TYPE_CHECKING:
    import torch

TOOLS = {
    "doctor RUN": ("tensorboard", "yaml"),
    "evaluate": ("scipy", "yaml"),
    "export": ("onnx", "onnxruntime", "onnxscript", "yaml"),
    "play --video": ("PIL", "scipy", "yaml"),
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
    installed = [one for one in platforms if _is_installed(one)]
    checks: dict[str, Callable[[], str]] = {
        "python": check_python,
        "packages": check_packages,
        "imports": check_imports,
        **{one.TITLE: _check_of(one) for one in installed},
        "tools": check_tools,
        "device": lambda: check_device(device),
        "folder": lambda: check_folder(output),
    }
    passed = [report(name, check) for name, check in checks.items()]
    for one in platforms:
        if one not in installed:
            print(f"{one.TITLE:<12} -      not installed: {install(one.EXTRA)}")
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
    root = Path(__file__).parents[2]
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


Curves = Mapping[str, Sequence[float]]
"""Values of each metric in the order of the updates, by name."""

Findings = tuple[str, list[str]]
"""What was looked at, in words, and what looks wrong with it."""

_LOSS = "Loss/"


def diagnose_run(folder: Path) -> bool:
    """Look at config, metrics and the newest checkpoint, and print a line for each finding.

    Args:
        folder: A training's log folder.

    Returns:
        Whether nothing that could be judged looks wrong.

    Raises:
        ValueError: If that is no log folder.
    """
    from rsl_tbptt.checkpoints.describing import AGENT
    from rsl_tbptt.checkpoints.reading import numbered_checkpoints

    known = folder.is_dir() and (numbered_checkpoints(folder) or events(folder))
    if not (known or (folder / AGENT).is_file()):
        raise ValueError(
            f"RUN is '{folder}', expected the log folder of a training: the one that holds"
            " events.out.tfevents..., model_<iteration>.pt and params/agent.yaml."
        )
    checks: dict[str, Callable[[Path], Findings]] = {
        "config": check_config,
        "metrics": check_metrics,
        "checkpoint": check_checkpoint,
    }
    passed = True
    for name, check in checks.items():
        looked_at, wrong = check(folder)
        print(f"{name:<12} {'WRONG' if wrong else 'ok   '}  {looked_at}")
        for finding in wrong:
            print(f"{'':<12} -      {finding}")
        passed &= not wrong
    verdict = "nothing that was judged looks wrong" if passed else "see what stands below WRONG"
    print(f"\n{verdict}", flush=True)
    return passed


def check_config(folder: Path) -> Findings:
    """Look for options that cannot work together, as Isaac Lab and mjlab noted them."""
    from rsl_tbptt.checkpoints.describing import AGENT, read_config

    if not (folder / AGENT).is_file():
        return f"not judged: no {AGENT}, which rsl_rl's own runners do not write", []
    try:
        config = read_config(folder / AGENT)
    except ValueError as error:
        return str(AGENT), [str(error)]
    algorithm = config.get("algorithm") or {}
    wrong = []
    models = [config.get(role) or {} for role in ("actor", "critic", "student", "policy")]
    if algorithm.get("gradient_length") == 1 and any(model.get("rnn_type") for model in models):
        wrong.append(
            "gradient_length is 1, expected the number of steps to remember: no gradient goes from"
            " one step to the one before, so nothing teaches the memory what to keep. Try 16 or"
            " more; of TbpttPPO None is the whole rollout."
        )
    return f"{AGENT}: {str(algorithm.get('class_name')).rpartition(':')[2]}", wrong


def check_metrics(folder: Path) -> Findings:
    """Hold what each update reported against the limits of docs/health.md."""
    from rsl_tbptt.algorithms.health import limit_of

    curves = read_curves(folder) if events(folder) else {}
    losses = {tag[len(_LOSS) :]: v for tag, (_, v) in curves.items() if tag.startswith(_LOSS)}
    num_updates = max(map(len, losses.values()), default=0)
    if not num_updates:
        return "not judged: no TensorBoard events", []
    wrong = [*_of_limits(losses), *_of_skipped(losses)]
    unjudged = _of_too_few(losses)
    if not any(limit_of(name) for name in losses):
        return f"{num_updates} updates, by an algorithm that does not watch its health", wrong
    return f"{num_updates} updates{unjudged}", wrong


def _of_too_few(losses: Curves) -> str:
    """Name the metrics that have a limit, but too few updates for it."""
    from rsl_tbptt.algorithms.health import limit_of

    few = [
        f"{name} ({len(values)} of {limit.updates})"
        for name, values in losses.items()
        if (limit := limit_of(name)) and len(values) < limit.updates
    ]
    return f"; not judged, too few updates: {', '.join(few)}" if few else ""


def _of_limits(losses: Curves) -> list[str]:
    """Return what is usually beyond its limit at the end: in the last quarter of the updates."""
    from rsl_tbptt.algorithms.health import limit_of

    wrong = []
    for name, values in losses.items():
        limit = limit_of(name)
        if limit is None or len(values) < limit.updates:
            continue
        value = median(values[-max(limit.updates, len(values) // 4) :])
        if limit.broken(value):
            wrong.append(f"{limit.describe(name, value)} {limit.advice}")
    return wrong


def _of_skipped(losses: Curves) -> list[str]:
    """Return whether updates were undone."""
    num_skipped = max(losses.get("skipped_updates", ()), default=0)
    if num_skipped == 0:
        return []
    return [
        f"Loss/skipped_updates is {num_skipped:g}, expected 0: so many updates met NaN or inf and"
        " were undone. The training's output names what they came from."
    ]


def check_checkpoint(folder: Path) -> Findings:
    """Look whether the newest checkpoint can be read and holds numbers."""
    import torch

    from rsl_tbptt.checkpoints.reading import numbered_checkpoints, read_checkpoint

    path = next(iter(numbered_checkpoints(folder)), None)
    if path is None:
        return "not judged: no model_<iteration>.pt", []
    try:
        checkpoint = read_checkpoint(str(path), "cpu")
    except ValueError as error:
        return path.name, [str(error)]
    broken = [name for name, tensor in _tensors(checkpoint) if not torch.isfinite(tensor).all()]
    if not broken:
        return path.name, []
    more = f" and {len(broken) - 3} more" if len(broken) > 3 else ""
    return path.name, [
        f"{', '.join(broken[:3])}{more} hold NaN or inf: resume from an older checkpoint, with"
        " non_finite='skip'."
    ]


def read_curves(folder: Path) -> dict[str, tuple[list[int], list[float]]]:
    """Read all scalars that rsl_rl logged for TensorBoard.

    Args:
        folder: Log folder of a training.

    Returns:
        Iterations and values by tag.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    curves = {}
    for tag in accumulator.Tags()["scalars"]:
        scalars = accumulator.Scalars(tag)
        curves[tag] = ([s.step for s in scalars], [s.value for s in scalars])
    return curves


def events(folder: Path) -> list[Path]:
    """Return the TensorBoard event files of a folder."""
    return sorted(folder.glob("*tfevents*"))


def _tensors(saved: Any, name: str = "") -> list[tuple[str, torch.Tensor]]:
    """Return the floating-point tensors of state dicts, by name."""
    import torch

    if isinstance(saved, torch.Tensor):
        return [(name, saved)] if saved.is_floating_point() else []
    if not isinstance(saved, Mapping):
        return []
    inner = [(f"{name}.{key}" if name else str(key), value) for key, value in saved.items()]
    return [found for key, value in inner for found in _tensors(value, key)]


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

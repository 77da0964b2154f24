"""Say what is wrong with this setup or with a training, and on what machine figures are measured.

Slow modules are imported where they are needed: the command line imports this one.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import platform as system
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
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
    "export": ("onnx", "onnxruntime", "onnxscript", "scipy", "yaml"),
    "play --video": ("PIL", "scipy", "yaml"),
    "verify": ("onnxruntime",),
}
"""Modules of the extra ``tools`` by the command that needs them."""
PACKAGES = ("rsl-tbptt", "rsl-rl-lib", "torch", "tensordict", "numpy")
"""Distributions that decide a run's numbers on every platform."""

Findings = tuple[str, list[str]]
"""What was looked at, in words, and what looks wrong with it."""


def diagnose(device: str = "cpu", output: Path = Path()) -> bool:
    """Check this setup and print a line for each check.

    Args:
        device: Device that should compute, ``cpu`` or ``cuda:<index>``.
        output: Folder that trainings should be able to write to.

    Returns:
        Whether all passed.
    """
    platforms = [load_platform(name) for name in PLATFORMS]
    missing = [one for one in platforms if _version(one.PACKAGES[0]) is None]
    checks: dict[str, Callable[[], str]] = {
        "python": lambda: f"{system.python_version()} at {sys.executable}",
        "packages": check_packages,
        "imports": check_imports,
        **{one.TITLE: partial(check_platform, one) for one in platforms if one not in missing},
        "tools": check_tools,
        "device": partial(check_device, device),
        "folder": partial(check_folder, output),
    }
    passed = not [name for name, check in checks.items() if not _report(name, check)]
    for one in missing:
        print(f"{one.TITLE:<12} -      not installed: {install(one.EXTRA)}")
    print("\nall is well" if passed else "\nsee the lines marked with WRONG", flush=True)
    return passed


def _report(name: str, check: Callable[[], str]) -> bool:
    """Run a check, which raises an error if it fails; print its line and return if it passed."""
    try:
        found = check()
    except Exception as error:
        print(f"{name:<12} WRONG  {' '.join(str(error).split())}")
        return False
    print(f"{name:<12} ok     {found}")
    return True


def install(extra: str) -> str:
    """Return the command that installs this package with an extra.

    It names where this package came from, a checkout, a wheel or a repository: no registry has it.
    """
    brackets = f"[{extra}]"
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


def check_packages() -> str:
    """Check that all requirements of this package are installed, rsl_rl in a known release.

    Raises:
        ValueError: If something is missing.
    """
    found = versions()
    if missing := [name for name, number in found.items() if number is None]:
        raise ValueError(f"{', '.join(missing)} missing, expected it: {install('train')}")
    rsl_rl_era()
    return _named(found)


def check_imports() -> str:
    """Check that the package imports."""
    is_models = rsl_rl_era() == MODELS_ERA
    algorithms = "rsl_tbptt.algorithms" if is_models else "rsl_tbptt.integrations.rsl_rl_v3"
    for name in ("rsl_tbptt.core", algorithms):
        importlib.import_module(name)
    return f"rsl_tbptt.core and {algorithms}"


def check_platform(platform: Platform) -> str:
    """Check that an installed platform is complete, finds this package's tasks and has its command.

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
    """Check that a device, ``cpu`` or ``cuda:<index>``, can compute.

    Returns:
        Its description.

    Raises:
        ValueError: If it cannot.
    """
    import torch

    try:
        torch.ones(1, device=device).sum().item()
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch without CUDA
        raise ValueError(f"--device is {device}, which cannot compute: {error}") from error
    gpus = f"{torch.cuda.device_count()} GPU(s) visible"
    return f"{machine(device)['device']}; {num_cores()} cores, {gpus}"


def check_folder(folder: Path) -> str:
    """Check that a folder can be written to, or made.

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


def _named(packages: Mapping[str, str | None]) -> str:
    """Write versions in one line."""
    return ", ".join(f"{name} {number}" for name, number in packages.items() if name != "python")


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

    known = folder.is_dir() and (numbered_checkpoints(folder) or _has_events(folder))
    if not (known or (folder / AGENT).is_file()):
        raise ValueError(
            f"RUN is '{folder}', expected the log folder of a training: the one that holds"
            " events.out.tfevents..., model_<iteration>.pt and params/agent.yaml."
        )
    checks = {"config": check_config, "metrics": check_metrics, "checkpoint": check_checkpoint}
    passed = True
    for name, check in checks.items():
        looked_at, wrong = check(folder)
        print(f"{name:<12} {'WRONG' if wrong else 'ok   '}  {looked_at}")
        for finding in wrong:
            print(f"{'':<12} -      {finding}")
        passed &= not wrong
    result = "nothing that was judged looks wrong" if passed else "see the lines below WRONG"
    print(f"\n{result}", flush=True)
    return passed


def check_config(folder: Path) -> Findings:
    """Look for options that cannot work together, as Isaac Lab and mjlab noted them."""
    from rsl_tbptt.checkpoints.describing import AGENT
    from rsl_tbptt.files import read_config

    if not (folder / AGENT).is_file():
        return f"not judged: no {AGENT}, which rsl_rl's own runners do not write", []
    try:
        config = read_config(folder / AGENT)
    except ValueError as error:
        return str(AGENT), [str(error)]
    algorithm, wrong = config.get("algorithm") or {}, []
    models = [config.get(role) or {} for role in ("actor", "critic", "student", "policy")]
    if algorithm.get("gradient_length") == 1 and any(model.get("rnn_type") for model in models):
        wrong.append(
            "gradient_length is 1, expected the number of steps to remember: no gradient goes from"
            " one step to the one before, so the memory does not learn what to keep. Try 16 or"
            " more; for TbpttPPO None is the whole rollout."
        )
    return f"{AGENT}: {str(algorithm.get('class_name')).rpartition(':')[2]}", wrong


def check_metrics(folder: Path) -> Findings:
    """Compare the last quarter of the metrics with the limits of docs/howto/health.md."""
    from rsl_tbptt.algorithms.health import limit_of

    curves = read_curves(folder) if _has_events(folder) else {}
    prefix = "Loss/"
    losses = {tag[len(prefix) :]: v for tag, (_, v) in curves.items() if tag.startswith(prefix)}
    num_updates = max(map(len, losses.values()), default=0)
    if not num_updates:
        return "not judged: no TensorBoard events", []
    limits = {name: limit for name in losses if (limit := limit_of(name))}
    wrong, too_few = [], []
    for name, limit in limits.items():
        values = losses[name]
        if len(values) < limit.updates:
            too_few.append(f"{name} ({len(values)} of {limit.updates})")
        elif limit.broken(value := median(values[-max(limit.updates, len(values) // 4) :])):
            wrong.append(limit.describe(name, value))
    if num_skipped := max(losses.get("skipped_updates", ()), default=0):
        wrong.append(
            f"Loss/skipped_updates is {num_skipped:g}, expected 0: so many updates met NaN or inf"
            " and were undone. The training's output names their cause."
        )
    if not limits:
        return f"{num_updates} updates, by an algorithm that does not watch its health", wrong
    unjudged = f"; not judged, too few updates: {', '.join(too_few)}" if too_few else ""
    return f"{num_updates} updates{unjudged}", wrong


def check_checkpoint(folder: Path) -> Findings:
    """Look whether the newest checkpoint can be read and holds numbers."""
    from rsl_tbptt.checkpoints.reading import numbered_checkpoints, read_checkpoint

    path = next(iter(numbered_checkpoints(folder)), None)
    if path is None:
        return "not judged: no model_<iteration>.pt", []
    try:
        checkpoint = read_checkpoint(str(path), "cpu")
    except ValueError as error:
        return path.name, [str(error)]
    broken = [name for name, tensor in _tensors(checkpoint) if not tensor.isfinite().all()]
    if not broken:
        return path.name, []
    more = f" and {len(broken) - 3} more" if len(broken) > 3 else ""
    return path.name, [
        f"{', '.join(broken[:3])}{more} hold NaN or inf: resume from an older checkpoint, with"
        " non_finite='skip'."
    ]


def _tensors(saved: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of state dicts, by name."""
    if isinstance(saved, Mapping):
        for key, value in saved.items():
            yield from _tensors(value, f"{name}.{key}" if name else str(key))
    elif hasattr(saved, "isfinite"):
        yield name, saved


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


def _has_events(folder: Path) -> bool:
    return any(folder.glob("*tfevents*"))


def versions(further: tuple[str, ...] = ()) -> dict[str, str | None]:
    """Return the version of Python and of each package, None where it is not installed.

    Args:
        further: Packages in addition to :data:`PACKAGES`, such as a platform's.
    """
    names = (*PACKAGES, *further)
    return {"python": system.python_version()} | {name: _version(name) for name in names}


def _version(package: str) -> str | None:
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

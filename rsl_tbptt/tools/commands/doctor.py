"""Say what is wrong with this setup.

Slow modules are imported where they are needed: the command line imports this one.
"""

import importlib
import importlib.util
import platform as system
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import entry_points

from rsl_tbptt.compat import MODELS_ERA, rsl_rl_era
from rsl_tbptt.installation import install, installed_version, machine, num_cores, versions
from rsl_tbptt.tools.platforms import PLATFORMS, Platform, executable, load_platform

TOOLS = {
    "evaluate": ("scipy", "yaml"),
    "compare": ("scipy", "tqdm", "yaml"),
    "memory": ("scipy", "yaml"),
    "export": ("onnx", "onnxruntime", "onnxscript", "scipy", "yaml"),
    "verify": ("onnx", "onnxruntime"),
    "web": ("onnx", "onnxruntime", "onnxscript", "scipy", "yaml"),
}
"""Modules of the extra ``tools`` by the command that needs them."""
EXTRAS = {
    **dict.fromkeys(("isaaclab", "isaaclab_rl", "isaaclab_tasks", "gymnasium"), "isaaclab"),
    "mjlab": "mjlab",
    **dict.fromkeys(("torch", "rsl_rl", "tensordict"), "train"),
    **{module: "tools" for modules in TOOLS.values() for module in modules},
}
"""The extra of this package that brings a module."""


def diagnose(device: str = "cpu") -> bool:
    """Check this setup and print a line for each check.

    Args:
        device: Device that should compute, ``cpu`` or ``cuda:<index>``.

    Returns:
        Whether all passed.
    """
    checks: dict[str, Callable[[], str]] = {
        "python": lambda: f"{system.python_version()} at {sys.executable}"
    }
    absent: dict[str, str] = {}
    if importlib.util.find_spec("rsl_rl") is None:  # a robot, which only runs policies
        checks["policies"] = check_deploy
        absent["training"] = f"not installed: {install('tools')}"
    else:
        checks |= {"packages": check_packages, "imports": check_imports}
        for one in map(load_platform, PLATFORMS):
            if installed_version(one.PACKAGES[0]) is None:
                absent[one.TITLE] = f"not installed: {install(one.EXTRA)}"
            else:
                checks[one.TITLE] = partial(check_platform, one)
        if lacking := lacking_tools():
            absent["tools"] = lacking
        else:
            checks["tools"] = lambda: f"{', '.join(TOOLS)} have what they need"
        checks["device"] = partial(check_device, device)
    passed = {name: _report(name, check) for name, check in checks.items()}
    newest = passed.get("packages") and rsl_rl_era() == MODELS_ERA
    if newest and passed["device"] and device != "cpu":
        passed["engine"] = _report("engine", partial(check_engine, device))
    for name, text in absent.items():
        print(f"{name:<12} -      {text}")
    well = all(passed.values())
    print("\nall is well" if well else "\nsee the lines marked with WRONG", flush=True)
    return well


def _report(name: str, check: Callable[[], str]) -> bool:
    """Run a check, which raises an error if it fails; print its line and return if it passed."""
    try:
        results = check()
    except Exception as error:
        print(f"{name:<12} WRONG  {' '.join(str(error).split())}")
        return False
    print(f"{name:<12} ok     {results}")
    return True


def require(command: str) -> None:
    """Check that a command's modules are installed without loading them.

    Args:
        command: One of :data:`TOOLS`. Other commands need none of the extra ``tools``.

    Raises:
        ModuleNotFoundError: If one is not.
    """
    for name in TOOLS.get(command, ()):
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(name=name)


def missing_module(error: ModuleNotFoundError) -> str:
    """Say which module is missing, and how to install it."""
    name = (error.name or str(error)).partition(".")[0]
    remedy = install(EXTRAS[name]) if name in EXTRAS else "install the package that brings it"
    return f"The module {name} is missing: {remedy}"


def check_deploy() -> str:
    """Check that a robot can run exported policies, which needs neither torch nor rsl_rl.

    Raises:
        ValueError: If onnxruntime is missing, under any of the names that registries have it by.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        raise ValueError(f"onnxruntime is missing: {install('deploy')}")
    import numpy
    import onnxruntime

    importlib.import_module("rsl_tbptt.deploy")
    releases = {"numpy": numpy.__version__, "onnxruntime": onnxruntime.__version__}
    return f"rsl_tbptt.deploy, {_named(releases)}"


def check_packages() -> str:
    """Check that all requirements of this package are installed, rsl_rl in a known release.

    Raises:
        ValueError: If something is missing.
    """
    rsl_rl_era()
    releases = versions()
    _refuse_missing(releases, "train")
    return _named(releases)


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
    releases = versions(platform.PACKAGES)
    packages = {name: releases[name] for name in platform.PACKAGES}
    if rsl_rl_era() != MODELS_ERA:
        return f"{_named(packages)}; trains with rsl_tbptt.integrations.rsl_rl_v3"
    if platform.TASKS is None:
        return _named(packages)
    _refuse_missing(packages, platform.EXTRA)
    names = sorted(point.name for point in entry_points(group=platform.TASKS))
    if "rsl_tbptt" not in names:
        raise ValueError(
            f"{platform.TASKS} has {names}, expected rsl_tbptt among them: install this package"
            " again."
        )
    registered = f"{_named(packages)}; tasks registered"
    return f"{registered}; {executable([platform.PROGRAM])[0]}" if platform.PROGRAM else registered


def lacking_tools() -> str:
    """Say which commands lack packages; not everybody needs them. Empty if none does."""
    lacking = {
        command: [name for name in names if importlib.util.find_spec(name) is None]
        for command, names in TOOLS.items()
    }
    texts = [f"{command} lacks {', '.join(names)}" for command, names in lacking.items() if names]
    return f"{'; '.join(texts)}: {install('tools')}" if texts else ""


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


def check_engine(device: str) -> str:
    """Check that the fast engine for recurrent layers works on a device.

    Args:
        device: ``cuda:<index>``, or ``cpu``.

    Returns:
        The engine, the precision of its products, and whether steps are recorded.

    Raises:
        ValueError: If only the slow engine "reference" works there.
    """
    import torch

    from rsl_tbptt.core.recording import Recorder
    from rsl_tbptt.core.scan import CELLS, fastest_engine
    from rsl_tbptt.core.scan.products import tf32_in_layers

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engines = {fastest_engine(kind, torch.device(device), torch.float32) for kind in CELLS}
    if "reference" in engines:
        reasons = "; ".join(str(warning.message) for warning in caught)
        raise ValueError(f"scan_engine is 'reference', expected a fast one on {device}: {reasons}")
    precision = "TF32" if device != "cpu" and tf32_in_layers() else "float32"
    eager = Recorder(device).reason
    steps = f"steps run as they are ({eager})" if eager else "steps are recorded as CUDA graphs"
    return f"{', '.join(sorted(engines))}, products in {precision}; {steps}"


def _refuse_missing(packages: Mapping[str, str | None], extra: str) -> None:
    """Check that packages are installed.

    Raises:
        ValueError: If one is not; it names the extra that brings them.
    """
    if missing := [name for name, number in packages.items() if number is None]:
        are = "are" if len(missing) > 1 else "is"
        raise ValueError(f"{', '.join(missing)} {are} missing: {install(extra)}")


def _named(packages: Mapping[str, str | None]) -> str:
    """Write versions in one line."""
    return ", ".join(f"{name} {number}" for name, number in packages.items() if name != "python")

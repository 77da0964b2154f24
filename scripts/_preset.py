"""The demo's preset: what ``configs/demo.yaml`` may contain."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parent.parent
DEFAULT_PRESET = REPOSITORY / "configs" / "demo.yaml"
DEFAULT_RUN = Path("runs") / "demo"
POLICIES = ("teacher", "student", "memoryless")
"""Names of the demo's policies, in training order."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """One call of ``isaaclab train``."""

    agent: str
    """Key of the agent's config in the task's registration."""
    iterations: int
    """Rollouts and updates."""
    seed: int
    """Seed of environment and agent."""
    expected_seconds: float
    """Duration on 2 CPU cores, for the first guess of the remaining time."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How each policy is evaluated."""

    episodes: int
    """Fresh episodes, one per environment."""
    seed: int
    """Seed of the environment, the same for all policies."""
    recorded_envs: int
    """Environments whose joint positions are kept for the animation."""
    expected_seconds: float
    """Duration on 2 CPU cores, for the first guess of the remaining time."""


@dataclass(frozen=True, kw_only=True)
class Export:
    """How the exported student is compared with the trained one."""

    parity_steps: int
    """Steps compared, with a reset in the middle."""
    tolerance: float
    """Largest difference of an action that passes."""
    seed: int
    """Seed of the observations compared on."""
    expected_seconds: float
    """Duration on 2 CPU cores, for the first guess of the remaining time."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Everything that decides the demo's result, apart from the device."""

    task: str
    """Registered task id."""
    num_envs: int
    """Environments in training."""
    teacher: Training
    student: Training
    memoryless: Training
    evaluation: Evaluation
    export: Export
    min_share_of_teacher: float
    """Share of the teacher's mean return at which the student counts as trained."""


SECTIONS = {"evaluation": Evaluation, "export": Export, **dict.fromkeys(POLICIES, Training)}


def load_preset(path: Path) -> Preset:
    """Read and check a preset.

    Args:
        path: YAML file.

    Returns:
        The preset.

    Raises:
        ValueError: If a key is missing or unknown, or a value has the wrong type or sign.
    """
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    parts = {
        name: _build(section, values.get(name), f"{path.name}: {name}")
        for name, section in SECTIONS.items()
    }
    return _build(Preset, {**values, **parts}, path.name)


def _build(cls: type, values: Any, where: str) -> Any:  # noqa: ANN401
    """Build a dataclass from a mapping.

    Raises:
        ValueError: If the mapping does not fit.
    """
    if not isinstance(values, dict):
        raise ValueError(f"{where} is {values!r}, expected a mapping of options.")
    known = {field.name: field for field in fields(cls)}
    unknown = sorted(values.keys() - known.keys())
    missing = sorted(
        name for name in known.keys() - values.keys() if known[name].default is MISSING
    )
    if unknown or missing:
        raise ValueError(
            f"{where} has unknown keys {unknown} and lacks {missing}, expected {sorted(known)}."
        )
    for name, value in values.items():
        _check(f"{where}: {name}", value, known[name].type)
    return cls(**values)


def _check(name: str, value: Any, type_name: Any) -> None:  # noqa: ANN401
    """Check one value against the annotation of its field, a string.

    Raises:
        ValueError: If it does not fit.
    """
    if type_name == "str" and not isinstance(value, str):
        raise ValueError(f"{name} is {value!r}, expected a string.")
    if type_name == "int" and (type(value) is not int or value < 0):
        raise ValueError(f"{name} is {value!r}, expected a whole number, not negative.")
    if type_name == "float" and (type(value) not in {int, float} or value <= 0):
        raise ValueError(f"{name} is {value!r}, expected a positive number.")
    if name.endswith(("iterations", "num_envs", "parity_steps")) and value < 1:
        raise ValueError(f"{name} is {value}, expected at least 1.")
    if name.endswith("episodes") and value < 2:
        raise ValueError(f"{name} is {value}, expected at least 2: an interval needs a spread.")

"""Dataclasses from YAML, with errors that name the file, the section and the key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, TypeVar

import yaml

T = TypeVar("T")


def _is_string(value: object) -> bool:
    return isinstance(value, str)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_positive(value: object) -> bool:
    return type(value) in {int, float} and value > 0  # pyright: ignore[reportOperatorIssue]


RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "str": (_is_string, "a string"),
    "int": (_is_count, "a whole number, not negative"),
    "float": (_is_positive, "a positive number"),
    "list[str]": (
        lambda value: isinstance(value, list) and all(map(_is_string, value)),
        "a list of strings",
    ),
    "list[int]": (
        lambda value: isinstance(value, list) and bool(value) and all(map(_is_count, value)),
        "a list of whole numbers, not empty and none negative",
    ),
    "dict[str, int]": (
        lambda value: isinstance(value, dict) and all(map(_is_count, value.values())),
        "a mapping of names to whole numbers, none negative",
    ),
}
"""By annotation: whether a value fits, and what was expected."""

AT_LEAST = {
    "iterations": (1, "nothing is trained otherwise"),
    "num_envs": (1, "nothing is simulated otherwise"),
    "parity_steps": (1, "nothing is compared otherwise"),
    "episodes": (2, "an interval needs a spread"),
}
"""The smallest whole number that a key of this name may have, with the reason."""


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file.

    Args:
        path: The file.

    Returns:
        Its values.

    Raises:
        ValueError: If it cannot be read or is no mapping.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"The preset {path} cannot be read: {error}") from error
    return mapping(values, path.name)


def mapping(value: Any, where: str) -> dict[str, Any]:
    """Return a value that is a mapping.

    Args:
        value: YAML value.
        where: File and section, for the message.

    Returns:
        The value.

    Raises:
        ValueError: If it is something else.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {value!r}, expected a mapping of options.")
    return value


def build(cls: type[T], values: Any, where: str) -> T:
    """Build a dataclass from a mapping.

    Args:
        cls: Dataclass. Fields whose annotation is not among :data:`RULES` come built.
        values: YAML value.
        where: File and section, for the messages.

    Returns:
        The dataclass.

    Raises:
        ValueError: If a key is missing or unknown, or a value has the wrong type or sign.
    """
    options = mapping(values, where)
    known = {field.name: field for field in fields(cls)}  # pyright: ignore[reportArgumentType]
    unknown = sorted(options.keys() - known.keys())
    missing = sorted(name for name in known.keys() - options.keys() if _required(known[name]))
    if unknown or missing:
        raise ValueError(
            f"{where} has unknown keys {unknown} and lacks {missing}, expected {sorted(known)}."
        )
    for name, value in options.items():
        _check(where, name, value, str(known[name].type))
    return cls(**options)


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _check(where: str, name: str, value: Any, annotation: str) -> None:
    """Check one value against the annotation of its field.

    Raises:
        ValueError: If it does not fit.
    """
    rule = RULES.get(annotation.removesuffix(" | None"))
    if rule is None:
        return
    fits, expected = rule
    if not fits(value):
        raise ValueError(f"{where}: {name} is {value!r}, expected {expected}.")
    least, reason = AT_LEAST.get(name, (0, ""))
    if annotation == "int" and value < least:
        raise ValueError(f"{where}: {name} is {value}, expected at least {least}: {reason}.")

"""Checks of options; those of one value stand in its type, ``Annotated[int, Count()]``."""

import math
import typing
import warnings
from dataclasses import dataclass
from numbers import Real
from typing import Annotated, Any, Literal

from rsl_tbptt.core.scan import resolve_engine


@dataclass(frozen=True)
class Count:
    """An integer of at least 1."""

    or_zero: bool = False
    """Whether 0 is taken, too."""
    hint: str = ""
    """What else would do, the end of the message."""

    def __call__(self, name: str, value: Any) -> None:
        """Check ``value``.

        Raises:
            ValueError: If it is something else.
        """
        if self.or_zero and value == 0:
            return
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            least = 0 if self.or_zero else 1
            raise ValueError(
                f"{name} is {value!r}, expected an integer of at least {least}.{self.hint}"
            )


@dataclass(frozen=True)
class Positive:
    """A positive, finite number or None."""

    or_zero: bool = False
    """Whether 0 is taken, too."""
    or_inf: bool = False
    """Whether inf is taken, too."""
    hint: str = ""
    """What else would do, the end of the message."""

    def __call__(self, name: str, value: Any) -> None:
        """Check ``value``.

        Raises:
            ValueError: If it is something else.
        """
        if value is None or (self.or_zero and value == 0) or (self.or_inf and value == math.inf):
            return
        if not (is_finite(value) and value > 0):
            raise ValueError(f"{name} is {value!r}, expected a positive number.{self.hint}")


@dataclass(frozen=True)
class Between:
    """A finite number from ``low`` to ``high``; either may be infinite."""

    low: float
    high: float
    rule: str = ""
    """What the message says is expected, if not the two bounds."""

    def __call__(self, name: str, value: Any) -> None:
        """Check ``value``.

        Raises:
            ValueError: If it is something else.
        """
        if is_finite(value) and self.low <= value <= self.high:
            return
        bounds = "" if self.low == -math.inf else f" of at least {self.low:g}"
        bounds = f" from {self.low:g} to {self.high:g}" if self.high < math.inf else bounds
        rule = self.rule or f"a finite number{bounds}."
        raise ValueError(f"{name} is {value!r}, expected {rule}")


@dataclass(frozen=True)
class MoreThan:
    """A finite number above a bound."""

    bound: float
    hint: str = ""
    """The end of the message."""

    def __call__(self, name: str, value: Any) -> None:
        """Check ``value``.

        Raises:
            ValueError: If it is something else.
        """
        if not (is_finite(value) and value > self.bound):
            raise ValueError(f"{name} is {value!r}, expected more than {self.bound:g}{self.hint}.")


def known_engine(name: str, value: Any) -> None:
    """Check that ``value`` names a scan engine.

    Raises:
        ValueError: If it does not.
    """
    resolve_engine(value)


def checked_by_rsl_rl(name: str, value: Any) -> None:
    """Accept everything: rsl_rl has the check, and takes more than the type says (capitals)."""


def check_value(name: str, value: Any, annotation: Any) -> None:
    """Check a value by what its type carries, and a ``Literal`` without a check by its choices.

    Args:
        name: Name of the option.
        value: Its value. None passes where the type allows it.
        annotation: The type, perhaps ``Annotated`` with checks of (name, value).

    Raises:
        ValueError: If the value is refused.
    """
    checks: list[Any] = []
    if typing.get_origin(annotation) is Annotated:
        annotation, *metadata = typing.get_args(annotation)
        checks = [check for check in metadata if callable(check)]
    if value is None and type(None) in typing.get_args(annotation):
        return
    for check in checks:
        check(name, value)
    if not checks and typing.get_origin(annotation) is Literal:
        choices = typing.get_args(annotation)
        if value not in choices:
            expected = " or ".join(map(repr, choices))
            raise ValueError(f"{name} is {value!r}, expected {expected}.")


def check_at_most_envs(name: str, value: int, num_envs: int) -> None:
    """Check that a count does not exceed the number of environments.

    Raises:
        ValueError: If it does.
    """
    if value > num_envs:
        raise ValueError(f"{name} is {value}, expected at most num_envs, {num_envs}.")


def warn_beyond_rollout(name: str, value: int | None, num_steps: int) -> None:
    """Warn where a number of steps exceeds the rollout and acts as the rollout."""
    if value is not None and value > num_steps:
        warnings.warn(
            f"{name} is {value}, more than num_steps_per_env, {num_steps}: windows do not reach"
            f" over a rollout, so it acts as {num_steps}. Raise num_steps_per_env for more.",
            stacklevel=5,
        )


def is_finite(value: object) -> bool:
    """Return whether ``value`` is a number that is neither NaN nor inf; a text is none."""
    return isinstance(value, Real) and math.isfinite(value)

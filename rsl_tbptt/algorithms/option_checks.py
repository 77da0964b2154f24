"""Checks of options: rules in the types of a dataclass's fields."""

import difflib
import math
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Annotated, Any, Literal, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Rule:
    """A check of one value, attached to its type: ``Annotated[int, count()]``."""

    accepts: Callable[[Any], bool]
    expected: str
    hint: str = ""
    """An alternative that the message proposes at its end."""

    def __call__(self, name: str, value: Any) -> None:
        """Check ``value``.

        Raises:
            ValueError: If it is refused.
        """
        if not self.accepts(value):
            raise ValueError(f"{name} is {value!r}, expected {self.expected}.{self.hint}")


def count(least: int = 1, hint: str = "") -> Rule:
    """Accept integers of at least ``least``."""
    return Rule(
        lambda value: type(value) is int and value >= least,  # bool is another type
        f"an integer of at least {least}",
        hint,
    )


def are_integers(values: Any, least: int) -> bool:
    """Return whether ``values`` is a list of integers of at least ``least``."""
    return isinstance(values, list | tuple) and all(map(count(least).accepts, values))


def positive(*also: float, hint: str = "") -> Rule:
    """Accept positive, finite numbers, and the numbers in ``also`` (0 or inf)."""
    return Rule(
        lambda value: value in also or (is_finite(value) and value > 0), "a positive number", hint
    )


def between(low: float, high: float, hint: str = "") -> Rule:
    """Accept finite numbers from ``low`` to ``high``; either may be infinite."""
    least = "" if low == -math.inf else f" of at least {low:g}"
    bounds = least if high == math.inf else f" from {low:g} to {high:g}"
    expected = f"a finite number{bounds}"
    return Rule(lambda value: is_finite(value) and low <= value <= high, expected, hint)


_FLAG = Rule(lambda value: isinstance(value, bool), "True or False")


GONE = {
    "burn_in_length": "set minibatch_unit to 'env', which recomputes states in every mini-batch.",
    "dual_clip_param": "leave it out. max_grad_norm bounds each step.",
    "memory_budget_gb": "set num_micro_batches. An update that runs out of memory is made again"
    " with twice as many.",
    "batch_teacher_labels": "leave it out. The teacher labels each step.",
    "columns": "let the environment make an observation group of these columns.",
    "delay": "let the environment make an observation group of what comes later.",
    "teacher_schedule": "leave it out. teacher_coef falls linearly over teacher_updates.",
    "teacher_return": "set teacher_updates, over which teacher_coef falls linearly.",
    "imitation_weight": "leave it out. An extension of your own can weigh samples.",
    "safe_checkpoint_interval": "set save_interval in the runner's config. 'rsl-tbptt latest RUN'"
    " passes over a file that was not written completely.",
}
"""Options of earlier versions by name, with what to do instead."""


def parse_fields(cls: type[T], options: Mapping[str, Any], whose: str, prefix: str = "") -> T:
    """Build a dataclass of options and run the checks in each field's type.

    None is accepted if the type allows it. A ``Literal`` without a check accepts its choices,
    a ``bool`` no text.

    Args:
        cls: The dataclass.
        options: Values by name.
        whose: The owner of the options, for messages.
        prefix: Prepended to option names in messages.

    Raises:
        ValueError: If a name is unknown (the nearest one is proposed) or a value is not valid.
    """
    hints = typing.get_type_hints(cls, include_extras=True)
    for name in options:
        if name not in hints:
            if name in GONE:
                raise ValueError(f"Option '{name}' of {whose} is gone: {GONE[name]}")
            near = difflib.get_close_matches(str(name), list(hints), n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"known options are {list(hints)}."
            raise ValueError(f"Unknown option '{name}' of {whose}: {hint}")
    parsed = cls(**options)
    for name, annotation in hints.items():
        value, checks = getattr(parsed, name), []
        if typing.get_origin(annotation) is Annotated:
            annotation, *checks = typing.get_args(annotation)
        choices = typing.get_args(annotation)
        if value is None and type(None) in choices:
            continue
        if typing.get_origin(annotation) is Literal and not checks:
            checks = [Rule(choices.__contains__, " or ".join(map(repr, choices)))]
        if annotation is bool:
            checks = [_FLAG]
        for check in checks:
            check(prefix + name, value)
    return parsed


@dataclass(kw_only=True)
class OptionGroup:
    """Options of one part of an algorithm, which inherits the groups of all its parts."""

    def check_together(self) -> Iterator[str]:
        """Check combinations of options; yield a warning for each option without effect.

        Raises:
            ValueError: If they contradict each other.
        """
        yield from ()

    def refuse(self, names: str, expected: str) -> None:
        """Refuse options that contradict each other.

        Args:
            names: Names of the options, separated by spaces.
            expected: The values that would be valid, and why or the fix.

        Raises:
            ValueError: Always.
        """
        given = " and ".join(f"{name} is {getattr(self, name)!r}" for name in names.split())
        raise ValueError(f"{given}, expected {expected}.")

    def without_effect(self, names: str, without: str) -> Iterator[str]:
        """Yield a warning if some of the options are set; ``without`` says what they need."""
        unused = [n for n in names.split() if getattr(self, n) != getattr(type(self), n)]
        if unused:
            listed = " and ".join(f"{name} is {getattr(self, name)!r}" for name in unused)
            yield (
                f"{listed}, which has no effect without {without}. Set that, or leave it at its"
                " default."
            )


def warn_all(messages: Iterable[str]) -> None:
    """Warn with the stack level of the constructor's caller."""
    for message in messages:
        warnings.warn(message, stacklevel=4)


def is_finite(value: object) -> bool:
    """Return whether ``value`` is a number other than NaN and inf."""
    return isinstance(value, Real) and math.isfinite(value)

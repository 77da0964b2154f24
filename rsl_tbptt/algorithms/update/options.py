"""What the options of all algorithms share: parsing with clear errors, and checks of values."""

import dataclasses
import difflib
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, Literal, TypeVar

AnyOptions = TypeVar("AnyOptions", bound="Options")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the options of all algorithms share: parsing with clear errors, and these two."""

    algorithm: ClassVar[str]
    """Name of the class whose options they are, as one writes it in a config."""

    non_finite: Literal["skip", "raise"] = "skip"
    """What an update that meets NaN or inf does, undone in either case: "skip" drops the rollout,
    warns once per source and goes on; "raise" ends the training."""

    max_skipped_updates: int = 10
    """So many skipped updates in a row end the training."""

    def __post_init__(self) -> None:
        """Check what all algorithms share.

        Raises:
            ValueError: If a value cannot work.
        """
        check_choice("non_finite", self.non_finite, "skip", "raise")
        check_count("max_skipped_updates", self.max_skipped_updates)
        default = Options.max_skipped_updates
        if self.non_finite == "raise" and self.max_skipped_updates != default:
            warnings.warn(
                f"max_skipped_updates is {self.max_skipped_updates}, which has no effect with"
                f" non_finite 'raise'. Use 'skip', or leave it at {default}.",
                stacklevel=7,
            )

    @classmethod
    def parse(cls: type[AnyOptions], options: Mapping[str, Any]) -> AnyOptions:
        """Build the options from keyword arguments.

        Raises:
            ValueError: If a name is unknown (the nearest one is proposed) or a value is not valid.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean '{near[0]}'?" if near else f"known options are {known}."
                raise ValueError(f"Unknown option '{name}' of {cls.algorithm}: {hint}")
        return cls(**options)


def check_choice(name: str, value: object, *choices: str) -> None:
    """Check that ``value`` is one of ``choices``.

    Raises:
        ValueError: If it is not.
    """
    if value not in choices:
        expected = " or ".join(repr(choice) for choice in choices)
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


def check_count(name: str, value: object) -> None:
    """Check for an integer of at least 1.

    Raises:
        ValueError: If it is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        hint = " Use None to keep the share." if name == "teacher_action_updates" else ""
        raise ValueError(f"{name} is {value!r}, expected an integer of at least 1.{hint}")


def check_positive(name: str, value: object) -> None:
    """Check for a positive, finite number or None.

    Raises:
        ValueError: If it is neither.
    """
    if name == "max_grad_norm" and value == math.inf:  # how configs of rsl_rl's PPO do not clip
        return
    if value is not None and not (is_finite(value) and value > 0):  # type: ignore[operator]
        hint = " Use None to not clip." if name == "max_grad_norm" else ""
        raise ValueError(f"{name} is {value!r}, expected a positive number.{hint}")


def check_between(name: str, value: object, low: float, high: float) -> None:
    """Check for a finite number from ``low`` to ``high``; either may be infinite.

    Raises:
        ValueError: If it is something else.
    """
    if not (is_finite(value) and low <= value <= high):  # type: ignore[operator]
        bounds = "" if low == -math.inf else f" of at least {low:g}"
        bounds = f" from {low:g} to {high:g}" if high < math.inf else bounds
        raise ValueError(f"{name} is {value!r}, expected a finite number{bounds}.")


def is_finite(value: object) -> bool:
    """Return whether ``value`` is a number that is neither NaN nor inf; a text is none."""
    return isinstance(value, Real) and math.isfinite(value)


def check_chunks_or_budget(num_env_chunks: int, memory_budget_gb: float | None) -> None:
    """Check that the environment chunks are given or left to the budget.

    Raises:
        ValueError: If both are asked for, or the budget is not positive.
    """
    check_positive("memory_budget_gb", memory_budget_gb)
    if memory_budget_gb is not None and num_env_chunks > 1:
        raise ValueError(
            f"num_env_chunks is {num_env_chunks}, expected 1 with memory_budget_gb"
            f" {memory_budget_gb}: the budget decides on the chunks."
        )

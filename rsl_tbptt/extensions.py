"""What you add to an algorithm: the form of extensions, and of their options.

An extension is one class in one file of yours, which the algorithm's config names::

    algorithm["extensions"] = [{"class_name": "my_robot.losses:Smoothness", "coef": 0.1}]

docs/howto/extensions.md builds one. The extensions of this package have the same form.
"""

from __future__ import annotations

import difflib
import math
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import torch
from torch import nn

Term = tuple[str, Any, torch.Tensor]
"""A term of a loss: its name in metrics, its coefficient, and a value per sample, (K, n)."""

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


class Extension:
    """A part of an algorithm. A method that you leave out does nothing.

    ::

        each rollout    begin_rollout, then in each step act, process_env_step
        each update     labels, in each optimiser step outputs and losses, then metrics, advance

    Inside :meth:`outputs` and :meth:`losses` only tensors at fixed addresses may be read and
    written: a CUDA graph may repeat them. Write what changes between updates into labels, or into a
    tensor in place.
    """

    Options: ClassVar[type[OptionGroup]] = OptionGroup
    """Options that the config may set: a dataclass, whose types have the checks of values."""

    name: ClassVar[str] = ""
    """Key of its entry in checkpoints; the name of the class if you set none."""

    modules: dict[str, nn.Module]
    """Its networks by name. They are trained at the algorithm's rate, saved, loaded, copied to all
    ranks, and restored when an update is undone."""

    state: dict[str, Any]
    """Its tensors and plain values by name. Replace them, do not change them in place. They are
    saved and loaded, and restored when an update is undone or a rollout dropped."""

    def __init__(self, options: Any, algorithm: Any) -> None:
        """Keep both; make modules and state in yours.

        Args:
            options: An ``Options``, checked.
            algorithm: The algorithm, with its models and ``storage``.
        """
        self.options, self.algorithm = options, algorithm
        self.modules, self.state = {}, {}

    def __init_subclass__(cls) -> None:
        """Name the extension."""
        cls.name = vars(cls).get("name", cls.__name__)

    def observed_groups(self) -> set[str]:
        """Return the observation groups that it reads."""
        return set()

    def begin_rollout(self) -> None:
        """Prepare before the first step of a rollout.

        Raises:
            ValueError: If something that training needs is missing.
        """

    def act(self, obs: Any, step: int) -> None:
        """Look at the observations (N,) of a step of the rollout, before the policy acts."""

    def process_env_step(self, obs: Any, rewards: torch.Tensor, dones: torch.Tensor) -> Any:
        """Return the rewards (N,) to learn from, given those of a step.

        Args:
            obs: Next observations, (N,).
            rewards: Rewards. Shape: (N,).
            dones: Which episodes ended. Shape: (N,), bool.
        """
        return rewards

    def labels(self) -> Mapping[str, Any]:
        """Return its labels of the stored rollout, shape (T, N, ...) each, or tuples of such.

        All terms of a sample are multiplied by the label ``"weight"``, (T, N), if there is one.
        """
        return {}

    def outputs(self, policy: Any, samples: Any) -> torch.Tensor:
        """Return the outputs of the policy's MLP, (K, n, ...), which make its distribution.

        Of ``policy`` read ``output`` and ``latent`` here; everything else is computed from what
        you return. Do the same in the rollout: with a hook of a layer, set in :meth:`act`.
        """
        return policy.output

    def losses(self, policy: Any, samples: Any) -> Iterator[Term]:
        """Yield terms of the loss: name, coefficient and a value per sample, (K, n).

        A term with coefficient 0 is only reported. The mean over samples is minimised.

        Args:
            policy: What the policy computes for K steps of n environments: ``mean`` (K, n, A),
                ``std``, ``log_prob`` and ``entropy`` (K, n), ``latent`` (K, n, H); see ``Policy``.
            samples: Their labels by name, such as ``samples["actions"]`` (K, n, A), their ``obs``,
                and ``episode_starts`` (K, n), True where a step has no predecessor.
        """
        yield from ()

    def metrics(self) -> dict[str, torch.Tensor]:
        """Return values of the update over all processes, shape () each."""
        return {}

    def advance(self, metrics: dict[str, float]) -> None:
        """Advance after an update that is kept, and complete the metrics to log in place."""


def warn_all(messages: Iterable[str]) -> None:
    """Warn with the stack level of the constructor's caller."""
    for message in messages:
        warnings.warn(message, stacklevel=4)


def is_finite(value: object) -> bool:
    """Return whether ``value`` is a number other than NaN and inf."""
    return isinstance(value, Real) and math.isfinite(value)

"""Which of several teachers labels a sample: a number that is observed, or a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from tensordict import TensorDict

from rsl_tbptt.compat.versions import resolve_callable

NONE = -1
"""The number of no teacher."""


@dataclass(frozen=True)
class Selector:
    """Reads from observations which teacher each row belongs to."""

    read: Callable[[TensorDict], torch.Tensor]
    """Maps observations, batch size (rows,), to numbers, shape (rows,) or (rows, 1)."""

    described: str
    """What it is, for messages."""

    names: tuple[str, ...]
    """The teachers in the order of their numbers, which begin with 0."""

    group: str | None = None
    """The observation group that holds the numbers; None of a function, which may read any."""

    @property
    def expected(self) -> str:
        """What numbers it may give, for messages."""
        return ", ".join(f"{number} ({name})" for number, name in enumerate(self.names))

    def __call__(self, obs: TensorDict) -> torch.Tensor:
        """Return the number of each row's teacher, without host synchronisation.

        Args:
            obs: Observations, batch size (rows,).

        Returns:
            Numbers, shape (rows,), int64; ``NONE`` where the selector names no teacher.
        """
        values = self.read(obs).reshape(-1)
        number = values.long()
        # A number between two teachers, or a NaN, names none.
        named = (number == values) & (number >= 0) & (number < len(self.names))
        return number.masked_fill(~named, NONE)

    def check(self, obs: TensorDict) -> None:
        """Check what the selector gives for the first observations.

        Args:
            obs: Observations of all environments, batch size (N,).

        Raises:
            ValueError: If it fails, gives another shape, or names no teacher somewhere.
        """
        try:
            values = self.read(obs)
            number = self(obs)
        except Exception as error:  # a user's function can raise anything
            raise ValueError(
                f"The selector, {self.described}, fails on the first observations ({error}):"
                " expected a number for each environment."
            ) from error
        if number.shape != obs.batch_size:
            raise ValueError(
                f"The selector, {self.described}, gives shape {tuple(values.shape)}, expected"
                f" ({obs.batch_size[0]},) or ({obs.batch_size[0]}, 1): one number of a teacher for"
                " each environment."
            )
        bad = (number == NONE).nonzero().flatten().tolist()
        if bad:
            value = values.reshape(-1)[bad[0]].item()
            raise ValueError(
                f"The selector, {self.described}, is {value:g} in environment {bad[0]}, expected"
                f" one of {self.expected}: a teacher's number is its place in 'teachers'."
            )


def resolve_selector(
    selector: str | Callable[[TensorDict], torch.Tensor], names: Sequence[str], obs: TensorDict
) -> Selector:
    """Return the selector that a config names.

    Args:
        selector: An observation group that holds numbers, a function of observations of batch size
            (rows,), or its qualified name.
        names: The teachers.
        obs: The first observations, batch size (N,).

    Raises:
        ValueError: If there is no such group or function, or if it names no teacher somewhere in
            the first observations.
    """
    if isinstance(selector, str) and selector in obs:
        group = selector
        described = f"the observation group '{group}'"
        found = Selector(lambda seen: seen[group], described, tuple(names), group)
    else:
        if isinstance(selector, str) and not {":", "."} & set(selector):
            raise ValueError(
                f"selector is '{selector}', expected an observation group, one of"
                f" {sorted(map(str, obs.keys()))}, or the qualified name of a function, such as"
                " 'my_package.skills:which'."
            )
        try:
            function = resolve_callable(selector)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise ValueError(
                f"selector is {selector!r}, which cannot be imported ({error}): expected an"
                " observation group or the qualified name of a function, such as"
                " 'my_package.skills:which'."
            ) from error
        found = Selector(function, f"the function {selector!r}", tuple(names))
    found.check(obs)
    return found

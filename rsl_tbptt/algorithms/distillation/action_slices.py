"""Slices of the action with a loss each, as ``loss_type`` lists them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rsl_tbptt.algorithms.update.checks import is_finite

KEYS = ("loss", "actions", "coef", "name")


@dataclass(frozen=True)
class ActionSlice:
    """Consecutive actions and what their loss counts."""

    loss: str | Callable[..., Any]
    """What ``loss_type`` would be for these actions alone."""

    first: int
    """First action."""

    stop: int
    """One past the last action."""

    coef: float
    """What the loss counts beside the others'."""

    name: str
    """Under which it is reported."""

    @property
    def width(self) -> int:
        """Number of actions."""
        return self.stop - self.first


def parse_slices(listed: Sequence[Any], num_actions: int) -> list[ActionSlice]:
    """Read and check the slices of a list.

    Args:
        listed: A dictionary per slice: "loss", "actions" (first, one past the last) and, where
            wanted, "coef" and "name".
        num_actions: A, how many actions there are.

    Returns:
        The slices, none of which share an action.

    Raises:
        ValueError: If one of them is no such dictionary, reaches beyond the actions, or shares an
            action or its name with an earlier one.
    """
    if not listed:
        raise ValueError("loss_type is [], expected at least one slice of the action.")
    slices: list[ActionSlice] = []
    for index, entry in enumerate(listed):
        where = f"loss_type[{index}]"
        found = _parse(where, entry, num_actions)
        for other_index, other in enumerate(slices):
            if found.first < other.stop and other.first < found.stop:
                raise ValueError(
                    f"{where}['actions'] is [{found.first}, {found.stop}], expected no action of"
                    f" loss_type[{other_index}], [{other.first}, {other.stop}]: each has one loss."
                )
            if found.name == other.name:
                raise ValueError(
                    f"{where}['name'] is '{found.name}', expected another one than"
                    f" loss_type[{other_index}] has: each is reported under its name."
                )
        slices.append(found)
    return slices


def _parse(where: str, entry: Any, num_actions: int) -> ActionSlice:
    if not isinstance(entry, Mapping) or not {"loss", "actions"} <= {*entry} <= {*KEYS}:
        raise ValueError(
            f"{where} is {entry!r}, expected a dictionary with 'loss', 'actions' and, where wanted,"
            " 'coef' and 'name'."
        )
    bounds = entry["actions"]
    integers = isinstance(bounds, Sequence) and all(type(bound) is int for bound in bounds)
    if not (integers and len(bounds) == 2 and 0 <= bounds[0] < bounds[1] <= num_actions):
        raise ValueError(
            f"{where}['actions'] is {bounds!r}, expected [first, one past the last] of"
            f" {num_actions} actions, counted from 0."
        )
    first, stop = bounds
    coef, name = entry.get("coef", 1.0), entry.get("name", f"actions_{first}_{stop}")
    if not (is_finite(coef) and coef >= 0):
        raise ValueError(f"{where}['coef'] is {coef!r}, expected a finite number of at least 0.")
    if not isinstance(name, str) or not name:
        raise ValueError(f"{where}['name'] is {name!r}, expected a text to report the loss under.")
    return ActionSlice(entry["loss"], first, stop, float(coef), name)

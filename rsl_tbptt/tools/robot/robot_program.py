"""Model the program around a policy on a robot, as in training or with faults.

A :class:`RobotProgram` turns measured terms into observations as the program does. Its fields say
how. ``alternatives`` yields programs with one field changed, and ``faults`` describes the fields
that differ from training.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

Numbers = Any
"""A number, or one for each element."""


@dataclass(frozen=True, eq=False)
class Part:
    """A term of the observations, or of the actions on their way to the joints.

    Fields above ``order`` describe the term. The others say what the program does with it.
    """

    name: str
    values: np.ndarray
    """Values as measured, or as the policy returns them. Shape: (T, D)."""
    scale: Numbers = 1.0
    offset: Numbers = 0.0
    clip: Sequence[float] | None = None
    """Lowest and highest value before ``scale``."""
    limits: np.ndarray | None = None
    """Lowest and highest value after ``scale`` and ``offset``. Shape: (D, 2)."""
    history: int = 0
    shape: tuple[int, ...] = ()
    """Shape of the result without T, history included; () means (D,)."""
    labels: tuple[str, ...] = ()
    """Names of the D numbers, where they are certainly these joints."""
    orders: Sequence[tuple[int, ...]] = ()
    """Orders of the D numbers that programs are likely to use."""
    may_be_late: bool = False
    """Whether training delays the term as well."""

    order: tuple[int, ...] = ()
    """Place that each of the D numbers is taken from; () keeps all in place."""
    negated: frozenset[int] = frozenset()
    times_scaled: int = 1
    has_offset: bool = True
    newest_first: bool = False
    is_late: bool = False

    def compute(self, starts: np.ndarray) -> np.ndarray:
        """Process the values as the program does.

        Args:
            starts: True where an episode starts; the history begins again there. Shape: (T,), bool.

        Returns:
            The processed values. Shape: (T, *shape).
        """
        values = self.values[:, [*(self.order or range(self.width))]]
        if self.is_late:
            values = delayed(values)
        if self.clip is not None:
            lowest, highest = self.clip
            values = np.clip(values, lowest, highest)
        values = values * np.asarray(self.scale) ** self.times_scaled
        values = values + np.asarray(self.offset) * self.has_offset
        if self.limits is not None:
            values = np.clip(values, self.limits[:, 0], self.limits[:, 1])
        values[:, [*self.negated]] *= -1.0
        if self.history:
            steps = np.arange(len(values))
            begin = np.maximum.accumulate(np.where(starts, steps, 0))
            ages = np.arange(self.history)
            ages = ages if self.newest_first else ages[::-1]
            values = values[np.maximum(steps[:, None] - ages, begin[:, None])]
        return values.reshape(len(values), *(self.shape or (-1,)))

    @property
    def width(self) -> int:
        """Number D of values per step."""
        return self.values.shape[1]

    def alternatives(self) -> Iterator[Part]:
        """Yield other ways in which the program may process the term, with one change each."""
        if np.any(np.asarray(self.scale) != 1.0):
            others = (times for times in (0, 1, 2) if times != self.times_scaled)
            yield from (replace(self, times_scaled=times) for times in others)
        if np.any(self.offset):
            yield replace(self, has_offset=not self.has_offset)
        if self.history > 1:
            yield replace(self, newest_first=not self.newest_first)
        yield replace(self, is_late=not self.is_late)
        order = self.order or (*range(self.width),)
        signs = [{*order}, *({one} for one in range(self.width) if self.width > 1)]
        yield from (replace(self, negated=self.negated ^ changed) for changed in signs)
        yield from (replace(self, order=other) for other in self.orders if other != order)
        yield from (replace(self, order=swapped) for swapped in _swaps(order))

    def faults(self) -> Iterator[Fault]:
        """Yield what the program does differently from training."""
        labels = self.labels or [f"[{number}]" for number in range(self.width)]
        if self.times_scaled == 0:
            yield Fault("scale missing", f"{self.name}: the scale {self.scale} is missing")
        if self.times_scaled == 2:
            yield Fault("scale twice", f"{self.name}: the scale {self.scale} is applied twice")
        if not self.has_offset:
            yield Fault("offset missing", f"{self.name}: the offset {self.offset} is missing")
        if self.newest_first:
            yield Fault("history reversed", f"{self.name}: the history has the newest step first")
        if self.is_late and not self.may_be_late:
            yield Fault("late", f"{self.name}: one step late")
        if self.negated:
            negated = _listed([labels[one] for one in sorted(self.negated)])
            which = "" if len(self.negated) == self.width else f" of {negated}"
            yield Fault("sign flipped", f"{self.name}: the sign{which} is flipped")
        if self.order and self.order != (*range(self.width),):
            order = _listed([labels[one] for one in self.order])
            text = f"in the order {order}, expected {_listed(labels)}"
            yield Fault("permuted", f"{self.name}: {text}")


@dataclass(frozen=True)
class Fault:
    """A difference between a program on the robot and training."""

    kind: str
    text: str


@dataclass(frozen=True, eq=False)
class RobotProgram:
    """A program that runs a policy."""

    starts: np.ndarray
    """True where an episode starts. Shape: (T,), bool."""
    groups: Mapping[str, tuple[Part, ...]]
    """Terms of each observation group, in the program's order."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Shape of each group without T; (D,) for groups that are missing here."""
    fixed: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Logged observation groups, (T, ...) each, which are used in place of their terms."""
    normalizer: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    """Mean and divisor of each group that the policy normalises."""

    normalizes: bool = False
    """Whether the program normalises in addition to the policy."""
    sees_late: bool = False
    acts_late: bool = False
    clears: str = "at starts"
    """When the memory is cleared: "at starts", "never" or "always"."""
    group_order: tuple[str, ...] = ()
    """Order in which the program joins groups; () means as in training."""

    def obs(self) -> dict[str, np.ndarray]:
        """Return the observation groups that the policy is given, shape (T, ...) each."""
        found = {name: self._group(name) for name in self.groups}
        if self.normalizes:
            for name, seen in self.normalizer.items():
                found[name] = (found[name] - np.asarray(seen["mean"])) / np.asarray(seen["divisor"])
        if self.sees_late:
            found = {name: delayed(values) for name, values in found.items()}
        return self._joined_in_order(found) if self.group_order else found

    def _group(self, name: str) -> np.ndarray:
        if name in self.fixed:
            return self.fixed[name]
        values = [part.compute(self.starts) for part in self.groups[name]]
        shape = self.shapes.get(name, (-1,))
        return np.concatenate(values, axis=-1).reshape(len(self.starts), *shape)

    def _joined_in_order(self, groups: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        num_steps = len(self.starts)
        joined = [groups[name].reshape(num_steps, -1) for name in self.group_order]
        ends = np.cumsum([each[0].size for each in groups.values()])[:-1]
        split = np.split(np.concatenate(joined, axis=1), ends, axis=1)
        return {
            name: part.reshape(values.shape)
            for (name, values), part in zip(groups.items(), split, strict=True)
        }

    def read_again(self) -> RobotProgram:
        """Return the program with sensors that differ by what changes in a step, at random."""
        generator = np.random.default_rng(0)

        def read(part: Part) -> Part:
            steps = np.diff(part.values, axis=0, prepend=part.values[:1])
            steps *= generator.choice([-1.0, 1.0], steps.shape)
            return replace(part, values=part.values + steps)

        return replace(self, groups={n: (*map(read, parts),) for n, parts in self.groups.items()})

    def terms(self, group: str) -> np.ndarray:
        """Return the name of each number's term. Shape: (D,)."""
        parts = self.groups[group]
        names = [np.full(part.shape or (part.width,), part.name) for part in parts]
        return np.concatenate(names, axis=-1).ravel()

    def clearings(self) -> np.ndarray:
        """Return at which steps the memory is cleared beforehand. Shape: (T,), bool."""
        others = {"never": np.arange(len(self.starts)) == 0, "always": self.starts | True}
        return others.get(self.clears, self.starts)

    def part_alternatives(self) -> Iterator[RobotProgram]:
        """Yield programs that compute observations differently from their terms."""
        for name, parts in self.groups.items():
            if name in self.fixed:
                continue
            changed = [
                (*parts[:place], other, *parts[place + 1 :])
                for place, part in enumerate(parts)
                for other in part.alternatives()
            ]
            for others in (*changed, *_swaps(parts)):
                yield replace(self, groups={**self.groups, name: others})

    def obs_alternatives(self) -> Iterator[RobotProgram]:
        """Yield programs that compute observations differently."""
        yield from self.part_alternatives()
        yield replace(self, sees_late=not self.sees_late)
        if self.normalizer:
            yield replace(self, normalizes=not self.normalizes)

    def alternatives(self) -> Iterator[RobotProgram]:
        """Yield programs that compute actions differently."""
        yield from self.obs_alternatives()
        yield replace(self, acts_late=not self.acts_late)
        for clears in ("at starts", "never", "always"):
            if clears != self.clears:
                yield replace(self, clears=clears)
        for order in itertools.permutations(self.groups):
            if 1 < len(order) <= 4 and order != (self.group_order or (*self.groups,)):
                yield replace(self, group_order=order)

    def faults(self, trained: RobotProgram) -> Iterator[Fault]:
        """Yield what this program does differently from that of training."""
        for name, parts in self.groups.items():
            names, expected = ([p.name for p in r.groups[name]] for r in (self, trained))
            if names != expected:
                text = f"{name}: terms in the order {_listed(names)}, expected {_listed(expected)}"
                yield Fault("swapped", text)
            for part in parts:
                yield from part.faults()
        if self.group_order not in ((), (*self.groups,)):
            text = f"{_listed(self.group_order)}, expected {_listed([*self.groups])}"
            yield Fault("swapped", f"groups are joined in the order {text}")
        if self.normalizes:
            yield Fault("normalised twice", "observations are normalised, but the policy does that")
        if self.sees_late:
            yield Fault("late", "all observations are one step late")
        if self.acts_late:
            yield Fault("late", "actions are one step late")
        if self.clears == "never":
            yield Fault("not reset", "the memory is not cleared where an episode starts")
        if self.clears == "always":
            yield Fault("reset every step", "the memory is cleared at every step")


def delayed(values: np.ndarray) -> np.ndarray:
    """Return values, (T, ...), one step late."""
    return np.concatenate([values[:1], values[:-1]])


def _swaps(items: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield a tuple with two of its elements exchanged, for each pair."""
    for one, other in itertools.combinations(range(len(items)), 2):
        swapped = [*items]
        swapped[one], swapped[other] = items[other], items[one]
        yield (*swapped,)


def usual_orders(labels: Sequence[str]) -> list[tuple[int, ...]]:
    """Return other orders of joints that simulators and drivers use, without duplicates.

    The orders are: alphabetical; by the words of each name, the last word first or alone (all hips,
    then all knees); by the first word (leg by leg); and with left and right exchanged.
    """
    if len({*labels}) < 2:
        return []
    numbers = range(len(labels))
    keys: list[Callable[[int], Any]] = [
        lambda i: labels[i],
        lambda i: labels[i].split("_")[::-1],
        lambda i: labels[i].split("_")[0],
        lambda i: labels[i].split("_")[-1],
    ]
    orders = [(*sorted(numbers, key=key),) for key in keys]
    mirrored = [*map(_mirrored, labels)]
    if {*mirrored} == {*labels}:
        orders.append((*map([*labels].index, mirrored),))
    return [order for order in dict.fromkeys(orders) if order != (*numbers,)]


def _mirrored(name: str) -> str:
    """Exchange left and right in a joint's name: FL_hip, left_hip, hip_l."""
    sides = {"l": "r", "r": "l", "L": "R", "R": "L", "left": "right", "right": "left"}
    word = r"(?<![^\W_])([FHRBfhrb]?)(left|right|[LRlr])(?![^\W_])"  # between underscores
    return re.sub(word, lambda found: found[1] + sides[found[2]], name)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)

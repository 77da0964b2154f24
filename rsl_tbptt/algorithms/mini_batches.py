"""Mini-batches of PPO: which segments of the rollout are replayed together, and from which state.

Two units. ``"env"``: whole environments, one segment each. ``"window"``: every window of every
environment is a segment of its own::

    step      0 1 2 3 4 5 6 7           T = 8, gradient_length = 3, burn_in_length = 1

    "env"     = = =|= = =|= =           one segment; | cuts the gradient, the state goes on
    "window"  = = =
                  - = = =               three segments, each from the state the rollout stored
                        - = =           before its first step; - is replayed without gradient
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from rsl_rl.storage import RolloutStorage

from rsl_tbptt.algorithms.options import PpoOptions
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.rollout import Rollout, Segments
from rsl_tbptt.core.windows import Group, Window, tbptt_schedule

MiniBatchUnit = Literal["env", "window"]


@dataclass(frozen=True)
class Shape:
    """Segments of equal length and windows: S of them in every environment."""

    first_steps: tuple[int, ...]
    """Step of the rollout at which each begins, S of them."""

    group: Group
    """Their windows, counted from the beginning of a segment."""

    num_loss_steps: int
    """Steps of one segment that enter the loss."""


@dataclass(frozen=True)
class Part:
    """Segments of one shape in a mini-batch."""

    group: Group
    """Their windows, counted from the beginning of a segment."""

    first_steps: torch.Tensor
    """Step of the rollout at which each begins. Shape: (n,)."""

    env_indices: torch.Tensor
    """Environment of each. Shape: (n,)."""

    state_indices: torch.Tensor
    """Place of the state each begins with, among the joined states. Shape: (n,)."""

    def of(self, rollout: Rollout) -> Segments:
        """Return the part's segments of a rollout."""
        return Segments(rollout, self.first_steps, self.env_indices)

    def state(self, joined: HiddenState) -> HiddenState:
        """Return the state before the segments' first steps, n environments."""
        return hidden_state.select_envs(joined, self.state_indices)

    def loss_steps(self, values: torch.Tensor) -> torch.Tensor:
        """Pick from ``values`` (T, N) those of the samples that enter the loss, as a vector."""
        segments = self.of(Rollout(values, {}, torch.zeros_like(values, dtype=torch.bool)))
        first, last = self.group[0].loss_start, self.group[-1].stop
        return segments.steps(first, last).obs.flatten()


@dataclass(frozen=True)
class MiniBatch:
    """What one optimiser step sees."""

    parts: tuple[Part, ...]
    """One per shape."""

    num_samples: int
    """Robot-steps that enter the loss, over all processes."""

    ranks: Ranks
    """The processes that have a share of it."""

    def loss_steps(self, values: torch.Tensor) -> torch.Tensor:
        """Pick from ``values`` (T, N) those of the samples that enter the loss, as a vector."""
        return torch.cat([part.loss_steps(values) for part in self.parts])


class MiniBatches:
    """Draws the mini-batches of each epoch; every sample is in exactly one of them."""

    def __init__(
        self,
        num_steps: int,
        num_envs: int,
        num_mini_batches: int,
        *,
        ranks: Ranks,
        gradient_length: int,
        unit: MiniBatchUnit = "env",
        burn_in_length: int = 0,
        shuffle: bool = True,
        device: torch.device | str = "cpu",
    ) -> None:
        """Plan the segments.

        Args:
            num_steps: Length T of the rollout.
            num_envs: Number of environments N, at least ``num_mini_batches``.
            num_mini_batches: Optimiser steps per epoch.
            ranks: The processes that train together.
            gradient_length: k2, the steps the gradient flows back.
            unit: What is drawn: whole environments or windows.
            burn_in_length: Steps replayed without gradient before each window.
            shuffle: Whether each epoch draws anew; else in order of steps and environments.
            device: Where the indices live.
        """
        self._num_envs, self._num_mini_batches = num_envs, num_mini_batches
        self._ranks, self._shuffle, self._device = ranks, shuffle, device
        self.window_length = min(gradient_length, num_steps)
        """Steps of the longest window."""
        self._shapes = _shapes(num_steps, gradient_length, unit, burn_in_length)
        first_steps = {step for shape in self._shapes for step in shape.first_steps}
        self.state_steps = tuple(sorted(first_steps))
        # On the device once: a copy from the host in every mini-batch would wait for the device.
        self._first_steps = [torch.tensor(s.first_steps, device=device) for s in self._shapes]
        self._state_places = [
            torch.tensor([self.state_steps.index(step) for step in s.first_steps], device=device)
            for s in self._shapes
        ]
        self._num_samples = [ranks.sum_count(count, device) for count in self._count_samples()]

    def _count_samples(self) -> list[int]:
        """Return the samples in each mini-batch of this process."""
        counts = [0] * self._num_mini_batches
        for shape in self._shapes:
            pairs = torch.arange(len(shape.first_steps) * self._num_envs)
            for index, share in enumerate(pairs.tensor_split(self._num_mini_batches)):
                counts[index] += shape.num_loss_steps * len(share)
        return counts

    @property
    def num_samples_of_smallest(self) -> int:
        """Robot-steps of this process in its smallest mini-batch."""
        return min(self._count_samples())

    def draw(self) -> Iterator[MiniBatch]:
        """Draw one epoch's mini-batches. Each gets its share of the segments of every shape."""
        order = torch.randperm if self._shuffle else torch.arange
        shares = [
            order(len(shape.first_steps) * self._num_envs, device=self._device).tensor_split(
                self._num_mini_batches
            )
            for shape in self._shapes
        ]
        for num_samples, pairs in zip(self._num_samples, zip(*shares, strict=True), strict=True):
            yield self._mini_batch(pairs, num_samples, self._ranks)

    def of_envs(self, envs: torch.Tensor) -> MiniBatch:
        """Return all segments of some environments, shape (n,), as this process's mini-batch."""
        pairs = [
            torch.cat([segment * self._num_envs + envs for segment in range(len(s.first_steps))])
            for s in self._shapes
        ]
        steps_of_env = sum(len(s.first_steps) * s.num_loss_steps for s in self._shapes)
        return self._mini_batch(pairs, len(envs) * steps_of_env, Ranks(together=False))

    def _mini_batch(
        self, pairs: Sequence[torch.Tensor], num_samples: int, ranks: Ranks
    ) -> MiniBatch:
        """Build a mini-batch from indices of (segment, environment), one tensor per shape."""
        parts = []
        shapes = zip(self._shapes, self._first_steps, self._state_places, pairs, strict=True)
        for shape, first_steps, places, indices in shapes:
            segment, env = indices // self._num_envs, indices % self._num_envs
            state = places[segment] * self._num_envs + env
            parts.append(Part(shape.group, first_steps[segment], env, state))
        return MiniBatch(tuple(parts), num_samples, ranks)


def _shapes(
    num_steps: int, gradient_length: int, unit: MiniBatchUnit, burn_in_length: int
) -> list[Shape]:
    """Cut a rollout into segments and collect those of equal shape."""
    (group,) = tbptt_schedule(num_steps, gradient_length, update_length=num_steps)
    if unit == "env":
        return [Shape((0,), group, num_steps)]
    first_steps: dict[tuple[int, int], list[int]] = {}
    for window in group:
        burn_in = min(burn_in_length, window.start)
        shape = (burn_in, window.num_loss_steps)
        first_steps.setdefault(shape, []).append(window.start - burn_in)
    return [
        Shape(tuple(steps), _windows(burn_in, length), length)
        for (burn_in, length), steps in first_steps.items()
    ]


def _windows(burn_in: int, length: int) -> Group:
    """Return a window of ``length`` steps after one of ``burn_in`` steps without loss."""
    window = Window(burn_in, burn_in, burn_in + length, carry=burn_in + length)
    return (Window(0, burn_in, burn_in, carry=burn_in), window) if burn_in else (window,)


def plan_mini_batches(
    storage: RolloutStorage, options: PpoOptions, ranks: Ranks, recurrent: bool
) -> MiniBatches:
    """Plan mini-batches of environments, or of single steps where neither model is recurrent."""
    num_steps, num_envs = storage.num_transitions_per_env, storage.num_envs
    if not recurrent:
        num_steps, num_envs = 1, num_steps * num_envs
    return MiniBatches(
        num_steps,
        num_envs,
        options.num_mini_batches,
        ranks=ranks,
        gradient_length=options.gradient_length or num_steps,
        unit=options.minibatch_unit,
        burn_in_length=options.burn_in_length,
        shuffle=options.shuffle_envs,
        device=storage.dones.device,
    )

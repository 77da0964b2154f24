"""Mini-batches of PPO: the segments of the rollout that are replayed together, and their states.

A segment is one environment from some step on. There are two units for models with memory, and
single steps for models without::

    step            0 1 2 3 4 5 6 7     T = 8, gradient_length = 3

    "env"           = = =|= = =|= =     one segment; | cuts the gradient, the state continues
    "window"        = = =
                          = = =         three segments, each from the state the rollout stored
                                = =     before its first step
    without memory  = = = = = = = =     eight segments of one step
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch

from rsl_tbptt.algorithms.options import PpoOptions
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.rollout import Batch, Rollout
from rsl_tbptt.core.windows import Group, Window, tbptt_schedule


class Indices(NamedTuple):
    """The samples of one optimiser step."""

    segments: tuple[torch.Tensor, ...]
    """The segments of each group of windows in ``Batches.groups``: their ``Batch.first_rows``, and
    their places in the joined states. Shape: (2, n) each, int64."""

    num_samples: int
    """Samples that enter the loss, over all processes."""


class Batches:
    """Draws the mini-batches of each epoch; every sample is in exactly one of them."""

    def __init__(
        self,
        num_steps: int,
        num_envs: int,
        options: PpoOptions,
        ranks: Ranks,
        device: torch.device | str,
        *,
        has_memory: bool = True,
    ) -> None:
        """Plan the segments.

        Args:
            num_steps: Length T of the rollout.
            num_envs: Number of environments N, at least ``num_mini_batches``.
            options: Unit and order of the samples, and the length of windows.
            ranks: The processes that train together.
            device: Device of the indices.
            has_memory: Whether actor or critic has memory; otherwise a segment is a single step.
        """
        self._options, self._sizes, self._has_memory = options, (num_steps, num_envs), has_memory
        self.num_envs_of_largest = -(-num_envs // options.num_mini_batches)
        """Environments in the largest mini-batch."""
        self._num_envs, self._device = num_envs, device
        segments = _segments(num_steps, options, has_memory)
        self.groups = tuple(segments)
        """The windows of segments, counted from their beginning, for each shape of segments."""
        length = options.gradient_length or num_steps
        self.window_length = min(length, num_steps) if has_memory else 1
        """Steps of the longest window."""
        first_steps = sorted({step for steps in segments.values() for step in steps})
        self.state_steps = first_steps if has_memory else [0]
        """Steps of the rollout before which a state is needed."""
        # Placed on the device once: copying them in every epoch would wait for the device.
        self._indices = [self._indices_of(steps) for steps in segments.values()]
        counts = [self._count(numbers) for numbers in self._deal(torch.arange)]
        self._num_samples_of_smallest = min(counts)
        self._num_samples = [ranks.sum_count(count, device) for count in counts]
        self.num_samples = sum(self._num_samples)
        """Samples of an epoch, over all processes."""

    def check_training(self) -> None:
        """Check the sizes that training needs; a policy that plays may have fewer environments.

        Raises:
            ValueError: If a mini-batch or micro-batch would be empty, or too small to normalise
                advantages over.
        """
        options, smallest = self._options, self._num_samples_of_smallest
        options.check_training(*self._sizes, recurrent=self._has_memory)
        per_mini_batch = options.normalize_advantage_per_mini_batch
        num_samples = smallest if per_mini_batch else self.num_samples
        if num_samples < 2:  # the standard deviation of one sample is NaN
            raise ValueError(
                f"The number of samples is {num_samples} in the smallest group whose advantages are"
                " divided by their standard deviation, expected at least 2: raise num_steps_per_env"
                " or num_envs, or with normalize_advantage_per_mini_batch lower num_mini_batches."
            )

    def draw(self) -> Iterable[Indices]:
        """Draw one epoch's mini-batches. Each gets its share of the segments of every shape."""
        shares = self._deal(torch.randperm if self._options.shuffle_envs else torch.arange)
        for num_samples, segments in zip(self._num_samples, shares, strict=True):
            yield Indices(segments, num_samples)

    def of_envs(self, envs: slice | torch.Tensor) -> Indices:
        """Return all segments of some environments, shape (n,), as this process's mini-batch."""
        rows = torch.arange(self._num_envs, device=self._device)[envs]
        numbers = [
            torch.cat([rows + first for first in range(0, indices.shape[1], self._num_envs)])
            for indices in self._indices
        ]
        pairs = zip(self._indices, numbers, strict=True)
        segments = tuple(indices[:, chosen] for indices, chosen in pairs)
        return Indices(segments, self._count(segments))

    def rows(self, rollout: Rollout, segments: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the places of samples in a rollout's ``rows``. Shape: (K,)."""
        pairs = zip(self.groups, segments, strict=True)
        rows = [
            Batch(rollout, first_rows).row_indices(0, group[-1].stop).flatten()
            for group, (first_rows, _) in pairs
        ]
        return torch.cat(rows)

    def _indices_of(self, steps: Sequence[int]) -> torch.Tensor:
        """Return the indices of all segments that begin at some steps, by step, (2, S * N)."""
        places = [self.state_steps.index(step) if self._has_memory else 0 for step in steps]
        firsts = torch.tensor([[*steps], places], device=self._device) * self._num_envs
        envs = torch.arange(self._num_envs, device=self._device)
        return (firsts.unsqueeze(-1) + envs).flatten(1)

    def _deal(self, order: Callable[..., torch.Tensor]) -> Iterable[tuple[torch.Tensor, ...]]:
        """Deal the segments of each shape to the mini-batches, in some order of their numbers."""
        drawn = [each[:, order(each.shape[1], device=self._device)] for each in self._indices]
        parts = self._options.num_mini_batches
        return zip(*(some.tensor_split(parts, 1) for some in drawn), strict=True)

    def _count(self, segments: Sequence[torch.Tensor]) -> int:
        """Count the samples of segments, by shape."""
        return sum(g[-1].stop * s.shape[1] for g, s in zip(self.groups, segments, strict=True))


def _segments(num_steps: int, options: PpoOptions, has_memory: bool) -> dict[Group, list[int]]:
    """Split a rollout into segments; return the steps at which they begin, by their windows."""
    if not has_memory:
        return {(Window(0, 0, 1, carry=1),): [*range(num_steps)]}
    length = options.gradient_length or num_steps
    (group,) = tbptt_schedule(num_steps, length, update_length=num_steps)
    if options.minibatch_unit == "env":
        return {group: [0]}
    segments: dict[Group, list[int]] = {}
    for window in group:
        length = window.num_loss_steps
        segments.setdefault((Window(0, 0, length, carry=length),), []).append(window.start)
    return segments

"""Mini-batches of PPO: the segments of the rollout that are replayed together, and their states.

There are two units. ``"env"``: each environment is one segment. ``"window"``: each window of each
environment is a segment::

    step      0 1 2 3 4 5 6 7           T = 8, gradient_length = 3, burn_in_length = 1

    "env"     = = =|= = =|= =           one segment; | cuts the gradient, the state continues
    "window"  = = =
                  - = = =               three segments, each from the state the rollout stored
                        - = =           before its first step; - is replayed without gradient
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from rsl_tbptt.algorithms.options import PpoOptions
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.rollout import Rollout, Segments
from rsl_tbptt.core.windows import Group, Window, tbptt_schedule


@dataclass(frozen=True)
class Part:
    """Segments of a mini-batch that have the same windows."""

    group: Group
    """Windows, counted from the beginning of a segment."""

    first_steps: torch.Tensor
    """Step of the rollout at which each segment begins. Shape: (n,)."""

    env_indices: torch.Tensor
    """Environment of each segment. Shape: (n,)."""

    state_indices: torch.Tensor
    """Index of each segment's first state in the joined states. Shape: (n,)."""

    def of(self, rollout: Rollout) -> Segments:
        """Return the part's segments of a rollout."""
        return Segments(rollout, self.first_steps, self.env_indices)

    def state(self, joined: HiddenState) -> HiddenState:
        """Return the state before each segment's first step, of n environments."""
        return hidden_state.select_envs(joined, self.state_indices)

    def loss_rows(self, rollout: Rollout) -> torch.Tensor:
        """Return the places of the samples that enter the loss in ``rollout.rows``, a vector."""
        first, last = self.group[0].loss_start, self.group[-1].stop
        return self.of(rollout).row_indices(first, last).flatten()


@dataclass(frozen=True)
class MiniBatch:
    """The samples of one optimiser step."""

    parts: tuple[Part, ...]
    """One part for each shape of segments."""

    num_samples: int
    """Robot-steps that enter the loss, over all processes."""

    ranks: Ranks
    """The processes that have a share of the mini-batch."""

    def loss_rows(self, rollout: Rollout) -> torch.Tensor:
        """Return the places of the samples that enter the loss in ``rollout.rows``, a vector."""
        return torch.cat([part.loss_rows(rollout) for part in self.parts])


class MiniBatches:
    """Draws the mini-batches of each epoch; every sample is in exactly one of them."""

    def __init__(
        self,
        num_steps: int,
        num_envs: int,
        options: PpoOptions,
        ranks: Ranks,
        device: torch.device | str,
        *,
        single_steps: bool = False,
    ) -> None:
        """Plan the segments.

        Args:
            num_steps: Length T of the rollout.
            num_envs: Number of environments N, at least ``num_mini_batches``.
            options: Unit and order of the samples, and the lengths of windows and burn-in.
            ranks: The processes that train together.
            device: Device of the indices.
            single_steps: Whether the rollout is treated as T * N environments of one step.
        """
        self._options, self._sizes = options, (num_steps, num_envs)
        self.num_envs_of_largest = -(-num_envs // options.num_mini_batches)
        self.single_steps, self._steps_per_env = single_steps, num_steps if single_steps else 1
        if single_steps:
            num_steps, num_envs = 1, num_steps * num_envs
        self._num_envs, self._num_mini_batches = num_envs, options.num_mini_batches
        self._ranks, self._shuffle, self._device = ranks, options.shuffle_envs, device
        segments = _segments(num_steps, options)
        self._groups = list(segments)
        self.window_length = min(options.gradient_length or num_steps, num_steps)
        """Steps of the longest window."""
        self.state_steps = sorted({step for steps in segments.values() for step in steps})
        """Steps of the rollout before which segments begin."""
        # Placed on the device once: copying them in every mini-batch would wait for the device.
        self._first_steps = [torch.tensor(steps, device=device) for steps in segments.values()]
        self._state_places = [
            torch.tensor([self.state_steps.index(step) for step in steps], device=device)
            for steps in segments.values()
        ]
        counts = [self._num_loss_steps(segments) for segments in self._shares(torch.arange)]
        self._num_samples_of_smallest = min(counts)
        self._num_samples = [ranks.sum_count(count, device) for count in counts]
        self.num_samples = sum(self._num_samples)
        """Robot-steps of an epoch, over all processes."""

    def check_training(self) -> None:
        """Check the sizes that training needs; a policy that plays may have fewer environments.

        Raises:
            ValueError: If a mini-batch or micro-batch would be empty, or too small to normalise
                advantages over.
        """
        options, smallest = self._options, self._num_samples_of_smallest
        options.check_training(*self._sizes, recurrent=not self.single_steps)
        per_mini_batch = options.normalize_advantage_per_mini_batch
        options.check_normalization(smallest if per_mini_batch else self.num_samples)

    def draw(self) -> Iterator[MiniBatch]:
        """Draw one epoch's mini-batches. Each gets its share of the segments of every shape."""
        shares = self._shares(torch.randperm if self._shuffle else torch.arange)
        for num_samples, segments in zip(self._num_samples, shares, strict=True):
            yield MiniBatch(self._parts(segments), num_samples, self._ranks)

    def of_envs(self, envs: slice | torch.Tensor) -> MiniBatch:
        """Return all segments of some environments, shape (n,), as this process's mini-batch."""
        rows = torch.arange(self._num_envs, device=self._device).view(self._steps_per_env, -1)
        rows = rows[:, envs].flatten()
        segments = [
            torch.cat([segment * self._num_envs + rows for segment in range(len(steps))])
            for steps in self._first_steps
        ]
        num_samples = self._num_loss_steps(segments)
        return MiniBatch(self._parts(segments), num_samples, Ranks(together=False))

    def _shares(self, order: Callable[..., torch.Tensor]) -> Iterable[Sequence[torch.Tensor]]:
        """Deal segments to mini-batches; a segment's number combines its place and environment."""
        sizes = [len(steps) * self._num_envs for steps in self._first_steps]
        drawn = [order(size, device=self._device) for size in sizes]
        return zip(*(each.tensor_split(self._num_mini_batches) for each in drawn), strict=True)

    def _num_loss_steps(self, segments: Sequence[torch.Tensor]) -> int:
        """Count the samples of segments, by shape, that enter the loss."""
        return sum(
            sum(window.num_loss_steps for window in group) * len(own)
            for group, own in zip(self._groups, segments, strict=True)
        )

    def _parts(self, segments: Sequence[torch.Tensor]) -> tuple[Part, ...]:
        """Build the parts of segments, by shape."""
        parts = []
        shapes = zip(self._groups, self._first_steps, self._state_places, segments, strict=True)
        for group, first_steps, places, numbers in shapes:
            place, env = numbers // self._num_envs, numbers % self._num_envs
            parts.append(Part(group, first_steps[place], env, places[place] * self._num_envs + env))
        return tuple(parts)


def _segments(num_steps: int, options: PpoOptions) -> dict[Group, list[int]]:
    """Split a rollout into segments; return the steps at which they begin, by their windows."""
    length = options.gradient_length or num_steps
    (group,) = tbptt_schedule(num_steps, length, update_length=num_steps)
    if options.minibatch_unit == "env":
        return {group: [0]}
    segments: dict[Group, list[int]] = {}
    for whole in group:
        burn_in, length = min(options.burn_in_length, whole.start), whole.num_loss_steps
        window = Window(burn_in, burn_in, burn_in + length, carry=burn_in + length)
        before = (Window(0, burn_in, burn_in, carry=burn_in),) if burn_in else ()
        segments.setdefault((*before, window), []).append(whole.start - burn_in)
    return segments

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
    """One for each shape of segments."""

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
        options: PpoOptions,
        ranks: Ranks,
        device: torch.device | str,
    ) -> None:
        """Plan the segments.

        Args:
            num_steps: Length T of the rollout; 1 if its steps are seen as environments.
            num_envs: Number of environments N, at least ``num_mini_batches``.
            options: What is drawn, in what order, and the lengths of windows and burn-in.
            ranks: The processes that train together.
            device: Where the indices live.
        """
        self._num_envs, self._num_mini_batches = num_envs, options.num_mini_batches
        self._ranks, self._shuffle, self._device = ranks, options.shuffle_envs, device
        segments = _segments(num_steps, options)
        self._groups = list(segments)
        self.window_length = min(options.gradient_length or num_steps, num_steps)
        """Steps of the longest window."""
        self.state_steps = sorted({step for steps in segments.values() for step in steps})
        """Steps of the rollout before which segments begin."""
        # On the device once: a copy from the host in every mini-batch would wait for the device.
        self._first_steps = [torch.tensor(steps, device=device) for steps in segments.values()]
        self._state_places = [
            torch.tensor([self.state_steps.index(step) for step in steps], device=device)
            for steps in segments.values()
        ]
        counts = [0] * self._num_mini_batches
        for group, steps in segments.items():
            pairs = torch.arange(len(steps) * num_envs)
            for index, share in enumerate(pairs.tensor_split(self._num_mini_batches)):
                counts[index] += _num_loss_steps(group) * len(share)
        self.num_samples_of_smallest = min(counts)
        """Robot-steps of this process in its smallest mini-batch."""
        self._num_samples = [ranks.sum_count(count, device) for count in counts]

    def draw(self) -> Iterator[MiniBatch]:
        """Draw one epoch's mini-batches. Each gets its share of the segments of every shape."""
        order = torch.randperm if self._shuffle else torch.arange
        shares = [
            order(len(steps) * self._num_envs, device=self._device).tensor_split(
                self._num_mini_batches
            )
            for steps in self._first_steps
        ]
        for num_samples, pairs in zip(self._num_samples, zip(*shares, strict=True), strict=True):
            yield MiniBatch(self._parts(pairs), num_samples, self._ranks)

    def of_envs(self, envs: torch.Tensor) -> MiniBatch:
        """Return all segments of some environments, shape (n,), as this process's mini-batch."""
        pairs = [
            torch.cat([segment * self._num_envs + envs for segment in range(len(steps))])
            for steps in self._first_steps
        ]
        lengths = map(_num_loss_steps, self._groups)
        num_samples = sum(length * len(each) for length, each in zip(lengths, pairs, strict=True))
        return MiniBatch(self._parts(pairs), num_samples, Ranks(together=False))

    def _parts(self, pairs: Sequence[torch.Tensor]) -> tuple[Part, ...]:
        """Build parts from indices of (segment, environment), one tensor per shape."""
        parts = []
        shapes = zip(self._groups, self._first_steps, self._state_places, pairs, strict=True)
        for group, first_steps, places, indices in shapes:
            segment, env = indices // self._num_envs, indices % self._num_envs
            parts.append(
                Part(group, first_steps[segment], env, places[segment] * self._num_envs + env)
            )
        return tuple(parts)


def _segments(num_steps: int, options: PpoOptions) -> dict[Group, list[int]]:
    """Cut a rollout into segments; return the steps at which they begin, by their windows."""
    length = options.gradient_length or num_steps
    (group,) = tbptt_schedule(num_steps, length, update_length=num_steps)
    if options.minibatch_unit == "env":
        return {group: [0]}
    segments: dict[Group, list[int]] = {}
    for window in group:
        burn_in = min(options.burn_in_length, window.start)
        windows = _windows(burn_in, window.num_loss_steps)
        segments.setdefault(windows, []).append(window.start - burn_in)
    return segments


def _windows(burn_in: int, length: int) -> Group:
    """Return a window of ``length`` steps after one of ``burn_in`` steps without loss."""
    window = Window(burn_in, burn_in, burn_in + length, carry=burn_in + length)
    return (Window(0, burn_in, burn_in, carry=burn_in), window) if burn_in else (window,)


def _num_loss_steps(group: Group) -> int:
    return sum(window.num_loss_steps for window in group)

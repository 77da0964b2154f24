"""A rollout in the core's form, tensors of T steps by N environments, and its advantages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch.utils._pytree import register_pytree_node

ACTIONS, STD, NEWEST, WEIGHT = "actions", "std", "newest", "weight"
"""Names of labels: actions (T, N, A), of a distillation the teacher's means, and their standard
deviations; whether a sample belongs to the newest rollout, (T, N), bool; and a factor of all terms
of a sample's loss, (T, N)."""

BEHAVIOR, BUFFER = "behavior", "buffer"
"""Names of a distillation's loss on the newest rollout and on past ones."""

Labels = Mapping[str, Any]
"""Targets that a loss compares outputs with, by name: tensors of leading shape (T, N), or tuples of
such tensors, as the parameters of a distribution are."""


def map_label(function: Callable[[Any], Any], label: Any) -> Any:
    """Apply a function to a label: a tensor, or each tensor of a tuple."""
    return tuple(map(function, label)) if isinstance(label, tuple) else function(label)


@dataclass(frozen=True)
class Rollout:
    """T steps of N environments; slices of steps and environments are views."""

    obs: Any
    """Observations: a tensor or TensorDict with leading shape (T, N)."""

    labels: Labels
    """Targets of the loss."""

    episode_starts: torch.Tensor
    """True where step t is the first of an episode, read before it. Shape: (T, N), bool."""

    @classmethod
    def from_dones(cls, obs: Any, labels: Labels, dones: torch.Tensor) -> Rollout:
        """Build a rollout from ``dones`` (T, N), bool, which are read after each step.

        Row 0 of ``episode_starts`` is False: the state before the rollout has already been cleared
        after the preceding step::

            step                  0 1 2 3
            dones (after)         . x . x
            episode_starts (bef.) . . x .      and the final state is cleared where dones[3]
        """
        return cls(obs, labels, torch.cat((torch.zeros_like(dones[:1]), dones[:-1])))

    @property
    def num_steps(self) -> int:
        """Number of steps T."""
        return self.episode_starts.shape[0]

    @property
    def num_envs(self) -> int:
        """Number of environments N."""
        return self.episode_starts.shape[1]

    def steps(self, first: int, last: int) -> Rollout:
        """Return steps [first, last) as views."""
        if (first, last) == (0, self.num_steps):
            return self
        return self.each(lambda tensor: tensor[first:last])

    def envs(self, envs: slice) -> Rollout:
        """Return the rollout of some environments as views."""
        return self.each(lambda tensor: tensor[:, envs])

    def with_observations(self, obs: Any, labels: Labels) -> Rollout:
        """Return the rollout with other observations and labels, of leading shape (T, N)."""
        return replace(self, obs=obs, labels=labels)

    @cached_property
    def rows(self) -> Rollout:
        """The samples in one row, time-major, as views: leading shape (T * N) instead of (T, N)."""
        return self.each(lambda tensor: tensor.flatten(0, 1))

    def each(self, function: Callable[[Any], Any]) -> Rollout:
        """Return a rollout with ``function`` applied to each tensor of leading shape (T, N)."""
        labels = {name: map_label(function, label) for name, label in self.labels.items()}
        return Rollout(function(self.obs), labels, function(self.episode_starts))


register_pytree_node(
    Rollout,
    lambda rollout: ([rollout.obs, rollout.labels, rollout.episode_starts], None),
    lambda parts, _: Rollout(*parts),
)


@dataclass(frozen=True)
class Samples:
    """K steps of n environments as a loss sees them; ``samples["actions"]`` is a label of them."""

    rollout: Rollout
    """These steps. K steps of n environments."""

    cuts: tuple[int, ...] = ()
    """Steps before which the gradient is cut, besides the first."""

    def __getitem__(self, name: str) -> Any:
        """Return a label, of leading shape (K, n)."""
        return self.rollout.labels[name]

    def __contains__(self, name: str) -> bool:
        return name in self.rollout.labels

    @property
    def obs(self) -> Any:
        """Observations that the model reads, of leading shape (K, n)."""
        return self.rollout.obs

    @cached_property
    def episode_starts(self) -> torch.Tensor:
        """True where no loss may compare step t with step t - 1. Shape: (K, n), bool.

        That is where an episode starts, and where the gradient is cut: at the first step of each
        window. So a loss of neighbouring steps does not depend on how many windows run at once.
        """
        starts = self.rollout.episode_starts.clone()
        for step in (0, *self.cuts):
            starts[step] = True
        return starts


@dataclass(frozen=True)
class Batch:
    """n segments of a rollout, treated as environments.

    A segment is one column of the rollout from some step on: a whole environment, a window of it,
    a single step for a model without memory, or a sequence of a replay buffer. ``steps`` copies
    only the window it is asked for, so an update's memory depends on its windows and not on the
    rollout.
    """

    rollout: Rollout
    """The rollout."""

    first_rows: torch.Tensor
    """Place of each segment's first step in the rollout's ``rows``: step * N + column. Shape: (n,).

    A whole column begins at its own number."""

    @property
    def num_envs(self) -> int:
        """Number of segments n."""
        return len(self.first_rows)

    def steps(self, first: int, last: int) -> Rollout:
        """Copy steps [first, last) of every segment, counted from its beginning."""
        rows = self.row_indices(first, last)
        return self.rollout.rows.each(lambda tensor: tensor[rows])

    def row_indices(self, first: int, last: int) -> torch.Tensor:
        """Return the places of these steps in the rollout's ``rows``. Shape: (last - first, n)."""
        size, device = self.rollout.num_envs, self.first_rows.device
        steps = torch.arange(first * size, last * size, size, device=device)
        return steps.unsqueeze(1) + self.first_rows

    def envs(self, envs: slice) -> Batch:
        """Return some of the segments."""
        return Batch(self.rollout, self.first_rows[envs])


def generalized_advantages(
    rewards: torch.Tensor,
    values: torch.Tensor,
    last_values: torch.Tensor,
    dones: torch.Tensor,
    gamma: float,
    lam: float,
) -> torch.Tensor:
    """Return the advantages of a rollout.

    If an episode ends with step t, nothing after t enters the advantage of t or of earlier steps.
    ``rewards`` has to contain the bootstrapped value of a truncated episode already.

    Args:
        rewards: Rewards of steps 0 to T-1. Shape: (T, N).
        values: Value estimates before these steps. Shape: (T, N).
        last_values: Value estimates after step T-1. Shape: (N,).
        dones: Whether the episode ended with step t. Shape: (T, N), bool.
        gamma: Discount factor.
        lam: Weight of longer estimates: 0 uses one step, 1 the whole return.

    Returns:
        Advantages. Shape: (T, N).

    References:
        Schulman et al. (2016), "High-dimensional continuous control using generalized advantage
        estimation", equation 16.
    """
    next_values = torch.cat((values[1:], last_values.unsqueeze(0)))
    advantages = rewards + gamma * next_values.masked_fill(dones, 0.0) - values
    # Two small operations per step. Doubling needs log2(T) operations on the whole rollout, but is
    # slower on CPU from a few hundred environments on.
    steps, ended = advantages.unbind(), dones.unbind()
    for t in reversed(range(len(steps) - 1)):
        steps[t].add_(steps[t + 1].masked_fill(ended[t], 0.0), alpha=gamma * lam)
    return advantages

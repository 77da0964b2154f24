"""A rollout as the core sees it: tensors of T steps by N environments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Rollout:
    """T steps of N environments, sliced by steps and environments without copies."""

    obs: Any
    """Observations: a tensor or TensorDict with leading shape (T, N)."""

    labels: tuple[torch.Tensor, ...]
    """What the loss compares with, each of leading shape (T, N)."""

    episode_starts: torch.Tensor
    """True where step t is the first of an episode, read before it. Shape: (T, N), bool."""

    @classmethod
    def from_dones(cls, obs: Any, labels: tuple[torch.Tensor, ...], dones: torch.Tensor) -> Rollout:
        """Build a rollout from ``dones`` (T, N), bool, which are read after each step.

        Row 0 of ``episode_starts`` is False: the state before the rollout was cleared after the
        step that preceded it::

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

    @property
    def episode_lengths(self) -> torch.Tensor:
        """Steps that the episode of each sample has inside the rollout. Shape: (T, N), float."""
        pieces = self.episode_starts.cumsum(0)
        ones = torch.ones(pieces.shape, device=pieces.device)
        return torch.zeros_like(ones).scatter_add(0, pieces, ones).gather(0, pieces)

    def steps(self, first: int, last: int) -> Rollout:
        """Return steps [first, last) as views."""
        labels = tuple(label[first:last] for label in self.labels)
        return Rollout(self.obs[first:last], labels, self.episode_starts[first:last])

    def envs(self, envs: slice) -> Rollout:
        """Return the rollout of some environments as views."""
        labels = tuple(label[:, envs] for label in self.labels)
        return Rollout(self.obs[:, envs], labels, self.episode_starts[:, envs])

    def seen_by(self, obs_groups: Sequence[str], labels: tuple[torch.Tensor, ...]) -> Rollout:
        """Return the same rollout with some observation groups and with ``labels``."""
        return Rollout(self.obs.select(*obs_groups), labels, self.episode_starts)

    def as_single_steps(self) -> Rollout:
        """Return the rollout as T * N environments of one step, as a memoryless model sees it."""
        labels = tuple(label.flatten(0, 1).unsqueeze(0) for label in self.labels)
        starts = self.episode_starts.flatten().unsqueeze(0)
        return Rollout(self.obs.flatten(0, 1).unsqueeze(0), labels, starts)


@dataclass(frozen=True)
class Stretches:
    """n stretches of a rollout, each of one environment from one step on, seen as environments.

    Nothing is copied before ``steps`` is asked for a window, so that the memory an update takes
    depends on its windows and not on the rollout.
    """

    rollout: Rollout
    """The rollout."""

    first_steps: torch.Tensor
    """Step at which each stretch begins. Shape: (n,)."""

    env_indices: torch.Tensor
    """Environment of each stretch. Shape: (n,)."""

    @property
    def num_envs(self) -> int:
        """Number of stretches n."""
        return len(self.env_indices)

    def steps(self, first: int, last: int) -> Rollout:
        """Copy steps [first, last) of every stretch, counted from its beginning."""
        steps = torch.arange(first, last, device=self.env_indices.device).unsqueeze(1)
        rows = (self.first_steps + steps) * self.rollout.num_envs + self.env_indices
        return Rollout(
            self.rollout.obs.flatten(0, 1)[rows],
            tuple(label.flatten(0, 1)[rows] for label in self.rollout.labels),
            self.rollout.episode_starts.flatten(0, 1)[rows],
        )

    def envs(self, envs: slice) -> Stretches:
        """Return some of the stretches."""
        return Stretches(self.rollout, self.first_steps[envs], self.env_indices[envs])

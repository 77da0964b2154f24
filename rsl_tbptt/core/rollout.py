"""A rollout as the core sees it: tensors of T steps by N environments."""

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

    dones: torch.Tensor
    """True where the episode ended with step t, read after it. Shape: (T, N), bool."""

    @property
    def num_steps(self) -> int:
        """Number of steps T."""
        return self.dones.shape[0]

    @property
    def num_envs(self) -> int:
        """Number of environments N."""
        return self.dones.shape[1]

    @property
    def episode_starts(self) -> torch.Tensor:
        """True where step t is the first of an episode, read before it. Shape: (T, N), bool.

        Row 0 is False: the state before the rollout was cleared after the step that preceded it::

            step                  0 1 2 3
            dones (after)         . x . x
            episode_starts (bef.) . . x .      and the final state is cleared where dones[3]
        """
        return torch.cat((torch.zeros_like(self.dones[:1]), self.dones[:-1]))

    def envs(self, envs: slice | torch.Tensor) -> "Rollout":
        """Return the rollout of some environments: views for a slice, copies for indices (n,)."""
        return Rollout(
            self.obs[:, envs], tuple(label[:, envs] for label in self.labels), self.dones[:, envs]
        )

    def as_single_steps(self) -> "Rollout":
        """Return the rollout as T * N environments of one step, as a memoryless model sees it."""
        labels = tuple(label.flatten(0, 1).unsqueeze(0) for label in self.labels)
        return Rollout(
            self.obs.flatten(0, 1).unsqueeze(0), labels, self.dones.flatten().unsqueeze(0)
        )

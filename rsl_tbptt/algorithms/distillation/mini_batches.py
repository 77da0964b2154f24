"""Mini-batches of the distillation: whole environments of the newest rollout, and of the past."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from rsl_tbptt.core.distributed import Ranks


@dataclass(frozen=True)
class MiniBatch:
    """The sequences that one optimiser step sees."""

    envs: torch.Tensor
    """Environments of the newest rollout. Shape: (n,)."""

    kept: torch.Tensor
    """Columns of the memory, distinct. Shape: (m,)."""

    num_sequences: int | torch.Tensor
    """n + m over all processes. Shape: ()."""


class MiniBatches:
    """Draws the mini-batches of an update's passes over the newest rollout."""

    def __init__(
        self,
        num_envs: int,
        num_kept: int,
        num_mini_batches: int,
        memory_share: float,
        ranks: Ranks,
        device: torch.device,
    ) -> None:
        """Fix the sizes (one exchange with other processes).

        Args:
            num_envs: Number of environments N, at least ``num_mini_batches``.
            num_kept: Sequences of the past to draw from.
            num_mini_batches: Mini-batches B of a pass.
            memory_share: Sequences of the past for each of the newest rollout, where there are so
                many.
            ranks: The processes that train together.
            device: Where the indices live.
        """
        self.num_drawn = min(round(memory_share * num_envs), num_kept)
        """Sequences of the past in a pass."""
        self._num_envs, self._num_kept = num_envs, num_kept
        self._num_mini_batches, self._device = num_mini_batches, device
        sizes = mini_batch_sizes(num_envs, self.num_drawn, num_mini_batches)
        self._num_sequences: list[int] | torch.Tensor = sizes
        if ranks.together:  # filled, not copied: a copy from the host would wait for the device
            own = torch.stack([torch.full((), size, device=device) for size in sizes])
            self._num_sequences = ranks.sum_tensor(own)

    def num_drawn_of_ranks(self, num_envs_of_ranks: int) -> int | torch.Tensor | None:
        """Return the sequences of the past in a pass of all processes, a number or of shape ().

        None if this process has none.

        Args:
            num_envs_of_ranks: Number of environments of all processes.
        """
        if self.num_drawn == 0:
            return None
        if isinstance(self._num_sequences, torch.Tensor):
            return self._num_sequences.sum() - num_envs_of_ranks
        return self.num_drawn

    def draw(self) -> Iterator[MiniBatch]:
        """Draw one pass: every environment once, and ``num_drawn`` sequences of the past.

        No random number is drawn where there is nothing to choose.
        """
        draw_envs = torch.randperm if self._num_mini_batches > 1 else torch.arange
        draw_kept = torch.randperm if self.num_drawn else torch.arange
        envs = draw_envs(self._num_envs, device=self._device)
        kept = draw_kept(self._num_kept, device=self._device)[: self.num_drawn]
        shares = (indices.tensor_split(self._num_mini_batches) for indices in (envs, kept))
        for drawn_envs, drawn_kept, size in zip(*shares, self._num_sequences, strict=True):
            yield MiniBatch(drawn_envs, drawn_kept, size)


def mini_batch_sizes(num_envs: int, num_drawn: int, num_mini_batches: int) -> list[int]:
    """Return the number of sequences in each mini-batch of a pass.

    Args:
        num_envs: Those of the newest rollout.
        num_drawn: Those of the past.
        num_mini_batches: Mini-batches B.
    """
    shares = (torch.arange(n).tensor_split(num_mini_batches) for n in (num_envs, num_drawn))
    return [len(envs) + len(kept) for envs, kept in zip(*shares, strict=True)]

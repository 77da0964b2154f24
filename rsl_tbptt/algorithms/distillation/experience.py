"""What an update of the distillation learns from: the newest rollout, and sequences of the past."""

from __future__ import annotations

from typing import Any

import torch
from rsl_rl.storage import RolloutStorage

from rsl_tbptt.algorithms.distillation.labels import RolloutLabels, StepLabels
from rsl_tbptt.algorithms.distillation.mini_batches import (
    MiniBatch,
    MiniBatches,
    mini_batch_sizes,
)
from rsl_tbptt.algorithms.distillation.options import DistillationOptions
from rsl_tbptt.algorithms.distillation.rollout_memory import RolloutMemory, bytes_per_sequence
from rsl_tbptt.algorithms.update.encoding import find_held_frames
from rsl_tbptt.algorithms.update.replay import seen_by
from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.rollout import Rollout, Segments

Sequences = tuple[Rollout | Segments, HiddenState]
"""Sequences as environments of a rollout, n of them, and the states before their first steps."""


class Experience:
    """Sequences of T steps: one per environment of the newest rollout, and those of a memory."""

    def __init__(
        self,
        student: MLPModel,
        storage: RolloutStorage,
        labels: StepLabels | RolloutLabels,
        options: DistillationOptions,
        ranks: Ranks,
    ) -> None:
        """Take where the newest rollout is found; the memory comes with ``begin_training``.

        Args:
            student: Whose observations the sequences hold.
            storage: Where rollouts are stored.
            labels: The teacher's labels.
            options: Sizes of mini-batches and memory.
            ranks: The processes that train together.
        """
        # On every rank as many, as each comes with an exchange.
        self.num_mini_batches = min(options.num_mini_batches, *ranks.gather(storage.num_envs))
        """Mini-batches of a pass, no more than there are environments."""
        self.start_state: HiddenState = None
        """State of the student before the newest rollout. Shape: (L, N, H), or a pair of them."""
        self.memory: RolloutMemory | None = None
        """Sequences of past rollouts, from the start of training on, if any are to be kept."""
        self._student, self._storage, self._labels = student, storage, labels
        self._options, self._ranks = options, ranks
        self._taken = self.newest()
        self.nothing: Sequences = (self._taken, None)
        """Stands for the sequences of a mini-batch where a process failed to find them."""
        self._saved: dict[str, Any] | None = None
        self._whole = self.num_mini_batches == 1 and options.memory_rollouts == 0

    def newest(self) -> Rollout:
        """View the storage as a rollout."""
        obs = seen_by(self._student, self._storage.observations)
        return Rollout.from_dones(obs, self._labels.of_rollout(), self.dones())

    def dones(self) -> torch.Tensor:
        """Return which episodes of the newest rollout ended when. Shape: (T, N), bool."""
        return self._storage.dones.squeeze(-1).bool()

    def begin_training(self) -> None:
        """Allocate the memory of rollouts, and fill it with what a checkpoint brought.

        There has to be a start state, and past rollouts to be kept.

        Raises:
            ValueError: If ``memory_gb`` has no room, or what was saved does not fit.
        """
        capacity, _ = self.memory_size()
        memory = RolloutMemory(capacity, self.newest(), self.start_state)
        if self._saved is not None:
            memory.load_state_dict(self._saved)
        self.memory, self._saved = memory, None

    def restore(self, saved: dict[str, Any] | None) -> None:
        """Go on with the memory of a checkpoint, now or once there is one; None empties it.

        Args:
            saved: What ``RolloutMemory.state_dict`` returned.

        Raises:
            ValueError: If it does not fit. Nothing is changed then.
        """
        if self.memory is not None and saved is not None:
            self.memory.load_state_dict(saved)
        elif self.memory is not None:
            self.memory.clear()
        self._saved = saved if self.memory is None else None

    def memory_size(self) -> tuple[int, float]:
        """Return how many past sequences are kept at most, and the bytes of the memory.

        There has to be a start state.

        Raises:
            ValueError: If ``memory_gb`` has no room for any.
        """
        num_envs, max_gb = self._storage.num_envs, self._options.memory_gb
        capacity = self._options.memory_rollouts * num_envs
        if capacity == 0:
            return 0, 0.0
        each = bytes_per_sequence(self.newest(), self.start_state)
        if max_gb is not None:
            capacity = min(capacity, int(max_gb * 1e9 / each) - num_envs)
        if capacity < 1:
            raise ValueError(
                f"memory_gb is {max_gb:g}, expected at least {(num_envs + 1) * each / 1e9:.3g}, for"
                " the newest rollout and one sequence of the past: None does not limit it, and"
                " memory_rollouts=0 keeps nothing."
            )
        return capacity, (capacity + num_envs) * each

    def take(self) -> None:
        """Complete the labels of the newest rollout, and put it beside the past."""
        self._labels.complete()
        self._taken = self.newest()
        find_held_frames(self._taken.obs)
        if self.memory is not None:
            self.memory.put(self._taken, self.start_state)

    def plan(self) -> MiniBatches:
        """Plan the mini-batches of an update (one exchange with other processes)."""
        return MiniBatches(
            self._storage.num_envs,
            0 if self.memory is None else self.memory.num_kept,
            self.num_mini_batches,
            self._options.memory_share,
            self._ranks,
            self._storage.dones.device,
        )

    def sizes(self) -> list[int]:
        """Return the sequences in each mini-batch once the memory is full; see ``memory_size``."""
        num_envs, (capacity, _) = self._storage.num_envs, self.memory_size()
        num_drawn = min(round(self._options.memory_share * num_envs), capacity)
        return mini_batch_sizes(num_envs, num_drawn, self.num_mini_batches)

    def of(self, mini_batch: MiniBatch) -> Sequences:
        """Return sequences of a mini-batch, those of the rollout that was taken first."""
        if self._whole:
            return self._taken, hidden_state.clone(self.start_state)
        if self.memory is None:
            return _columns(self._taken, self.start_state, mini_batch.envs)
        columns = torch.cat((self.memory.capacity + mini_batch.envs, mini_batch.kept))
        return _columns(self.memory.rollout, self.memory.state, columns)

    def of_envs(self, envs: slice) -> Sequences:
        """Return sequences of the newest rollout, in the form that updates have.

        Args:
            envs: The first environments, or all. Beyond the last one they come again, as a
                mini-batch with sequences of the past can be larger than the rollout.
        """
        rollout, num_envs = self.newest(), self._storage.num_envs
        if self._whole:
            return rollout.envs(envs), hidden_state.select_envs(
                hidden_state.clone(self.start_state), envs
            )
        columns = torch.arange(envs.stop or num_envs, device=self._storage.dones.device)
        return _columns(rollout, self.start_state, columns % num_envs)


def _columns(rollout: Rollout, state: HiddenState, columns: torch.Tensor) -> Sequences:
    """Return some sequences of a rollout by their numbers, shape (n,)."""
    segments = Segments(rollout, torch.zeros_like(columns), columns)
    return segments, hidden_state.select_envs(state, columns)

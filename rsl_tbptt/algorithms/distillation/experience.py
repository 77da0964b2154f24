"""What an update of the distillation learns from: the newest rollout, and sequences of the past."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from rsl_rl.storage import RolloutStorage

from rsl_tbptt.algorithms.auxiliary.heads import AuxiliaryHeads
from rsl_tbptt.algorithms.distillation.labels import RolloutLabels, StepLabels
from rsl_tbptt.algorithms.distillation.memory_size import MemorySize, memory_size, new_frames
from rsl_tbptt.algorithms.distillation.mini_batches import (
    MiniBatch,
    MiniBatches,
    mini_batch_sizes,
)
from rsl_tbptt.algorithms.distillation.options import DistillationOptions
from rsl_tbptt.algorithms.distillation.rollout_memory import RolloutMemory
from rsl_tbptt.algorithms.distillation.sample_weights import SampleWeights
from rsl_tbptt.algorithms.replay import seen_by
from rsl_tbptt.algorithms.update.frames import find_held_frames, frames_of
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
        heads: AuxiliaryHeads,
        weights: SampleWeights | None,
    ) -> None:
        """Take where the newest rollout is found; the buffer is allocated with the first one.

        Args:
            student: Whose observations the sequences hold.
            storage: Where rollouts are stored.
            labels: The teacher's labels.
            options: Sizes of mini-batches and buffer.
            ranks: The processes that train together.
            heads: The student's auxiliary heads, whose targets are labels, too.
            weights: Those of the samples; None weighs all the same.
        """
        # On every rank as many, as each comes with an exchange.
        self.num_mini_batches = min(options.num_mini_batches, *ranks.gather(storage.num_envs))
        """Mini-batches of a pass, no more than there are environments."""
        self.start_state: HiddenState = None
        """State of the student before the newest rollout. Shape: (L, N, H), or a pair of them."""
        self.memory: RolloutMemory | None = None
        """Sequences of past rollouts, from the first update on, if any are to be kept."""
        self.saved: dict[str, Any] | None = None
        """Those of a checkpoint, until the first update."""
        self._student, self._storage, self._heads = student, storage, heads
        self.labels = labels
        """The teacher's labels."""
        self._weights = weights
        self._options, self._ranks = options, ranks
        self._taken = self.newest()
        self.nothing: Sequences = (self._taken, None)
        """Stands for the sequences of a mini-batch where a process failed to find them."""
        self._whole = self.num_mini_batches == 1 and options.memory_rollouts == 0

    def begin_rollout(self) -> None:
        """Keep the state that a rollout starts with."""
        self.start_state = hidden_state.clone(self._student.get_hidden_state())

    def newest(self) -> Rollout:
        """View the storage as a rollout."""
        obs = seen_by(self._student, self._storage.observations)
        dones = self.dones()
        labels = {**self.labels.of_rollout(), **self._heads.targets(dones)}
        rollout = Rollout.from_dones(obs, labels, dones)
        return rollout if self._weights is None else replace(rollout, weights=self._weights.values)

    def dones(self) -> torch.Tensor:
        """Return which episodes of the newest rollout ended when. Shape: (T, N), bool."""
        return self._storage.dones.squeeze(-1).bool()

    def take(self) -> None:
        """Complete labels and weights of the newest rollout, and put it beside the past.

        Raises:
            ValueError: If the function that weighs its samples fails, ``memory_gb`` has no room, or
                what a checkpoint brought does not fit.
        """
        self.labels.complete()
        if self._weights is not None:
            self._weights.complete()
        self._taken = self.newest()
        find_held_frames(self._taken.obs)
        if self.start_state is None:  # of a first rollout
            self.start_state = hidden_state.apply(
                torch.zeros_like, hidden_state.clone(self._student.get_hidden_state())
            )
        if self._options.memory_rollouts > 0:
            # While it is empty, by the frames of each rollout: a first one may have been dropped.
            if self.memory is None or (self.memory.num_kept == 0 and frames_of(self._taken.obs)):
                self.memory = None  # so that it is given back before
                self.memory = self._new_memory()
            self.memory.put(self._taken, self.start_state)

    def _new_memory(self) -> RolloutMemory:
        """Allocate the buffer by how often the rollout has new frames; fill in what was saved."""
        size = self.memory_size(self._taken)
        memory = RolloutMemory(size.capacity, self._taken, self.start_state, size.num_frames)
        if self.saved is not None:
            memory.load_state_dict(self.saved)
            self.saved = None
        return memory

    def past(self) -> dict[str, Any] | None:
        """Return what a checkpoint holds of the past, None before there is any."""
        return self.saved if self.memory is None else self.memory.state_dict()

    def check(self, saved: dict[str, Any] | None) -> None:
        """Check that the memory of a checkpoint fits ours, if both are there.

        Args:
            saved: What ``RolloutMemory.state_dict`` returned.

        Raises:
            ValueError: If it does not.
        """
        if self.memory is not None and saved is not None:
            self.memory.check(saved)

    def restore(self, saved: dict[str, Any] | None) -> None:
        """Go on with the memory of a checkpoint, now or once there is one; None empties it.

        Args:
            saved: What ``RolloutMemory.state_dict`` returned, checked.
        """
        if self.memory is not None and saved is not None:
            self.memory.load_state_dict(saved)
        elif self.memory is not None:
            self.memory.clear()
        self.saved = saved if self.memory is None else None

    def memory_size(self, rollout: Rollout) -> MemorySize:
        """Return what the buffer takes once it is full of sequences such as those of a rollout.

        Raises:
            ValueError: If ``memory_gb`` has no room for any sequence of the past.
        """
        if self._options.memory_rollouts == 0:
            return MemorySize(0, {}, 0.0)
        frames_per_sequence = new_frames(rollout)
        if self.saved is not None and (kept := len(self.saved["keys"])):
            saved = self.saved.get("frames", {}).items()
            frames_per_sequence |= {group: len(frames) / kept for group, frames in saved}
        return memory_size(
            rollout,
            self.start_state,
            max_sequences=self._options.memory_rollouts * self._storage.num_envs,
            max_gb=self._options.memory_gb,
            frames_per_sequence=frames_per_sequence,
        )

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
        """Return the sequences in each mini-batch once the buffer is full, if all fit in."""
        num_envs = self._storage.num_envs
        num_kept = self._options.memory_rollouts * num_envs
        num_drawn = min(round(self._options.memory_share * num_envs), num_kept)
        return mini_batch_sizes(num_envs, num_drawn, self.num_mini_batches)

    def of(self, mini_batch: MiniBatch) -> Sequences:
        """Return sequences of a mini-batch, those of the rollout that was taken first."""
        if self._whole:
            return self._taken, hidden_state.clone(self.start_state)
        if self.memory is None:
            return _columns(self._taken, self.start_state, mini_batch.envs)
        columns = _columns_of(mini_batch, self.memory)
        return _columns(self.memory.rollout, self.memory.state, columns)

    def weights_of(self, mini_batch: MiniBatch, num_steps: int) -> torch.Tensor:
        """Sum up what the first steps of a mini-batch's sequences weigh.

        Args:
            mini_batch: Sequences of the newest rollout and of the past.
            num_steps: Steps that enter the loss.

        Returns:
            The sums over the sequences of the newest rollout and over those of the past, (2,).
        """
        if self.memory is None:
            weights, columns = self._taken.weights, mini_batch.envs
        else:
            weights, columns = self.memory.rollout.weights, _columns_of(mini_batch, self.memory)
        assert weights is not None
        of_sequences = weights[:num_steps, columns].sum(0)
        newest, past = of_sequences.tensor_split([len(mini_batch.envs)])
        return torch.stack((newest.sum(), past.sum()))

    def of_envs(self, envs: slice) -> Sequences:
        """Return sequences of the newest rollout, in the form that updates have.

        Args:
            envs: The first environments, or all. Beyond the last one they come again, as a
                mini-batch with sequences of the past can be larger than the rollout.
        """
        rollout, num_envs = self.newest(), self._storage.num_envs
        find_held_frames(rollout.obs)
        if self._whole:
            return rollout.envs(envs), hidden_state.select_envs(
                hidden_state.clone(self.start_state), envs
            )
        columns = torch.arange(envs.stop or num_envs, device=self._storage.dones.device)
        return _columns(rollout, self.start_state, columns % num_envs)


def _columns_of(mini_batch: MiniBatch, memory: RolloutMemory) -> torch.Tensor:
    """Return the columns of a mini-batch's sequences, those of the newest rollout first: (n,)."""
    return torch.cat((memory.capacity + mini_batch.envs, mini_batch.kept))


def _columns(rollout: Rollout, state: HiddenState, columns: torch.Tensor) -> Sequences:
    """Return some sequences of a rollout by their numbers, shape (n,)."""
    segments = Segments(rollout, torch.zeros_like(columns), columns)
    return segments, hidden_state.select_envs(state, columns)

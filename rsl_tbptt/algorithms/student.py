"""The student of a distillation as it is replayed, and what its optimiser steps report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rsl_tbptt.algorithms.behavior_losses import ACTIONS, BEHAVIOR, BUFFER, BehaviorLoss
from rsl_tbptt.algorithms.extensions import Extension
from rsl_tbptt.algorithms.extensions.heads import AuxiliaryHeads
from rsl_tbptt.algorithms.health import FirstReplay
from rsl_tbptt.algorithms.options import DistillationOptions
from rsl_tbptt.algorithms.replay import Replay
from rsl_tbptt.algorithms.replay_buffer import Drawn
from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.accumulate import Loss
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.rollout import Batch, Rollout
from rsl_tbptt.core.windows import num_steps_of_full_group, tbptt_schedule


class Student:
    """The student's replay, its loss and the schedule of its windows."""

    def __init__(self, algorithm: Any, model: MLPModel, loss: BehaviorLoss) -> None:
        """Choose how the student is replayed.

        Args:
            algorithm: The distillation, whose options, extensions and experience are set.
            model: The student.
            loss: Loss between student and teacher.
        """
        options: DistillationOptions = algorithm.options
        extensions: Sequence[Extension] = algorithm.extensions
        heads: AuxiliaryHeads = algorithm._heads
        num_steps = algorithm.storage.num_transitions_per_env
        lengths = (options.gradient_length, options.update_length)
        groups = tbptt_schedule(num_steps, *lengths, tail=options.tail)
        self.groups = [group for group in groups if group[-1].num_loss_steps > 0]
        """The windows of each optimiser step of a pass."""
        self._dropped_tail = groups[len(self.groups) :]
        self.num_loss_steps = sum(w.num_loss_steps for group in groups for w in group)
        """Steps of a rollout that enter the loss."""
        steps_per_group = num_steps_of_full_group(num_steps, *lengths)
        self.flushed_steps = self.num_loss_steps % steps_per_group
        """Steps in a last, shorter group."""
        self._steps_in_mean = steps_per_group if options.loss_reduction == "mean" else 1
        self.first_replay = FirstReplay()
        """Metrics of the first replay of an update."""
        self.replay = Replay(
            model,
            loss.head,
            options=options,
            num_envs=algorithm.experience.largest_mini_batch,
            window_length=min(options.gradient_length, num_steps),
            heads=heads.outputs,
            first_replay=self.first_replay,
        )
        self.measures_labels = loss.of_actions
        """Whether health metrics compare actions with their labels."""
        self.loss: Loss = loss
        if self.measures_labels:
            self.loss = self.first_replay.with_action_health(loss, ACTIONS)
        """The loss of an optimiser step."""
        for extension in extensions:
            self.loss = extension.wrap(self.loss)
        self.reported = (BEHAVIOR, BUFFER, *heads.reported)
        """Names of the sums that an optimiser step reports."""

    def divisor(self, drawn: Drawn) -> int | torch.Tensor:
        """Return M of a mini-batch's groups over all ranks."""
        return self._steps_in_mean * drawn.num_sequences

    def keep_end(
        self, ends: HiddenState, rollout: Rollout, drawn: Drawn, state: HiddenState, num_parts: int
    ) -> None:
        """Keep the state of a mini-batch's environments after the rollout, dropped steps too.

        Args:
            ends: Receives the states. Shape: (L, N, H).
            rollout: The rollout.
            drawn: The mini-batch.
            state: Its state after the last group. Shape: (L, n + m, H).
            num_parts: Minimum number of micro-batches.
        """
        columns = drawn.columns[: len(drawn.envs)]
        state = hidden_state.select_envs(state, slice(len(columns)))
        for group in self._dropped_tail:
            batch = Batch(rollout, columns)
            state, _ = self.replay.accumulate(
                group, batch, state, self.loss, 1, num_micro_batches=num_parts
            )
        for kept, end in zip(*map(hidden_state.as_tensors, (ends, state)), strict=True):
            kept.index_copy_(1, drawn.envs, end)

    def add_gradients(
        self, rollout: Rollout, columns: torch.Tensor, state: HiddenState, num_parts: int
    ) -> None:
        """Add the gradient of a pass over some columns, (n,), to ``.grad``.

        Args:
            rollout: The rollout.
            columns: Columns of it.
            state: The states before its first step. Shape: (L, N, H).
            num_parts: Minimum number of micro-batches.
        """
        state = hidden_state.select_envs(state, columns)
        batch = Batch(rollout, columns)
        divisor = self._steps_in_mean * len(columns)
        for group in (*self.groups, *self._dropped_tail):
            state, _ = self.replay.accumulate(
                group, batch, state, self.loss, divisor, num_micro_batches=num_parts
            )

    def means(self, sums: torch.Tensor, sizes: Sequence[Any]) -> dict[str, torch.Tensor]:
        """Return the means of an update. Shape: () each.

        Args:
            sums: Sums of the reported values. Shape: (M,).
            sizes: Numbers of newest and past samples, over all passes and processes.
        """
        reported = zip(self.reported, sums, strict=True)
        return {name: value / sizes[int(name == BUFFER)] for name, value in reported}

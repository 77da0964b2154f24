"""Distillation of a teacher into a (recurrent) student by truncated BPTT."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from rsl_rl.storage import RolloutStorage

from rsl_tbptt.algorithms.behavior_losses import BUFFER
from rsl_tbptt.algorithms.distillation_rollouts import DistillationRollouts
from rsl_tbptt.algorithms.frames import deduplicate_frames
from rsl_tbptt.algorithms.optimizers import set_rate, step_at, update_normalization
from rsl_tbptt.algorithms.options import DistillationOptions
from rsl_tbptt.algorithms.replay import set_state
from rsl_tbptt.algorithms.step_checks import check_types
from rsl_tbptt.algorithms.transaction import whole_or_nothing
from rsl_tbptt.compat.versions import MLPModel, clip_gradients
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.rollout import Batch
from rsl_tbptt.models.controller import as_teacher

LAST_SHARE = 0.03
"""Share of the learning rate left at the end, so that a longer training continues to learn."""


class TbpttDistillation(DistillationRollouts):
    """rsl_rl's Distillation with normalised, gradient-accumulating truncated BPTT.

    A drop-in: same constructor, storage, models, checkpoints and runner. ``update()`` replays the
    rollout with the current weights from the state the rollout started with, window by window, and
    steps the optimiser every ``update_length`` steps. Labels are stored in the rollout, so a
    recurrent teacher is never replayed and keeps its state. The teacher can act in a share of the
    environments (DAgger); the student runs forward in all of them.
    """

    def __init__(
        self,
        student: MLPModel,
        teacher: MLPModel,
        storage: RolloutStorage,
        *,
        device: str = "cpu",
        multi_gpu_cfg: dict | None = None,
        rnd_cfg: None = None,
        symmetry_cfg: None = None,
        **options: Any,
    ) -> None:
        """Set up models, optimiser and schedule.

        Args:
            student: Model to train.
            teacher: Model to imitate, or a controller; see :class:`Controller`.
            storage: rsl_rl's rollout storage of type "distillation".
            device: Device of the update.
            multi_gpu_cfg: rsl_rl's description of the processes, or None for one process.
            rnd_cfg: Must be None.
            symmetry_cfg: Must be None.
            **options: Fields of :class:`DistillationOptions`.

        Raises:
            ValueError: If an option is unknown, invalid or contradicts another, or if a model
                cannot read a group of that type.
            NotImplementedError: If a model lacks the Gaussian or the latent that a loss needs.
        """
        if rnd_cfg is not None or symmetry_cfg is not None:
            raise ValueError("rnd_cfg and symmetry_cfg mean nothing in distillation: remove them.")
        self.options = DistillationOptions.parse(options)
        self.options.check_rollout(storage.num_transitions_per_env)
        super().__init__(
            student,
            as_teacher(teacher, storage.actions.shape[-1]),
            storage,
            num_learning_epochs=self.options.num_learning_epochs,
            gradient_length=1,  # divides every rollout, so rsl_rl does not warn of dropped steps
            learning_rate=self.options.learning_rate,
            max_grad_norm=self.options.max_grad_norm,
            optimizer=self.options.optimizer,
            device=device,
            multi_gpu_cfg=multi_gpu_cfg,
        )
        self.gradient_length = self.options.gradient_length
        self._raw_student, self._raw_teacher = self.student, self.teacher  # rsl_rl 5.0 lacks them
        models = {"student": self._raw_student, "teacher": self._raw_teacher}
        check_types(models, storage.observations)
        self._prepare_surroundings()
        self._prepare_updates()
        self._is_built = True

    @whole_or_nothing
    def update(self) -> dict[str, torch.Tensor]:
        """Train the student on the rollout and clear the storage; a failing update is undone.

        Return what the runner logs under ``Loss/``; docs/reference/metrics.md lists it. ``metrics``
        keeps it.

        Raises:
            ValueError: If a loss, gradient or result is NaN or inf and ``non_finite`` is "raise".
                Parameters, optimiser and normaliser are then as before the update.
        """
        self._begin_update()
        num_passes, num_parts = self.options.num_learning_epochs, self.transaction.num_micro_batches
        steps, health, concludes = [], {}, not self._ranks.together
        for drawn in self.experience.draw(num_passes):
            state, divisor = None, self._student.divisor(drawn)
            for group in range(len(self._student.groups)):
                fixed = {"group": group, "num_parts": num_parts, "concludes": concludes}
                arguments = drawn.columns, state, divisor
                state, *results = self.recorder(self.step, *arguments, first=not steps, **fixed)
                if not concludes:  # the recording ends where the ranks exchange gradients
                    results = self.recorder(self.conclude, *self._exchanged(*results))
                steps.append(results[0])
                health |= results[1]
            self._student.keep_end(self._state_after, self._rollout, drawn, state, num_parts)
        metrics = self._metrics(torch.stack(steps), health)
        update_normalization([self._raw_student], self.storage.observations, self._step_batches)
        return metrics

    def step(
        self,
        columns: torch.Tensor,
        state: HiddenState,
        divisor: int | torch.Tensor,
        *,
        group: int,
        num_parts: int,
        first: bool = False,
        concludes: bool = True,
    ) -> tuple[Any, ...]:
        """Make one optimiser step; it reads and writes tensors at fixed addresses only.

        Args:
            columns: Columns of the rollout. Shape: (n,).
            state: State before the group, (L, n, H); of the first group it is taken from storage.
            divisor: M, the divisor of the sum of per-sample losses. Shape: ().
            group: Index of the group of windows.
            num_parts: Minimum number of micro-batches, which run one after the other.
            first: Whether the step also measures the health of the replay.
            concludes: Whether the optimisers step; otherwise the gradients are returned.

        Returns:
            The detached state after the group, then the results of :meth:`conclude`, or its
            arguments.
        """
        self._zero_grad()
        if group == 0:
            state = hidden_state.select_envs(self._start_states, columns)
        batch, student = Batch(self._rollout, columns), self._student
        health: dict[str, torch.Tensor] = {}
        with student.first_replay.watching(first):
            state, sums = student.replay.accumulate(
                student.groups[group],
                batch,
                state,
                student.loss,
                divisor,
                num_micro_batches=num_parts,
            )
        if first:
            student.replay.check_gradient("loss_type")
            health = student.first_replay.metrics()
        results = self._sums_of_step(sums, student.reported, health)
        return state, *(self.conclude(*results) if concludes else results)

    def conclude(
        self,
        sums: torch.Tensor,
        health: dict[str, torch.Tensor],
        gradients: Sequence[torch.Tensor | None],
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Clip the gradients and step the optimisers.

        Args:
            sums: Sums of the reported values. Shape: (M,).
            health: Measurements of the replay, returned as they are.
            gradients: Gradients of ``parameters``.

        Returns:
            The sums and the norm of the student's gradient before clipping, (M + 1,); health.
        """
        self._set_gradients(gradients)
        max_norm = self.options.max_grad_norm or math.inf
        (norm,) = clip_gradients([self._student.replay.parameters], max_norm)
        step_at(self.optimizer, self.rate)
        for extension in self.extensions:
            extension.step(self.rate)
        return torch.cat((sums, norm.to(sums.dtype).view(1))), health

    def _begin_update(self) -> None:
        """Put everything that the steps of an update read into its place."""
        last = self._planned_updates = self.last_update
        if last is not None:  # heads follow the rate, and the runner logs it
            share = max(LAST_SHARE, 1.0 - self.num_updates / last)
            set_rate(self.optimizer, self.options.learning_rate * share)
        self._average.put_newest()  # a checkpoint in the midst of the rollout took the average
        experience = self.experience
        self._rollout, self._start_states = taken = experience.take()
        self._state_after = hidden_state.clone(experience.start_state)
        self.held_out.measure(self._student, experience, *taken, self._state_after)
        if experience.buffer is None:  # a buffer stays where it is
            self._rollout = self._placed("newest", self._rollout)
            self._start_states = self._placed_state("start", self._start_states)
        rollout, state = self._rollout, hidden_state.as_tensors(self._start_states)
        self._begin_steps(rollout.obs, rollout.labels, rollout.episode_starts, state)

    def _metrics(
        self, steps: torch.Tensor, health: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Return the metrics of optimiser steps, (S, M + 1)."""
        experience, num_envs = self.experience, self._num_envs_of_ranks
        num_steps, trained = self._student.num_loss_steps, self._num_trained_of_ranks
        num_steps *= self.options.num_learning_epochs
        sizes = num_steps * trained, num_steps * (experience.num_sequences - trained)
        rows = steps.T.contiguous()
        means = self._student.means(rows[:-1].sum(1), sizes)
        if experience.num_drawn == 0:
            del means[BUFFER]
        models = {"student": self._raw_student, "teacher": self._raw_teacher}
        return {
            **means,
            "grad_norm": rows[-1].mean(),
            **self._shared_metrics(self.storage.num_transitions_per_env * num_envs, health, models),
        }

    def _advance(self, metrics: dict[str, float]) -> dict[str, float]:
        for extension in self.extensions:
            extension.advance(metrics)
        set_state(self._raw_student, self._state_after, self.experience.dones()[-1])
        self.num_updates += 1
        num_passes = self.options.num_learning_epochs * self.experience.num_mini_batches
        metrics["optimizer_steps"] = float(num_passes * len(self._student.groups))
        metrics["flushed_steps"] = float(self._student.flushed_steps)
        self.experience.keep_newest(self._student.num_loss_steps)  # last: it cannot be undone
        return metrics

    def _add_gradients_of(self, envs: slice, num_micro_batches: int) -> None:
        """Add the gradient of an epoch, on this rank and some environments, to ``.grad``.

        Environments beyond the last one start over, as a mini-batch with past sequences can be
        larger than the rollout.
        """
        rollout, trained = self.experience.newest(), self.experience.trained
        deduplicate_frames(rollout.obs)
        rows = torch.arange(envs.stop or len(trained), device=trained.device)
        columns = trained[rows % len(trained)]
        self._zero_grad()
        state = self.experience.start_state
        self._student.add_gradients(rollout, columns, state, num_micro_batches)

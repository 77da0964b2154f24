"""What an update of the distillation computes: epochs of groups of windows."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from rsl_rl.storage import RolloutStorage
from torch import nn

from rsl_tbptt.algorithms.distillation.dagger import Dagger
from rsl_tbptt.algorithms.distillation.labels import RolloutLabels, StepLabels
from rsl_tbptt.algorithms.distillation.losses import BehaviorLoss
from rsl_tbptt.algorithms.distillation.options import DistillationOptions
from rsl_tbptt.algorithms.update.normalization import update_normalization
from rsl_tbptt.algorithms.update.replay import observed_groups
from rsl_tbptt.algorithms.update.session import Metrics, UpdateSession
from rsl_tbptt.algorithms.update.step_batches import step_batches
from rsl_tbptt.algorithms.update.trained_model import TrainedModel
from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.accumulate import Loss
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.rollout import Rollout
from rsl_tbptt.core.windows import Group, num_steps_of_full_group, tbptt_schedule


class DistillationLearner:
    """Trains the student on a rollout; a :class:`Learner` of the update session."""

    def __init__(
        self,
        student: MLPModel,
        teacher: MLPModel,
        storage: RolloutStorage,
        optimizer: torch.optim.Optimizer,
        options: DistillationOptions,
        ranks: Ranks,
        *,
        labels: StepLabels | RolloutLabels,
        dagger: Dagger,
        loss: BehaviorLoss,
    ) -> None:
        """Fix the windows and the divisor of every update.

        Args:
            student: Model to train.
            teacher: Model to imitate; its state is cleared with a rollout that is dropped.
            storage: Where rollouts are stored.
            optimizer: Steps the student's parameters.
            options: Lengths, reduction and the like.
            ranks: The processes that train together.
            labels: The teacher's labels.
            dagger: Where the teacher acts.
            loss: Compares the student with them.
        """
        self.loss: Loss = loss
        self.num_micro_batches = options.num_micro_batches
        self.start_state: HiddenState = None
        self._end_state: HiddenState = None
        self._student, self._teacher, self._storage = student, teacher, storage
        self._optimizer, self._options, self._ranks = optimizer, options, ranks
        self._labels, self._dagger = labels, dagger
        self._model = TrainedModel(student, loss.head, options)
        num_steps, num_envs = storage.num_transitions_per_env, storage.num_envs
        lengths = (options.gradient_length, options.update_length)
        self._schedule = tbptt_schedule(num_steps, *lengths, tail=options.tail)
        self._window_length = min(options.gradient_length, num_steps)
        self._steps_per_group = num_steps_of_full_group(num_steps, *lengths)
        device = storage.dones.device
        num_envs_of_ranks = ranks.sum_count(num_envs, device)
        steps_in_mean = self._steps_per_group if options.loss_reduction == "mean" else 1
        self._divisor = steps_in_mean * num_envs_of_ranks
        self._step_batches = step_batches(num_steps, num_envs_of_ranks, device)
        self._no_sums = {"behavior": torch.full((), torch.nan, device=device)}

    def begin_rollout(self) -> None:
        """Keep the state that the rollout starts with."""
        self.start_state = hidden_state.clone(self._student.get_hidden_state())

    def train(self, session: UpdateSession) -> Metrics:
        """Go through all epochs and groups; see :class:`Learner`."""
        session.attempt(self._labels.complete, otherwise=None)
        rollout = self._rollout()
        loss_sums, grad_norms = [], []
        for _ in range(self._options.num_learning_epochs):
            state = hidden_state.clone(self.start_state)
            for group in self._schedule:
                self._optimizer.zero_grad()
                state, sums = session.attempt(
                    partial(self._accumulate, group, rollout, state, self.num_micro_batches),
                    otherwise=(state, self._no_sums),
                )
                if group[-1].num_loss_steps > 0:
                    loss_sums.append(sums["behavior"])
                    grad_norms.append(self._optimizer_step())
            self._end_state = state
        update_normalization([self._student], self._storage.observations, self._step_batches)
        num_samples = self._options.num_learning_epochs * self._num_loss_steps * rollout.num_envs
        return {
            "behavior": torch.stack(loss_sums).sum() / num_samples,
            "grad_norm": torch.stack(grad_norms).mean(),
            "done_rate": self._dones().float().mean(),
            **self._dagger.metrics(),
        }

    def conclude(self, metrics: dict[str, float]) -> dict[str, float]:
        """Let the student go on from the state after the replay; see :class:`Learner`."""
        state = hidden_state.clear(self._end_state, self._dones()[-1])
        self._student.reset(hidden_state=state)
        num_steps = sum(group[-1].num_loss_steps > 0 for group in self._schedule)
        return {
            **metrics,
            "optimizer_steps": float(self._options.num_learning_epochs * num_steps),
            "flushed_steps": float(self._num_loss_steps % self._steps_per_group),
        }

    def drop_rollout(self) -> None:
        """Do nothing: a rollout changes no more than the models' states."""

    def add_gradients(self, envs: slice, num_micro_batches: int) -> None:
        """Compute the gradient of an epoch on some environments; see :class:`Learner`."""
        rollout = self._rollout().envs(envs)
        state = hidden_state.select_envs(hidden_state.clone(self.start_state), envs)
        self._optimizer.zero_grad()
        for group in self._schedule:
            state, _ = self._accumulate(group, rollout, state, num_micro_batches)

    def check_training(self) -> None:
        """Check the options against the number of environments; see :class:`Learner`."""
        self._options.check_training(self._storage.num_envs)

    def stateful_models(self) -> list[MLPModel]:
        """Return student and teacher; see :class:`Learner`."""
        return [self._student, self._teacher]

    def observed_groups(self) -> set[str]:
        """Return what student and teacher observe; see :class:`Learner`."""
        stored = self._storage.observations
        return {group for m in self.stateful_models() for group in observed_groups(m, stored)}

    def recorded(self) -> dict[str, torch.Tensor]:
        """Return the teacher's actions, shape (T, N, A); see :class:`Learner`."""
        return {"teacher actions": self._storage.privileged_actions}

    def modules(self) -> list[nn.Module]:
        """Return the student; see :class:`Learner`."""
        return [self._student]

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the student's; see :class:`Learner`."""
        return [self._optimizer]

    def trained_parameters(self) -> list[nn.Parameter]:
        """Return the student's; see :class:`Learner`."""
        return self._model.parameters

    def sizes(self) -> tuple[int, int, bool]:
        """Return environments, micro-batches in any case, and True; see :class:`Learner`."""
        num_envs = self._storage.num_envs
        return num_envs, self._model.least_micro_batches(num_envs, self._window_length), True

    @contextlib.contextmanager
    def as_if_rolled_out(self) -> Iterator[None]:
        """Have a zero state inside before the first rollout; see :class:`Learner`."""
        kept = self.start_state
        try:
            if kept is None:
                _, self.start_state = self._model.first_step(self._rollout())
            yield
        finally:
            self.start_state = kept

    @property
    def _num_loss_steps(self) -> int:
        """Steps of an epoch that enter the loss."""
        return sum(window.num_loss_steps for group in self._schedule for window in group)

    def _rollout(self) -> Rollout:
        """View the storage as a rollout."""
        stored = self._storage.observations
        obs = stored.select(*observed_groups(self._student, stored))
        return Rollout.from_dones(obs, self._labels.of_rollout(), self._dones())

    def _dones(self) -> torch.Tensor:
        """Return which episodes ended with which step, shape (T, N), bool."""
        return self._storage.dones.squeeze(-1).bool()

    def _accumulate(
        self, group: Group, rollout: Rollout, state: HiddenState, num_micro_batches: int
    ) -> tuple[HiddenState, dict[str, Any]]:
        """Add one optimiser step's gradient; return the carried state and the sum of the losses."""
        return self._model.accumulate(
            group,
            rollout,
            state,
            self.loss,
            self._divisor,
            window_length=self._window_length,
            num_micro_batches=num_micro_batches,
        )

    def _optimizer_step(self) -> torch.Tensor:
        """Sum gradients over processes, clip once, step once; return the norm before clipping."""
        parameters, max_norm = self._model.parameters, self._options.max_grad_norm
        self._ranks.sum_gradients(parameters, self._options.grad_reduce_bucket_mb)
        norm = nn.utils.clip_grad_norm_(parameters, math.inf if max_norm is None else max_norm)
        self._optimizer.step()
        return norm

"""What an update of the distillation computes: epochs of groups of windows."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from functools import partial

import torch
from rsl_rl.storage import RolloutStorage
from torch import nn

from rsl_tbptt.algorithms.distillation.dagger import Dagger
from rsl_tbptt.algorithms.distillation.labels import RolloutLabels, StepLabels
from rsl_tbptt.algorithms.distillation.losses import BehaviorLoss
from rsl_tbptt.algorithms.distillation.mini_batches import (
    MiniBatch,
    MiniBatches,
    mini_batch_sizes,
)
from rsl_tbptt.algorithms.distillation.options import DistillationOptions
from rsl_tbptt.algorithms.distillation.rollout_memory import RolloutMemory, bytes_per_sequence
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
from rsl_tbptt.core.rollout import Rollout, Segments
from rsl_tbptt.core.windows import Group, num_steps_of_full_group, tbptt_schedule

_LOSSES: tuple[str, ...] = ("behavior", "memory")
"""What is logged: the loss on the newest rollout, and on those of the past."""


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
        self.memory: RolloutMemory | None = None
        """Sequences of past rollouts, from the first update on, if any are to be kept."""
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
        self._device = device
        self._draws_sequences = options.num_mini_batches > 1 or options.memory_rollouts > 0
        self._steps_in_mean = self._steps_per_group if options.loss_reduction == "mean" else 1
        self._step_batches = step_batches(num_steps, num_envs_of_ranks, device)
        nan = torch.full((), torch.nan, device=device)
        self._no_sums = dict.fromkeys(_LOSSES, nan)

    def begin_rollout(self) -> None:
        """Keep the state that the rollout starts with."""
        self.start_state = hidden_state.clone(self._student.get_hidden_state())

    def train(self, session: UpdateSession) -> Metrics:
        """Go through all epochs, mini-batches and groups; see :class:`Learner`."""
        session.attempt(self._take_rollout, otherwise=None)
        num_epochs, num_envs = self._options.num_learning_epochs, self._storage.num_envs
        mini_batches = self._plan_mini_batches()
        loss_sums: list[dict[str, torch.Tensor]] = []
        grad_norms: list[torch.Tensor] = []
        for _ in range(num_epochs):
            drawn = list(mini_batches.draw())
            end_states = [self._train_on(each, session, loss_sums, grad_norms) for each in drawn]
            order = torch.cat([mini_batch.envs for mini_batch in drawn]).argsort()
            self._end_state = hidden_state.select_envs(
                hidden_state.concatenate_envs(end_states), order
            )
        update_normalization([self._student], self._storage.observations, self._step_batches)
        sizes = zip(_LOSSES, (num_envs, mini_batches.num_drawn), strict=True)
        num_steps = num_epochs * self._num_loss_steps
        means = {
            name: torch.stack([sums[name] for sums in loss_sums]).sum() / (num_steps * size)
            for name, size in sizes
            if size > 0
        }
        return {
            **means,
            "grad_norm": torch.stack(grad_norms).mean(),
            "done_rate": self._dones().float().mean(),
            **self._dagger.metrics(),
        }

    def _take_rollout(self) -> None:
        """Complete the labels, and put the rollout beside those of the past."""
        self._labels.complete()
        if self._options.memory_rollouts == 0:
            return
        rollout = self._rollout()
        if self.memory is None:
            with self.as_if_rolled_out():
                state = self.start_state
            capacity, _ = self.memory_size()
            self.memory = RolloutMemory(capacity, rollout, state, self._num_loss_steps)
        self.memory.put(rollout, self.start_state)

    def _plan_mini_batches(self) -> MiniBatches:
        """Plan the mini-batches of this update."""
        return MiniBatches(
            self._storage.num_envs,
            0 if self.memory is None else self.memory.num_kept,
            self._options.num_mini_batches,
            self._options.memory_share,
            self._ranks,
            self._device,
        )

    def _train_on(
        self,
        mini_batch: MiniBatch,
        session: UpdateSession,
        loss_sums: list[dict[str, torch.Tensor]],
        grad_norms: list[torch.Tensor],
    ) -> HiddenState:
        """Step on every group of a mini-batch.

        Args:
            mini_batch: Sequences of the newest rollout and of the past.
            session: Runs what only this process does.
            loss_sums: Where the sums of the losses go, one per optimiser step.
            grad_norms: Where the gradient norms before clipping go, likewise. Shape: () each.

        Returns:
            The state of the newest rollout's sequences after their last step.
        """
        rollout, state = session.attempt(
            partial(self._sequences, mini_batch), otherwise=(self._rollout(), None)
        )
        newest = slice(len(mini_batch.envs))
        for group in self._schedule:
            has_loss = group[-1].num_loss_steps > 0
            if not has_loss:  # the end of the schedule, where the past has nothing to say
                rollout, state = rollout.envs(newest), hidden_state.select_envs(state, newest)
            self._optimizer.zero_grad()
            divisor = self._steps_in_mean * mini_batch.num_sequences
            state, sums = session.attempt(
                partial(self._accumulate, group, rollout, state, divisor, self.num_micro_batches),
                otherwise=(state, self._no_sums),
            )
            if has_loss:
                loss_sums.append(sums)
                grad_norms.append(self._optimizer_step())
        return hidden_state.select_envs(state, newest)

    def _sequences(self, mini_batch: MiniBatch) -> tuple[Rollout | Segments, HiddenState]:
        """Return the sequences of a mini-batch, the newest first, and the states before them."""
        if self.memory is not None:
            columns = torch.cat((self.memory.capacity + mini_batch.envs, mini_batch.kept))
            rollout, state = self.memory.rollout, self.memory.state
        elif self._draws_sequences:
            columns, rollout, state = mini_batch.envs, self._rollout(), self.start_state
        else:
            return self._rollout(), hidden_state.clone(self.start_state)
        return self._segments(rollout, state, columns)

    def _segments(
        self, rollout: Rollout, state: HiddenState, columns: torch.Tensor
    ) -> tuple[Segments, HiddenState]:
        """Return sequences by their columns, shape (n,), and the states before them."""
        segments = Segments(rollout, torch.zeros_like(columns), columns)
        return segments, hidden_state.select_envs(state, columns)

    def conclude(self, metrics: dict[str, float]) -> dict[str, float]:
        """Let the student go on from the state after the replay; see :class:`Learner`."""
        state = hidden_state.clear(self._end_state, self._dones()[-1])
        self._student.reset(hidden_state=state)
        if self.memory is not None:
            self.memory.keep_newest()
        num_steps = sum(group[-1].num_loss_steps > 0 for group in self._schedule)
        return {
            **metrics,
            "optimizer_steps": float(
                self._options.num_learning_epochs * self._options.num_mini_batches * num_steps
            ),
            "flushed_steps": float(self._num_loss_steps % self._steps_per_group),
        }

    def drop_rollout(self) -> None:
        """Do nothing: a rollout changes no more than the models' states."""

    def add_gradients(self, envs: slice, num_micro_batches: int) -> None:
        """Compute the gradient of an epoch on some environments; see :class:`Learner`."""
        rollout, state = self._rollout().envs(envs), hidden_state.clone(self.start_state)
        state = hidden_state.select_envs(state, envs)
        if self._draws_sequences:
            # A mini-batch with sequences of the past can be larger than the rollout.
            columns = torch.arange(envs.stop or rollout.num_envs, device=self._device)
            rollout, state = self._segments(
                self._rollout(), self.start_state, columns % self._storage.num_envs
            )
        divisor = self._steps_in_mean * rollout.num_envs
        self._optimizer.zero_grad()
        for group in self._schedule:
            state, _ = self._accumulate(group, rollout, state, divisor, num_micro_batches)

    def check_training(self) -> None:
        """Check the options against the number of environments; see :class:`Learner`."""
        self._options.check_training(self._storage.num_envs)
        self.memory_size()

    def memory_size(self) -> tuple[int, float]:
        """Return how many past sequences the memory of rollouts holds at most, and its bytes.

        Raises:
            ValueError: If ``memory_gb`` has no room for any.
        """
        num_envs, max_gb = self._storage.num_envs, self._options.memory_gb
        capacity = self._options.memory_rollouts * num_envs
        if capacity == 0:
            return 0, 0.0
        with self.as_if_rolled_out():
            each = bytes_per_sequence(self._rollout(), self.start_state)
        if max_gb is not None:
            capacity = min(capacity, int(max_gb * 1e9 / each) - num_envs)
        if capacity < 1:
            raise ValueError(
                f"memory_gb is {max_gb:g}, expected at least {(num_envs + 1) * each / 1e9:.3g}, for"
                " the newest rollout and one sequence of the past; None does not limit it, and"
                " memory_rollouts=0 keeps nothing."
            )
        return capacity, (capacity + num_envs) * each

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
        """Return the sizes of the largest mini-batch; see :class:`Learner`."""
        num_envs, options = self._storage.num_envs, self._options
        num_drawn = min(round(options.memory_share * num_envs), self.memory_size()[0])
        sizes = mini_batch_sizes(num_envs, num_drawn, options.num_mini_batches)
        least = self._model.least_micro_batches(max(sizes), self._window_length)
        return max(sizes), least, len(set(sizes)) == 1

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
        self,
        group: Group,
        rollout: Rollout | Segments,
        state: HiddenState,
        divisor: int | torch.Tensor,
        num_micro_batches: int,
    ) -> tuple[HiddenState, dict[str, torch.Tensor]]:
        """Add one optimiser step's gradient; return the carried state and the losses' sums."""
        return self._model.accumulate(
            group,
            rollout,
            state,
            self.loss,
            divisor,
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

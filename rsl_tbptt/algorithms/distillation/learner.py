"""What an update of the distillation computes: epochs of groups of windows."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from functools import partial

import torch
from rsl_rl.storage import RolloutStorage
from torch import nn

from rsl_tbptt.algorithms.auxiliary.heads import AuxiliaryHeads
from rsl_tbptt.algorithms.distillation.dagger import Dagger
from rsl_tbptt.algorithms.distillation.experience import Experience
from rsl_tbptt.algorithms.distillation.labels import RolloutLabels, StepLabels
from rsl_tbptt.algorithms.distillation.losses import ACTIONS, BehaviorLoss
from rsl_tbptt.algorithms.distillation.mini_batches import MiniBatch, MiniBatches
from rsl_tbptt.algorithms.distillation.options import DistillationOptions
from rsl_tbptt.algorithms.distillation.per_teacher import LossPerTeacher
from rsl_tbptt.algorithms.distillation.sample_weights import OPTION, SampleWeights
from rsl_tbptt.algorithms.distillation.teacher_layers import TeacherLayers
from rsl_tbptt.algorithms.distillation.update_sums import UpdateSums, or_one
from rsl_tbptt.algorithms.update.health import FirstReplay, finite, obs_scales
from rsl_tbptt.algorithms.update.memory_plan import Sizes
from rsl_tbptt.algorithms.update.normalization import update_normalization
from rsl_tbptt.algorithms.update.replay import observed_groups, set_state
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
        heads: AuxiliaryHeads,
        layers: TeacherLayers,
        weights: SampleWeights | None,
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
            heads: The student's auxiliary heads.
            layers: The teacher's layers that are their targets.
            weights: What the samples weigh; None weighs all the same.

        Raises:
            ValueError: If a slice of the action has the name of a teacher.
        """
        self._per_teacher = LossPerTeacher(labels.teacher_names, loss.coefs)
        self.loss: Loss = self._per_teacher.reported_by(loss)
        self._first_replay = FirstReplay()
        if loss.of_actions and weights is None:  # labels of weight 0 need not make sense
            self.loss = self._first_replay.beside(self.loss, ACTIONS)
        self._reported = (*loss.reported_names, *heads.names)
        self._weights = weights
        self.num_micro_batches = options.num_micro_batches
        self.experience = Experience(student, storage, labels, options, ranks, heads, weights)
        self._end_state: HiddenState = None
        self._student, self._teacher, self._storage = student, teacher, storage
        self._optimizer, self._options, self._ranks = optimizer, options, ranks
        self._dagger, self._heads, self._layers = dagger, heads, layers
        self._model = TrainedModel(
            student,
            loss.head,
            options,
            num_envs=self.experience.largest_size(),
            heads=heads,
            first_replay=self._first_replay,
        )
        num_steps, num_envs = storage.num_transitions_per_env, storage.num_envs
        lengths = (options.gradient_length, options.update_length)
        self._schedule = tbptt_schedule(num_steps, *lengths, tail=options.tail)
        self._window_length = min(options.gradient_length, num_steps)
        self._steps_per_group = num_steps_of_full_group(num_steps, *lengths)
        device = storage.dones.device
        num_envs_of_ranks = self._num_envs_of_ranks = ranks.sum_count(num_envs, device)
        self._steps_in_mean = self._steps_per_group if options.loss_reduction == "mean" else 1
        self._step_batches = step_batches(num_steps, num_envs_of_ranks, device)
        nan = torch.full((), torch.nan, device=device)
        self._no_sums = dict.fromkeys((*self._reported, *self._per_teacher.names), nan)
        self._no_weights = torch.zeros(2, device=device)

    def begin_rollout(self) -> None:
        """Keep the state that the rollout starts with."""
        self.experience.start_state = hidden_state.clone(self._student.get_hidden_state())

    def train(self, session: UpdateSession) -> Metrics:
        """Go through all epochs, mini-batches and groups; see :class:`Learner`."""
        session.attempt(self.experience.take, otherwise=None)
        num_epochs = self._options.num_learning_epochs
        mini_batches = self.experience.plan()
        sums = UpdateSums()
        for _ in range(num_epochs):
            self._end_state = None  # that of an epoch before takes memory and tells nothing
            self._end_state = self._train_epoch(mini_batches, session, sums)
        models = {"student": self._student, "teacher": self._teacher}
        scales = obs_scales(models, self._storage.observations[0])
        health = finite({**self._first_replay.metrics(), **scales})
        update_normalization([self._student], self._storage.observations, self._step_batches)
        num_steps, dones = num_epochs * self._num_loss_steps, self.experience.dones().float()
        num_envs = self._num_envs_of_ranks
        num_drawn = mini_batches.num_drawn_of_ranks(num_envs)
        totals = sums.totals((*self._reported, *self._per_teacher.names), self._ranks)
        return {
            **sums.means(
                totals,
                self._reported,
                num_newest=num_steps * num_envs,
                num_past=None if num_drawn is None else num_steps * num_drawn,
            ),
            **self._per_teacher.metrics(totals),
            "done_rate": self._ranks.mean(dones, len(dones) * num_envs),
            **self._dagger.metrics(),
            **health,
        }

    def _train_epoch(
        self, mini_batches: MiniBatches, session: UpdateSession, sums: UpdateSums
    ) -> HiddenState:
        """Go through all mini-batches once; return the state after the last step, (L, N, H)."""
        drawn = list(mini_batches.draw())
        end_states = [self._train_on(each, session, sums) for each in drawn]
        order = torch.cat([mini_batch.envs for mini_batch in drawn]).argsort()
        return hidden_state.select_envs(hidden_state.concatenate_envs(end_states), order)

    def _train_on(
        self, mini_batch: MiniBatch, session: UpdateSession, sums: UpdateSums
    ) -> HiddenState:
        """Step on every group of a mini-batch.

        Args:
            mini_batch: Sequences of the newest rollout and of the past.
            session: Runs what only this process does.
            sums: Where what is logged is summed up.

        Returns:
            The state of the newest rollout's sequences after their last step.
        """
        rollout, state = session.attempt(
            partial(self.experience.of, mini_batch), otherwise=self.experience.nothing
        )
        num_sequences = self._num_sequences(mini_batch, session, sums)
        newest = slice(len(mini_batch.envs))
        for group in self._schedule:
            has_loss = group[-1].num_loss_steps > 0
            if not has_loss:  # the end of the schedule, where the past has nothing to say
                rollout, state = rollout.envs(newest), hidden_state.select_envs(state, newest)
            self._zero_grad()
            divisor = self._steps_in_mean * num_sequences
            with self._first_replay.watching(first=not sums.losses):
                state, losses = session.attempt(
                    partial(
                        self._accumulate, group, rollout, state, divisor, self.num_micro_batches
                    ),
                    otherwise=(state, self._no_sums),
                )
            if has_loss:
                sums.losses.append(losses)
                sums.grad_norms.append(self._optimizer_step())
        return hidden_state.select_envs(state, newest)

    def _num_sequences(
        self, mini_batch: MiniBatch, session: UpdateSession, sums: UpdateSums
    ) -> int | torch.Tensor:
        """Return how many sequences a mini-batch counts as, over all processes.

        Each counts by the mean weight of its steps, so that a robot-step has its weight in
        whichever group of windows it falls (one exchange with other processes).
        """
        if self._weights is None:
            return mini_batch.num_sequences
        weights = session.attempt(
            partial(self.experience.weights_of, mini_batch, self._num_loss_steps),
            otherwise=self._no_weights,
        )
        sums.weights.append(weights)
        return or_one(self._ranks.sum_tensor(weights.sum()) / self._num_loss_steps)

    def conclude(self, metrics: dict[str, float]) -> dict[str, float]:
        """Let the student go on from the state after the replay; see :class:`Learner`."""
        if self.experience.memory is not None:
            self.experience.memory.keep_newest(self._num_loss_steps)
        set_state(self._student, self._end_state, self.experience.dones()[-1])
        num_passes = self._options.num_learning_epochs * self.experience.num_mini_batches
        num_steps = sum(group[-1].num_loss_steps > 0 for group in self._schedule)
        return {
            **self._per_teacher.logged(metrics),
            "optimizer_steps": float(num_passes * num_steps),
            "flushed_steps": float(self._num_loss_steps % self._steps_per_group),
        }

    def drop_rollout(self) -> None:
        """Do nothing: a rollout changes no more than the models' states."""

    def add_gradients(self, envs: slice, num_micro_batches: int) -> None:
        """Compute the gradient of an epoch on some environments; see :class:`Learner`."""
        rollout, state = self.experience.of_envs(envs)
        divisor = self._steps_in_mean * rollout.num_envs
        self._zero_grad()
        for group in self._schedule:
            state, _ = self._accumulate(group, rollout, state, divisor, num_micro_batches)

    def begin_training(self) -> None:
        """Check options, try out weights, allocate the memory of rollouts; see :class:`Learner`."""
        self._options.check_training(self._storage.num_envs)
        if self._weights is not None:  # tried out, as the first update comes after a whole rollout
            self._weights.complete()
        if self._options.memory_rollouts > 0:
            with self.as_if_rolled_out():
                self.experience.begin_training()

    def stateful_models(self) -> list[MLPModel]:
        """Return student and teacher; see :class:`Learner`."""
        return [self._student, self._teacher]

    def observed_groups(self) -> set[str]:
        """Return what the student observes; see :class:`Learner`."""
        return set(observed_groups(self._student, self._storage.observations))

    def recorded(self) -> dict[str, torch.Tensor]:
        """Return the labels and what they are made of, (T, N, ...) each; see :class:`Learner`.

        0 stands for what is left out of the loss.
        """
        stored, layers = self._storage.observations, self._layers.outputs
        groups = {*observed_groups(self._teacher, stored), *self._heads.observed_groups()}
        groups -= self.observed_groups()
        named = {
            **{f"observation group '{key}'": v for key, v in stored.items() if key in groups},
            **{f"the teacher's layer '{layer}'": output for layer, output in layers.items()},
            **self.experience.labels.recorded(),
        }
        if self._weights is None:
            return named
        left_out = self._weights.given == 0
        return {name: v.index_put((left_out,), v.new_zeros(())) for name, v in named.items()}

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the steps' weights, shape (L, N); see :class:`Learner`."""
        return (
            {} if self._weights is None else {OPTION: self._weights.given[: self._num_loss_steps]}
        )

    def modules(self) -> list[nn.Module]:
        """Return the student and its auxiliary heads; see :class:`Learner`."""
        return [self._student, self._heads.module]

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the student's and its heads'; see :class:`Learner`."""
        return [self._optimizer, *self._heads.optimizers]

    def trained_parameters(self) -> list[nn.Parameter]:
        """Return the student's and its heads'; see :class:`Learner`."""
        return [*self._model.parameters, *self._heads.parameters]

    def sizes(self) -> Sizes:
        """Return the sizes of the largest mini-batch; see :class:`Learner`."""
        sizes, memory = self.experience.sizes(), self.experience.memory_size().num_bytes
        least = self._model.least_micro_batches(max(sizes), self._window_length)
        return Sizes(max(sizes), least, len(set(sizes)) == 1, memory)

    @contextlib.contextmanager
    def as_if_rolled_out(self) -> Iterator[None]:
        """Have a zero state inside before the first rollout; see :class:`Learner`."""
        kept = self.experience.start_state
        try:
            if kept is None:
                _, self.experience.start_state = self._model.first_step(self.experience.newest())
            yield
        finally:
            self.experience.start_state = kept

    @property
    def _num_loss_steps(self) -> int:
        """Steps of an epoch that enter the loss."""
        return sum(window.num_loss_steps for group in self._schedule for window in group)

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

    def _zero_grad(self) -> None:
        """Drop the gradients."""
        for optimizer in self.optimizers():
            optimizer.zero_grad()

    def _optimizer_step(self) -> torch.Tensor:
        """Sum gradients over processes, clip once, step once; return the norm before clipping."""
        parameters, max_norm = self._model.parameters, self._options.max_grad_norm
        self._ranks.sum_gradients(self.trained_parameters(), self._options.grad_reduce_bucket_mb)
        norm = nn.utils.clip_grad_norm_(parameters, math.inf if max_norm is None else max_norm)
        self._optimizer.step()
        self._heads.step(self._optimizer.param_groups[0]["lr"], max_norm)
        return norm

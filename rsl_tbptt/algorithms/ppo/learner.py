"""What an update of PPO computes: epochs of mini-batches."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import torch
from rsl_rl.storage import RolloutStorage
from torch import nn

from rsl_tbptt.algorithms.auxiliary.heads import AuxiliaryHeads
from rsl_tbptt.algorithms.ppo.fine_tuning import FineTuning
from rsl_tbptt.algorithms.ppo.gradient import LOSSES, PpoGradient, PpoRollout, States
from rsl_tbptt.algorithms.ppo.imitation import Imitation
from rsl_tbptt.algorithms.ppo.mini_batches import MiniBatch, MiniBatches
from rsl_tbptt.algorithms.ppo.options import PpoOptions
from rsl_tbptt.algorithms.ppo.rnd import RndTraining
from rsl_tbptt.algorithms.update.frames import find_held_frames
from rsl_tbptt.algorithms.update.health import explained_variance, finite, obs_scales
from rsl_tbptt.algorithms.update.memory_plan import Sizes
from rsl_tbptt.algorithms.update.normalization import update_normalization
from rsl_tbptt.algorithms.update.optimizers import follow_kl, step_at
from rsl_tbptt.algorithms.update.replay import observed_groups
from rsl_tbptt.algorithms.update.session import Metrics, UpdateSession
from rsl_tbptt.algorithms.update.step_batches import step_batches
from rsl_tbptt.compat.versions import MLPModel, clip_gradients
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.distributed import Ranks

_RECORDED = ("rewards", "values", "actions", "actions_log_prob", "returns")
_METRICS_OF_STEPS = ("actor_grad_norm", "critic_grad_norm", "rnd")


class PpoLearner:
    """Trains actor and critic on a rollout; a :class:`Learner` of the update session."""

    def __init__(
        self,
        actor: MLPModel,
        critic: MLPModel,
        storage: RolloutStorage,
        optimizer: torch.optim.Optimizer,
        options: PpoOptions,
        ranks: Ranks,
        *,
        fine_tuning: FineTuning,
        imitation: Imitation,
        rnd: RndTraining | None,
        heads: AuxiliaryHeads,
    ) -> None:
        """Choose how the models are replayed and plan the mini-batches.

        Args:
            actor: Policy with a distribution.
            critic: Value function.
            storage: Where rollouts are stored.
            optimizer: Steps the parameters of both.
            options: Lengths, mini-batches, losses and the like.
            ranks: The processes that train together.
            fine_tuning: Where PPO stands after a student became the actor.
            imitation: The teacher that the actor is drawn to.
            rnd: Trains the predictor of random network distillation, or None.
            heads: The actor's auxiliary heads.
        """
        self.num_micro_batches = options.num_micro_batches
        self._num_envs_of_largest = -(-storage.num_envs // options.num_mini_batches)
        self.gradient = PpoGradient(actor, critic, options, heads, self._num_envs_of_largest)
        self.mini_batches = _plan_mini_batches(actor, critic, storage, options, ranks)
        self.states: list[States] = []
        self.rnd = rnd
        self._actor, self._critic, self._storage = actor, critic, storage
        self._optimizer, self._options, self._ranks = optimizer, options, ranks
        self.fine_tuning, self.imitation, self._heads = fine_tuning, imitation, heads
        self._recurrent = actor.is_recurrent or critic.is_recurrent
        device = storage.dones.device
        num_sums = len(LOSSES) + len(self.gradient.further)
        self._no_sums = torch.full((num_sums,), torch.nan, device=device)
        num_steps = storage.num_transitions_per_env
        num_envs_of_ranks = ranks.sum_count(storage.num_envs, device)
        self.num_samples_of_ranks = num_steps * num_envs_of_ranks
        self._step_batches = step_batches(num_steps, num_envs_of_ranks, device)

    def record(self, step: int) -> None:
        """Keep what the update needs of the states before a step of the rollout."""
        if step == 0:
            self.states.clear()
            if self.rnd:
                self.rnd.begin_rollout()
        if step in self.mini_batches.state_steps:
            models = (self._actor, self._critic)
            actor, critic = (hidden_state.clone(model.get_hidden_state()) for model in models)
            self.states.append((actor, critic))

    def rollout(self) -> PpoRollout:
        """View the storage as a rollout that begins with the recorded states."""
        actor, critic = map(hidden_state.concatenate_envs, zip(*self.states, strict=True))
        return self.gradient.rollout(self._storage, (actor, critic), self.imitation.params())

    def train(self, session: UpdateSession) -> Metrics | None:
        """Go through all epochs and mini-batches; see :class:`Learner`."""
        device, nothing = self._storage.dones.device, cast("PpoRollout", None)
        # Where it fails, each attempt to use it does, too, and all exchanges are gone through.
        rollout = session.attempt(self._rollout_with_held_frames, otherwise=nothing)
        # Filled, not copied: a copy from the host would wait for the device.
        learning_rate = self._optimizer.param_groups[0]["lr"]
        rate = torch.full((), learning_rate, dtype=torch.float64, device=device)
        steps = []
        for _ in range(self._options.num_learning_epochs):
            for mini_batch in self.mini_batches.draw():
                with self.gradient.first_replay.watching(first=not steps):
                    seen, rate = self._step(mini_batch, rollout, rate, session)
                steps.append(seen)
        health = self._health()
        self.update_normalization()
        return {**self._metrics(torch.stack(steps), rate), **health}

    def _rollout_with_held_frames(self) -> PpoRollout:
        rollout = self.rollout()
        find_held_frames(rollout.actor.obs, rollout.critic.obs)
        return rollout

    def _health(self) -> Metrics:
        """Return what is only watched, before the normalisers learn."""
        teacher, stored = self.imitation.teacher, self._storage
        models = {"actor": self._actor, "critic": self._critic, "teacher": teacher}
        return finite(
            {
                **self.gradient.first_replay.metrics(),
                "explained_variance/critic": explained_variance(stored.values, stored.returns),
                **obs_scales(models, stored.observations[0]),
            }
        )

    def _step(
        self, mini_batch: MiniBatch, rollout: PpoRollout, rate: torch.Tensor, session: UpdateSession
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Step on a mini-batch; return its metrics, shape (M,), and the learning rate."""
        self._optimizer.zero_grad()
        self._heads.zero_grad()
        num_parts, coef = self.num_micro_batches, self.imitation.coef
        holds_actor = self.fine_tuning.holds_actor
        scales = self.gradient.scales(mini_batch, rollout, session.attempt)
        sums = session.attempt(
            partial(
                self.gradient.accumulate,
                mini_batch,
                rollout,
                scales,
                num_parts,
                coef,
                holds_actor=holds_actor,
            ),
            otherwise=self._no_sums,
        )
        if holds_actor:
            self._actor.zero_grad()  # that of shared encoders, or on the way to auxiliary heads
        seen, rate = self._optimizer_step(sums / mini_batch.num_samples, rate)
        if rnd := self.rnd:
            errors = session.attempt(
                lambda: rnd.accumulate(rollout.all_groups, mini_batch, num_parts),
                otherwise=self._no_sums[:1],
            )
            seen = torch.cat((seen, rnd.step(errors / mini_batch.num_samples)))
        return seen, rate

    def _optimizer_step(
        self, means: torch.Tensor, rate: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Follow the KL divergence with the learning rate, clip actor and critic, step once.

        Args:
            means: Value loss, surrogate, entropy, KL divergence and further losses of the
                mini-batch. Shape: (4 + further,).
            rate: The learning rate until now. Shape: ().

        Returns:
            The same and the gradient norms of actor and critic before clipping, shape
            (6 + further,); and the learning rate.
        """
        means = self._ranks.sum_tensor(means)
        # Summed, not averaged: the divisor already counts the samples of all processes.
        trained = (*self._parameters(), *self._heads.parameters)
        self._ranks.sum_gradients(trained, self._options.grad_reduce_bucket_mb)
        models = (self.gradient.actor, self.gradient.critic)
        max_norm = self._options.max_grad_norm or math.inf
        norms = clip_gradients([model.parameters for model in models], max_norm)
        if self._followed_kl is None:
            self._optimizer.step()
            self._heads.step(self._optimizer.param_groups[0]["lr"], max_norm)
        else:
            rate = follow_kl(rate, means[3], self._followed_kl)
            step_at(self._optimizer, rate)
            self._heads.step(rate, max_norm)
        return torch.cat((means, torch.stack(norms))), rate

    def update_normalization(self) -> None:
        """Let the normalisers learn from the rollout."""
        actor = None if self.fine_tuning.holds_actor else self._actor
        rnd = self.rnd and self.rnd.module
        models = [model for model in (self._critic, actor, rnd) if model is not None]
        update_normalization(models, self._storage.observations, self._step_batches)

    def _metrics(self, steps: torch.Tensor, rate: torch.Tensor) -> Metrics:
        """Average over optimiser steps, shape (S, M)."""
        names = (*LOSSES, *self.gradient.further, *_METRICS_OF_STEPS)
        # Along rows: a mean over columns has other last bits where there are more of them.
        means = steps.T.contiguous().mean(1)
        kl_of_last_epoch = steps[-self._options.num_mini_batches :, 3].mean()
        return {
            **dict(zip(names, means, strict=False)),
            "done_rate": self._ranks.mean(self._storage.dones.float(), self.num_samples_of_ranks),
            "kl_of_last_epoch": kl_of_last_epoch,
            "learning_rate": rate,
            **self.imitation.metrics(self._ranks),
        }

    def conclude(self, metrics: dict[str, float]) -> dict[str, float]:
        """Follow the KL divergence and go on in the schedules; see :class:`Learner`."""
        learning_rate, kl = metrics.pop("learning_rate"), metrics.pop("kl_of_last_epoch")
        if self._followed_kl is not None:
            for group in self._optimizer.param_groups:
                group["lr"] = learning_rate
        policy_loss = self.gradient.policy_loss
        if self._options.policy_loss == "kl_penalty":
            metrics["kl_coef"] = policy_loss.kl_coef
            if not self.fine_tuning.holds_actor:
                policy_loss.adapt(kl)
        self.imitation.conclude(metrics, waits=self.fine_tuning.holds_actor)
        self.fine_tuning.count_update()
        return metrics

    @property
    def _followed_kl(self) -> float | None:
        """The KL divergence that the learning rate follows in this update, None if it does not."""
        adapts = self._options.schedule == "adaptive" and not self.fine_tuning.holds_actor
        return self._options.desired_kl if adapts else None

    def drop_rollout(self) -> None:
        """Set RND to where the rollout began; see :class:`Learner`."""
        if self.rnd:
            self.rnd.drop_rollout()

    def add_gradients(self, envs: slice, num_micro_batches: int) -> None:
        """Compute the gradient on some environments, RND's too; see :class:`Learner`."""
        self._optimizer.zero_grad()
        self._heads.zero_grad()
        num_steps = 1 if self._recurrent else self._storage.num_transitions_per_env
        # Alive until the end, as the order of an epoch is in an update: memory is planned with it.
        samples = torch.arange(
            num_steps * self._storage.num_envs, device=self._storage.dones.device
        )
        chosen = samples.view(num_steps, -1)[:, envs].flatten()
        mini_batch, rollout = self.mini_batches.of_envs(chosen), self.rollout()
        coef = self.imitation.coef
        scales = self.gradient.scales(mini_batch, rollout, lambda compute, _: compute())
        self.gradient.accumulate(mini_batch, rollout, scales, num_micro_batches, coef)
        if self.rnd:
            self.rnd.accumulate(rollout.all_groups, mini_batch, num_micro_batches)

    def begin_training(self) -> None:
        """Check sizes that playing does not need; see :class:`Learner`."""
        num_steps, num_envs = self._storage.num_transitions_per_env, self._storage.num_envs
        self._options.check_training(num_steps, num_envs, self._recurrent)
        num_normalized = self.num_samples_of_ranks
        if self._options.normalize_advantage_per_mini_batch:
            num_normalized = self.mini_batches.num_samples_of_smallest
        self._options.check_normalization(num_normalized)

    def stateful_models(self) -> list[Any]:
        """Return actor, critic and the teacher; see :class:`Learner`."""
        return [self._actor, self._critic, self.imitation]

    def observed_groups(self) -> set[str]:
        """Return what actor, critic, teacher and RND observe, and targets; see :class:`Learner`."""
        stored, teacher = self._storage.observations, self.imitation.teacher
        models = (self._actor, self._critic, *([] if teacher is None else [teacher]))
        groups = {group for model in models for group in observed_groups(model, stored)}
        groups |= self._heads.observed_groups()
        return groups | set(self.rnd.module.obs_groups["rnd_state"] if self.rnd else ())

    def recorded(self) -> dict[str, torch.Tensor]:
        """Return what the teacher said and actions (T, N, A), and rewards and values (T, N, 1).

        What follows from those stands behind them.
        """
        stored = {name: getattr(self._storage, name) for name in _RECORDED}
        return self.imitation.recorded() | stored

    def weights(self) -> dict[str, torch.Tensor]:
        """Return none, which would be (T, N) each; see :class:`Learner`."""
        return {}

    def modules(self) -> list[nn.Module]:
        """Return actor, critic, auxiliary heads and RND's; see :class:`Learner`."""
        rnd = self.rnd.modules if self.rnd else ()
        return [self._actor, self._critic, self._heads.module, *rnd]

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return that of both models, the heads' and RND's; see :class:`Learner`."""
        rnd = [self.rnd.optimizer] if self.rnd else ()
        return [self._optimizer, *self._heads.optimizers, *rnd]

    def trained_parameters(self) -> list[nn.Parameter]:
        """Return those of actor, critic, heads and RND's predictor; see :class:`Learner`."""
        rnd = self.rnd.parameters() if self.rnd else ()
        return [*self._parameters(), *self._heads.parameters, *rnd]

    def _parameters(self) -> list[nn.Parameter]:
        """Return those of actor and critic; of a shared encoder once."""
        both = (*self.gradient.actor.parameters, *self.gradient.critic.parameters)
        return list(dict.fromkeys(both))

    def sizes(self) -> Sizes:
        """Return a mini-batch's sizes; see :class:`Learner`."""
        num_envs, num_mini_batches = self._storage.num_envs, self._options.num_mini_batches
        largest = self._num_envs_of_largest
        lengths = self._storage.num_transitions_per_env, self._options.gradient_length
        window_length = min(filter(None, lengths))
        least = self.gradient.actor.least_micro_batches(largest, window_length)
        return Sizes(largest, least, all_alike=num_envs % num_mini_batches == 0)

    @contextlib.contextmanager
    def as_if_rolled_out(self) -> Iterator[None]:
        """Have zero states and distributions inside unless all are; see :class:`Learner`."""
        if self._storage.step == self._storage.num_transitions_per_env:
            yield
            return
        # rsl_rl allocates the distributions with the first step, rsl_rl 3 from the start.
        kept_states, unallocated = self.states, self._storage.distribution_params is None
        blank, params = self.gradient.blank_states(self._storage)
        try:
            self.states = [blank] * len(self.mini_batches.state_steps)
            if unallocated:
                self._storage.distribution_params = params
            with self.imitation.pretending(params):
                yield
        finally:
            self.states = kept_states
            if unallocated:
                self._storage.distribution_params = None


def _plan_mini_batches(
    actor: MLPModel, critic: MLPModel, storage: RolloutStorage, options: PpoOptions, ranks: Ranks
) -> MiniBatches:
    """Plan mini-batches of environments, or of single steps where neither model has memory."""
    num_steps, num_envs = storage.num_transitions_per_env, storage.num_envs
    if not (actor.is_recurrent or critic.is_recurrent):
        num_steps, num_envs = 1, num_steps * num_envs
    return MiniBatches(
        num_steps,
        num_envs,
        options.num_mini_batches,
        ranks=ranks,
        gradient_length=options.gradient_length or num_steps,
        unit=options.minibatch_unit,
        burn_in_length=options.burn_in_length,
        shuffle=options.shuffle_envs,
        device=storage.dones.device,
    )

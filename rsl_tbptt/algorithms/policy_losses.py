"""PPO's losses per sample, and the gradient of a mini-batch: add or change a policy loss here.

:class:`PpoGradient` replays actor and critic over the windows of a mini-batch. :class:`PolicyLoss`
and :func:`value_loss` compare their outputs with the labels of the rollout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.algorithms.heads import AuxiliaryHeads
from rsl_tbptt.algorithms.health import FirstReplay
from rsl_tbptt.algorithms.mini_batches import MiniBatch, MiniBatches
from rsl_tbptt.algorithms.options import PpoOptions
from rsl_tbptt.algorithms.replay import (
    FrameObs,
    Replay,
    action_head,
    distribution_head,
    find_held_frames,
    observed_groups,
    seen_by,
)
from rsl_tbptt.algorithms.symmetry import ACTOR, CRITIC, MirroredRobots, averaged
from rsl_tbptt.compat.versions import MLPModel, clip_gradients
from rsl_tbptt.core import losses
from rsl_tbptt.core.accumulate import Loss, Outputs, SampleLosses
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.rollout import Labels, Rollout, generalized_advantages
from rsl_tbptt.user_functions import values_with_gradient

Params = tuple[torch.Tensor, ...]
"""Parameters of a distribution, as rsl_rl's ``output_distribution_params``."""

States = tuple[HiddenState, HiddenState]
"""States of actor and critic."""

LOSSES = ("value", "surrogate", "entropy", "kl")
"""Values that every optimiser step reports."""

KL = LOSSES.index("kl")


@dataclass(frozen=True)
class PpoRollout:
    """A rollout and the initial states of actor and critic."""

    all_groups: Rollout
    """All observation groups, with the label ``advantages``; without mirror images."""

    actor: Rollout
    """The actor's observations, labels of ``PolicyLoss`` and targets of auxiliary heads."""

    critic: Rollout
    """The critic's observations and the labels of ``value_loss``."""

    states: Sequence[HiddenState]
    """Stored states of actor and critic, (L, S * N, H) for S stored steps."""

    teacher_coef: float
    """Weight of the imitation loss."""


@dataclass(frozen=True)
class Normalization:
    """Normalisation of a mini-batch, over all ranks."""

    advantages: tuple[torch.Tensor | float, torch.Tensor | float]
    """Offset that is subtracted from advantages, then the scale to divide by. Shape: () each."""

    divisor: int | torch.Tensor
    """M, the sum of the samples' weights. Shape: ()."""


class PpoGradient:
    """Adds up the gradients of actor and critic over the windows of a mini-batch."""

    def __init__(
        self,
        actor: MLPModel,
        critic: MLPModel,
        options: PpoOptions,
        heads: AuxiliaryHeads,
        mini_batches: MiniBatches,
        mirrored: MirroredRobots | None = None,
    ) -> None:
        """Choose how the models are replayed: on single steps if neither has memory.

        Args:
            actor: Policy with a distribution.
            critic: Value function.
            options: Precision, losses and other options.
            heads: The actor's auxiliary heads.
            mini_batches: The mini-batches.
            mirrored: Mirror images of the robots, if any.
        """
        self._options, self._heads, self._single_steps = options, heads, mini_batches.single_steps
        self._mirrored, self._state_steps = mirrored, mini_batches.state_steps
        self.first_replay = FirstReplay()
        """Metrics of the first replay of an update."""
        replay = partial(
            Replay,
            options=options,
            num_envs=mini_batches.num_envs_of_largest,
            window_length=mini_batches.window_length,
            single_steps=mini_batches.single_steps,
        )
        num_robots = mirrored.num_robots if mirrored else 1
        num_augmented = num_robots if mirrored and mirrored.augments else 1
        self.actor = replay(
            actor,
            distribution_head,
            heads=heads,
            first_replay=self.first_replay,
            num_robots=num_robots,
        )
        self.critic = replay(critic, action_head, num_robots=num_augmented)
        if mirrored:
            learning = {ACTOR: self.actor, CRITIC: self.critic}
            mirrored.replays = learning if mirrored.augments else {ACTOR: self.actor}
        self.policy_loss = PolicyLoss(actor, options, self.first_replay)
        self._averages_values = num_augmented > 1
        clips = () if options.policy_loss == "kl_penalty" else ("clip_fraction",)
        of_mirrored = ("symmetry",) if mirrored else ()
        self.reported = (*LOSSES, "teacher", *clips, *of_mirrored, *heads.names)
        """Names of the reported sums; the teacher's loss is 0 without a teacher."""
        # Parameters of a shared encoder must appear only once.
        both = (*self.actor.parameters, *self.critic.parameters)
        self.parameters: list[nn.Parameter] = [*dict.fromkeys(both), *heads.parameters]
        """Parameters of actor, critic and heads."""

    def rollout(
        self,
        storage: RolloutStorage,
        states: Sequence[HiddenState],
        teachers: Params,
        teacher_coef: float,
    ) -> PpoRollout:
        """View a full storage, with advantages and returns, as a rollout.

        If neither model has memory, its steps become environments of one step, so that mini-batches
        mix them as rsl_rl's do.

        Args:
            storage: The storage.
            states: Stored states of actor and critic.
            teachers: Recorded parameters of a teacher's distribution, (T, N, A) each, or nothing.
            teacher_coef: Weight of the imitation loss.
        """
        assert storage.distribution_params is not None
        dones, stored = storage.dones.squeeze(-1).bool(), storage.observations
        everything = Rollout.from_dones(stored, {}, dones)
        weights = None
        if self._options.loss_reduction == "episode_mean":
            weights = 1.0 / everything.episode_lengths
        behaviour = {
            "advantages": storage.advantages.squeeze(-1),
            "actions": storage.actions,
            "log_prob": storage.actions_log_prob.squeeze(-1),
            **_labels_of("old", storage.distribution_params),
            **_labels_of("teacher", teachers),
            **self._heads.targets.labels(dones),
        }
        targets = {"returns": storage.returns, "values": storage.values}
        everything = everything.seen_as(stored, {"advantages": behaviour["advantages"]}, weights)
        seen, states = self._seen(stored, states, everything.episode_starts)
        if self._mirrored and self._mirrored.augments:
            behaviour, targets = map(self._mirrored.labels, (behaviour, targets))
        actor = everything.seen_as(seen[0], behaviour, weights)
        critic = everything.seen_as(seen[1], targets, weights)
        if self._single_steps:
            everything = everything.as_single_steps()
            actor, critic = actor.as_single_steps(), critic.as_single_steps()
        return PpoRollout(everything, actor, critic, states, teacher_coef)

    def _seen(
        self, stored: TensorDict, states: Sequence[HiddenState], episode_starts: torch.Tensor
    ) -> tuple[list[TensorDict | FrameObs], Sequence[HiddenState]]:
        """Return observations of actor and critic, (T, N), and their states.

        With mirror images a model that learns from them sees all robots, (T, N, I), and its states
        are (L, S * N, I, H).
        """
        mirrored = self._mirrored
        if mirrored is None:
            seen = [seen_by(replay.model, stored) for replay in (self.actor, self.critic)]
            find_held_frames(*seen)
            return seen, states
        models = [replay.model for replay in mirrored.replays.values()]
        groups = {group for model in models for group in observed_groups(model, stored)}
        obs = mirrored.obs(groups)
        seen = [seen_by(model, obs) for model in models]
        find_held_frames(*seen)
        states = mirrored.run(states, seen, episode_starts, self._state_steps)
        if not mirrored.augments:
            seen.append(seen_by(self.critic.model, stored))
            find_held_frames(seen[-1])
        return seen, states

    def normalization(self, mini_batch: MiniBatch, rollout: PpoRollout) -> Normalization:
        """Return the normalisation of a mini-batch; ranks exchange sums for it.

        Args:
            mini_batch: Samples of the step.
            rollout: The rollout.
        """
        advantages, divisor = (0.0, 1.0), mini_batch.num_samples
        if self._options.normalize_advantage_per_mini_batch:
            rows = mini_batch.loss_rows(rollout.all_groups)
            own = rollout.all_groups.rows.labels["advantages"][rows]
            advantages = _mean_and_scale(own, mini_batch.num_samples, mini_batch.ranks)
        if self._options.loss_reduction == "episode_mean":
            assert rollout.actor.rows.weights is not None
            own = rollout.actor.rows.weights[mini_batch.loss_rows(rollout.actor)]
            divisor = mini_batch.ranks.sum_tensor(own.sum())
        return Normalization(advantages, divisor)

    def accumulate(
        self,
        mini_batch: MiniBatch,
        rollout: PpoRollout,
        normalization: Normalization,
        num_micro_batches: int,
        *,
        holds_actor: bool = False,
    ) -> torch.Tensor:
        """Add the gradient of an optimiser step's loss to the parameters' ``.grad``.

        Args:
            mini_batch: Samples of the step.
            rollout: The rollout.
            normalization: Normalisation of the mini-batch.
            num_micro_batches: Minimum number of micro-batches, which run one after the other.
            holds_actor: Whether the actor's own gradient is discarded. Its auxiliary heads learn
                nevertheless.

        Returns:
            The ``reported`` values summed over the samples of this rank, not weighted by episode.
            Shape: (M,).
        """
        policy_loss: Loss = partial(
            self.policy_loss,
            advantages=normalization.advantages,
            teacher_coef=rollout.teacher_coef,
        )
        if self._mirrored is not None:
            policy_loss = self._mirrored.policy_loss(policy_loss, self.actor.model)
        value_coef = self._options.value_loss_coef
        clip = self._options.clip_param if self._options.use_clipped_value_loss else None
        of_values: Loss = partial(value_loss, clip=clip)
        if self._averages_values:
            of_values = averaged(of_values)
        actor_learns = not holds_actor or bool(self._heads.names)
        sums: dict[str, torch.Tensor] = {}
        for replay, own, states, loss, coef, learns in (
            (self.actor, rollout.actor, rollout.states[0], policy_loss, 1.0, actor_learns),
            (self.critic, rollout.critic, rollout.states[1], of_values, value_coef, True),
        ):
            for part in mini_batch.parts:
                with torch.set_grad_enabled(learns):
                    _, found = replay.accumulate(
                        part.group,
                        part.of(own),
                        part.state(states),
                        loss,
                        normalization.divisor,
                        num_micro_batches=num_micro_batches,
                        coef=coef,
                    )
                for name, value in found.items():
                    sums[name] = sums[name] + value if name in sums else value
        sums.setdefault("teacher", torch.zeros_like(sums["kl"]))
        return torch.stack([sums[name] for name in self.reported])

    def check(self, *, holds_actor: bool) -> None:
        """Check that the losses have reached the models, right after :meth:`accumulate`.

        Raises:
            ValueError: If no parameter of a model has a gradient.
        """
        if not holds_actor:
            self.actor.check_gradient("policy_loss and teacher_loss")
        self.critic.check_gradient("the value loss")

    def means(self, steps: torch.Tensor) -> dict[str, torch.Tensor]:
        """Average reported values and norms over optimiser steps: (S, M) to () each."""
        names = (*self.reported, "actor_grad_norm", "critic_grad_norm", "rnd")
        # Along rows: the last bits of a mean over columns depend on their number.
        means = dict(zip(names, steps.T.contiguous().mean(1), strict=False))
        return {**means, "kl_of_last_epoch": steps[-self._options.num_mini_batches :, KL].mean()}

    def clip(self, ranks: Ranks, holds_actor: bool) -> torch.Tensor:
        """Sum gradients over ranks, clip those of actor and critic; return their norms, (2,)."""
        if holds_actor:
            # Gradients that reached a shared encoder, or the layers below auxiliary heads.
            self.actor.model.zero_grad()
        # Summed, not averaged: the divisor already counts the samples of all ranks.
        ranks.sum_gradients(self.parameters, self._options.grad_reduce_bucket_mb)
        parameters = [self.actor.parameters, self.critic.parameters]
        return torch.stack(clip_gradients(parameters, self._options.max_grad_norm or math.inf))


class PolicyLoss:
    """The actor's loss: surrogate, entropy bonus and imitation of a teacher."""

    def __init__(self, actor: MLPModel, options: PpoOptions, first_replay: FirstReplay) -> None:
        """Take the coefficients from ``options``; ``first_replay`` records probabilities.

        Raises:
            ValueError: If log-probabilities of the actor's distribution, or the KL divergence that
                is a penalty, have no gradient.
        """
        needed = {"log_prob"} | ({"kl"} if options.policy_loss == "kl_penalty" else set())
        if missing := needed - values_with_gradient(actor):
            raise ValueError(
                f"policy_loss is '{options.policy_loss}', expected a distribution with a gradient"
                f" of {' and '.join(sorted(needed))}: the actor's"
                f" {type(actor.distribution).__name__} has none of {' and '.join(sorted(missing))}."
                " Look for detach() or no_grad() in it."
            )
        self._actor, self._options, self._first_replay = actor, options, first_replay
        self.kl_coef = options.kl_penalty_coef

    def __call__(
        self,
        outputs: Outputs,
        labels: Labels,
        *,
        advantages: tuple[torch.Tensor | float, torch.Tensor | float],
        teacher_coef: float,
    ) -> SampleLosses:
        """Compute the losses of K steps of n environments.

        Args:
            outputs: Inputs of the actor's distribution. Shape: (K, n, ...).
            labels: ``advantages`` (K, n), ``actions`` (K, n, A), their ``log_prob`` (K, n) when
                they were taken, the parameters of the distribution they were drawn from, and with
                a teacher the parameters of its distribution, or its action. With mirror images
                outputs and actions are (K, n, I, ...), the other labels (K, n, 1, ...).
            advantages: Offset that is subtracted from advantages, then the scale that divides them.
            teacher_coef: Weight of the imitation loss.

        Returns:
            The losses. They report ``surrogate``, ``entropy``, ``kl`` (from the policy that acted),
            without KL penalty ``clip_fraction``, and with a teacher ``teacher``.
        """
        actor, options = self._actor, self._options
        assert actor.distribution is not None
        actor.distribution.update(*outputs)
        mean, scale = advantages
        normalized = (labels["advantages"] - mean) / scale
        log_prob = actor.get_output_log_prob(labels["actions"])
        entropy = _of_originals(actor.output_entropy, labels)
        self._first_replay.see_log_ratio(_of_originals(log_prob, labels), labels["log_prob"])
        penalized = options.policy_loss == "kl_penalty"
        with torch.set_grad_enabled(penalized):
            params = [_of_originals(param, labels) for param in actor.output_distribution_params]
            kl = actor.get_kl_divergence(_params_in(labels, "old"), tuple(params))
        reported = {"entropy": entropy, "kl": kl}
        if penalized:
            surrogate = losses.penalized_surrogate(
                log_prob, labels["log_prob"], normalized, kl, self.kl_coef
            )
        else:
            clips = options.clip_param, options.clip_param_high or options.clip_param
            surrogate = losses.clipped_surrogate(
                log_prob, labels["log_prob"], normalized, *clips, options.dual_clip_param
            )
            reported["clip_fraction"] = losses.is_clipped(log_prob, labels["log_prob"], *clips)
        reported["surrogate"] = surrogate
        loss = surrogate - options.entropy_coef * entropy
        if teachers := _params_in(labels, "teacher"):
            if options.teacher_loss == "mse":
                distance = losses.mse(actor.output_mean, *teachers)
            elif options.teacher_loss == "nll":
                distance = losses.nll(actor.get_output_log_prob, *teachers)
            else:
                distance = actor.get_kl_divergence(teachers, actor.output_distribution_params)
            reported["teacher"] = distance
            loss = loss + teacher_coef * distance
        return SampleLosses(loss, reported)

    def adapt(self, kl: float) -> None:
        """Change the coefficient of the KL penalty to follow ``desired_kl``.

        Args:
            kl: Mean KL divergence from the policy that acted, at the end of an update.

        References:
            Schulman et al. (2017), section 4.
        """
        desired_kl = self._options.desired_kl
        assert desired_kl is not None
        if kl < desired_kl / 1.5:
            self.kl_coef /= 2.0
        elif kl > desired_kl * 1.5:
            self.kl_coef *= 2.0


def _of_originals(values: torch.Tensor, labels: Labels) -> torch.Tensor:
    """Return values, (K, n, ...), without those of mirror images if there are any: (K, n, 1, ...).

    rsl_rl, too, takes entropy and KL divergence from the originals.
    """
    return values[:, :, :1] if labels["advantages"].dim() > 2 else values


def value_loss(outputs: Outputs, labels: Labels, clip: float | None) -> SampleLosses:
    """Compute the critic's losses of K steps of n environments, reported as ``value``.

    Args:
        outputs: Values. Shape: (K, n, 1).
        labels: ``returns`` and the ``values`` of the rollout. Shape: (K, n, 1).
        clip: Clip range of values around those of the rollout; None disables it.
    """
    (values,) = outputs
    error = losses.value_error(values, labels["returns"], labels["values"], clip).squeeze(-1)
    return SampleLosses(error, {"value": error})


def store_advantages(
    storage: RolloutStorage,
    last_values: torch.Tensor,
    options: PpoOptions,
    count: int,
    ranks: Ranks,
) -> None:
    """Compute advantages and returns into a full storage.

    Args:
        storage: The storage.
        last_values: Values after the last step. Shape: (N,).
        options: Discount, lambda, and whether advantages are normalised over the rollout.
        count: Number of samples in all processes.
        ranks: The processes that train together.
    """
    advantages = generalized_advantages(
        storage.rewards.squeeze(-1),
        storage.values.squeeze(-1),
        last_values,
        storage.dones.squeeze(-1).bool(),
        options.gamma,
        options.lam,
    ).unsqueeze(-1)
    # In place: the runner calls this in inference mode, and autograd refuses tensors created there.
    storage.returns.copy_(advantages + storage.values)
    if not options.normalize_advantage_per_mini_batch:
        mean, scale = _mean_and_scale(advantages, count, ranks)
        advantages = (advantages - mean) / scale
    storage.advantages.copy_(advantages)


def _mean_and_scale(
    advantages: torch.Tensor, count: int, ranks: Ranks
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return offset and scale that normalise advantages as rsl_rl does. Shape: () each."""
    mean, std = ranks.mean_and_std(advantages, count)
    return mean, std + 1e-8


def _labels_of(whose: str, params: Params) -> dict[str, torch.Tensor]:
    """Name the parameters of a distribution as labels."""
    return {f"{whose}_param_{index}": param for index, param in enumerate(params)}


def _params_in(labels: Labels, whose: str) -> Params:
    """Return the parameters that ``_labels_of`` named, or none."""
    return tuple(label for name, label in labels.items() if name.startswith(f"{whose}_param_"))

"""The gradient of one PPO mini-batch: actor and critic replayed, weighed losses added up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from rsl_rl.storage import RolloutStorage

from rsl_tbptt.algorithms.auxiliary.heads import AuxiliaryHeads
from rsl_tbptt.algorithms.ppo.advantages import mean_and_scale
from rsl_tbptt.algorithms.ppo.mini_batches import MiniBatch
from rsl_tbptt.algorithms.ppo.objective import (
    OLD,
    TEACHERS,
    Params,
    PolicyLoss,
    ValueLoss,
    labels_of,
)
from rsl_tbptt.algorithms.ppo.options import PpoOptions
from rsl_tbptt.algorithms.update.health import FirstReplay
from rsl_tbptt.algorithms.update.replay import action_head, distribution_head, seen_by
from rsl_tbptt.algorithms.update.trained_model import TrainedModel
from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.core.accumulate import Loss
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.rollout import Rollout

LOSSES = ("value", "surrogate", "entropy", "kl")
"""What is summed up of an optimiser step, before the teacher's and auxiliary heads' losses."""

States = tuple[HiddenState, HiddenState]
"""Of actor and critic."""

Number = float | torch.Tensor
Scales = tuple[Number, Number, Number]
"""What advantages are shifted and divided by, and M, the sum of the samples' weights."""

Attempt = Callable[[Callable[[], torch.Tensor], torch.Tensor], torch.Tensor]
"""``UpdateSession.attempt``."""


@dataclass(frozen=True)
class PpoRollout:
    """A rollout as the networks see it, and the states that actor and critic began with."""

    all_groups: Rollout
    """All observation groups, without labels."""

    actor: Rollout
    """With the labels of :class:`PolicyLoss`, and the targets of auxiliary heads."""

    critic: Rollout
    """With the labels of :class:`ValueLoss`."""

    states: States
    """Stored states of actor and critic, (L, S * N, H) for S stored steps."""


class PpoGradient:
    """Adds up the gradients of actor and critic over the windows of a mini-batch."""

    def __init__(
        self,
        actor: MLPModel,
        critic: MLPModel,
        options: PpoOptions,
        heads: AuxiliaryHeads,
        num_envs: int,
    ) -> None:
        """Choose how the models are replayed; without memory in either, on single steps.

        Args:
            actor: Policy with a distribution.
            critic: Value function.
            options: Precision, losses and the like.
            heads: The actor's auxiliary heads.
            num_envs: Environments of the largest mini-batch.
        """
        self._recurrent = actor.is_recurrent or critic.is_recurrent
        at_once = not self._recurrent
        self.first_replay = FirstReplay()
        self.actor = TrainedModel(
            actor,
            distribution_head,
            options,
            num_envs=num_envs,
            heads=heads,
            sees_single_steps=at_once,
            first_replay=self.first_replay,
        )
        self.critic = TrainedModel(
            critic, action_head, options, num_envs=num_envs, sees_single_steps=at_once
        )
        self.policy_loss = PolicyLoss(actor, options, self.first_replay)
        self._value_loss = ValueLoss(options)
        self._options, self._heads = options, heads
        self._nothing = torch.zeros(1, device=next(actor.parameters()).device)
        clips = () if options.policy_loss == "kl_penalty" else ("clip_fraction",)
        self.further = ("teacher", *clips, *heads.names)
        """Further losses that are reported by name; the teacher's is 0 without one."""

    def blank_states(self, storage: RolloutStorage) -> tuple[States, Params]:
        """Return what the first step of a rollout leaves, but zero.

        Args:
            storage: Storage of rollouts.

        Returns:
            States of actor and critic, N environments; and parameters of distributions for a whole
            rollout, (T, N, ...) each.
        """
        rollout = Rollout.from_dones(storage.observations, {}, storage.dones.squeeze(-1).bool())
        (mlp_output, *_), actor = self.actor.first_step(rollout)
        _, critic = self.critic.first_step(rollout)
        model = self.actor.model
        assert model.distribution is not None
        with torch.no_grad():
            model.distribution.update(mlp_output[0])
        num_steps = storage.num_transitions_per_env
        params = tuple(
            param.new_zeros(num_steps, *param.shape) for param in model.output_distribution_params
        )
        return (actor, critic), params

    def rollout(self, storage: RolloutStorage, states: States, teachers: Params) -> PpoRollout:
        """View the storage as a rollout; without memory in either model, as single steps.

        Args:
            storage: A full storage, with advantages and returns.
            states: Stored states of actor and critic.
            teachers: What :class:`Imitation` recorded of the teacher, (T, N, A) each, or nothing.

        Returns:
            The rollout.
        """
        assert storage.distribution_params is not None
        everything = Rollout.from_dones(storage.observations, {}, storage.dones.squeeze(-1).bool())
        weights = None
        if self._options.loss_reduction == "episode_mean":
            weights = 1.0 / everything.episode_lengths
        behaviour = {
            "advantages": storage.advantages.squeeze(-1),
            "actions": storage.actions,
            "log_prob": storage.actions_log_prob.squeeze(-1),
            **labels_of(OLD, storage.distribution_params),
            **labels_of(TEACHERS, teachers),
            **self._heads.targets(storage.dones.squeeze(-1).bool()),
        }
        targets = {"returns": storage.returns, "values": storage.values}
        stored = storage.observations
        actor = everything.seen_as(seen_by(self.actor.model, stored), behaviour, weights)
        critic = everything.seen_as(seen_by(self.critic.model, stored), targets, weights)
        if not self._recurrent:  # mini-batches then mix steps, as rsl_rl's do
            everything = everything.as_single_steps()
            actor, critic = actor.as_single_steps(), critic.as_single_steps()
        return PpoRollout(everything, actor, critic, states)

    def scales(self, mini_batch: MiniBatch, rollout: PpoRollout, attempt: Attempt) -> Scales:
        """Return what an optimiser step divides by; exchanges sums with other processes.

        Args:
            mini_batch: What the step sees.
            rollout: The rollout.
            attempt: Runs what only this process does between two exchanges, or returns the rest of
                its arguments.
        """

        def advantages() -> torch.Tensor:
            return mini_batch.loss_steps(rollout.actor.labels["advantages"])

        def weights() -> torch.Tensor:
            assert rollout.actor.weights is not None
            return mini_batch.loss_steps(rollout.actor.weights).sum()

        mean, scale, divisor = 0.0, 1.0, mini_batch.num_samples
        if self._options.normalize_advantage_per_mini_batch:
            own = attempt(advantages, self._nothing)
            mean, scale = mean_and_scale(own, mini_batch.num_samples, mini_batch.ranks)
        if self._options.loss_reduction == "episode_mean":
            divisor = mini_batch.ranks.sum_tensor(attempt(weights, self._nothing[0]))
        return mean, scale, divisor

    def accumulate(
        self,
        mini_batch: MiniBatch,
        rollout: PpoRollout,
        scales: Scales,
        num_micro_batches: int,
        teacher_coef: float,
        *,
        holds_actor: bool = False,
    ) -> torch.Tensor:
        """Add the gradient of one optimiser step's loss to the parameters' ``.grad``.

        Args:
            mini_batch: What the step sees.
            rollout: The rollout.
            scales: What :meth:`scales` returned.
            num_micro_batches: At least so many parts are run one after the other.
            teacher_coef: Weight of the teacher's loss.
            holds_actor: Whether the actor's own gradient is of no use. Its auxiliary heads learn
                all the same.

        Returns:
            The sums of value loss, surrogate, entropy, KL divergence and ``further`` losses over
            the samples of this process, not weighed by episode. Shape: (4 + further,).
        """
        mean, scale, divisor = scales
        policy_loss = partial(
            self.policy_loss,
            advantage_mean=mean,
            advantage_scale=scale,
            teacher_coef=teacher_coef,
        )
        value_coef = self._options.value_loss_coef
        learns = not holds_actor or bool(self._heads.names)
        sums: dict[str, torch.Tensor] = {}
        for model, own_rollout, state, loss, coef, with_gradient in (
            (self.actor, rollout.actor, rollout.states[0], policy_loss, 1.0, learns),
            (self.critic, rollout.critic, rollout.states[1], self._value_loss, value_coef, True),
        ):
            with torch.set_grad_enabled(with_gradient):
                sums |= _accumulate(
                    model, mini_batch, own_rollout, state, loss, divisor, num_micro_batches, coef
                )
        sums.setdefault("teacher", torch.zeros_like(sums["kl"]))
        return torch.stack([sums[name] for name in (*LOSSES, *self.further)])


def _accumulate(
    model: TrainedModel,
    mini_batch: MiniBatch,
    rollout: Rollout,
    state: HiddenState,
    loss: Loss,
    divisor: Number,
    num_micro_batches: int,
    coef: float,
) -> dict[str, torch.Tensor]:
    """Add the gradient of one model, segments of one shape after the other; return the sums."""
    parts = []
    for part in mini_batch.parts:
        _, sums = model.accumulate(
            part.group,
            part.of(rollout),
            part.state(state),
            loss,
            divisor,
            window_length=max(window.stop - window.start for window in part.group),
            num_micro_batches=num_micro_batches,
            coef=coef,
        )
        parts.append(sums)
    return {name: torch.stack([sums[name] for sums in parts]).sum() for name in parts[0]}

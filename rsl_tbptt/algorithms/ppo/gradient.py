"""The gradient of PPO's mini-batches: actor and critic replayed, their losses added up."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from rsl_rl.storage import RolloutStorage
from torch import nn

from rsl_tbptt.algorithms.auxiliary.heads import AuxiliaryHeads
from rsl_tbptt.algorithms.ppo.advantages import mean_and_scale
from rsl_tbptt.algorithms.ppo.mini_batches import MiniBatch
from rsl_tbptt.algorithms.ppo.objective import (
    LOSSES,
    OLD,
    TEACHERS,
    Params,
    PolicyLoss,
    ValueLoss,
    labels_of,
)
from rsl_tbptt.algorithms.ppo.options import PpoOptions
from rsl_tbptt.algorithms.replay import Replay, action_head, distribution_head, seen_by
from rsl_tbptt.algorithms.update.frames import find_held_frames
from rsl_tbptt.algorithms.update.health import FirstReplay
from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.rollout import Rollout

States = tuple[HiddenState, HiddenState]
"""Of actor and critic."""

Alone = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class PpoRollout:
    """A rollout, and the states that actor and critic began with."""

    all_groups: Rollout
    """All observation groups, without labels."""

    actor: Rollout
    """With the labels of ``PolicyLoss``, and the targets of auxiliary heads."""

    critic: Rollout
    """With the labels of ``ValueLoss``."""

    states: States
    """Stored states of actor and critic, (L, S * N, H) for S stored steps."""


@dataclass(frozen=True)
class Normalization:
    """How a mini-batch is normalised, over all ranks."""

    advantages: tuple[torch.Tensor | float, torch.Tensor | float]
    """What is subtracted from advantages, and what they are divided by then. Shape: () each."""

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
        *,
        num_envs: int,
        window_length: int,
    ) -> None:
        """Choose how the models are replayed; without memory in either, on single steps.

        Args:
            actor: Policy with a distribution.
            critic: Value function.
            options: Precision, losses and the like.
            heads: The actor's auxiliary heads.
            num_envs: Environments of the largest mini-batch.
            window_length: Steps of the longest window.
        """
        self._options, self._heads = options, heads
        self._recurrent = actor.is_recurrent or critic.is_recurrent
        self.first_replay = FirstReplay()
        """What the first replay of an update shows."""
        replay = partial(
            Replay,
            options=options,
            num_envs=num_envs,
            window_length=window_length,
            single_steps=not self._recurrent,
        )
        self.actor = replay(actor, distribution_head, heads=heads, first_replay=self.first_replay)
        self.critic = replay(critic, action_head)
        self.policy_loss = PolicyLoss(actor, options, self.first_replay)
        self._value_loss = ValueLoss(options)
        clips = () if options.policy_loss == "kl_penalty" else ("clip_fraction",)
        self.reported = (*LOSSES, "teacher", *clips, *heads.names)
        """Names of what is summed up; the teacher's loss is 0 without one."""
        self._nothing = torch.zeros(1, device=self.actor.device)
        # Those of a shared encoder once.
        both = (*self.actor.parameters, *self.critic.parameters)
        self.parameters: list[nn.Parameter] = [*dict.fromkeys(both), *heads.parameters]
        """Of actor, critic and heads."""

    def rollout(self, storage: RolloutStorage, states: States, teachers: Params) -> PpoRollout:
        """View a full storage, with advantages and returns, as a rollout.

        Without memory in either model its steps are environments of one step, so that mini-batches
        mix them as rsl_rl's do.

        Args:
            storage: The storage.
            states: Stored states of actor and critic.
            teachers: What was recorded of a teacher, (T, N, A) each, or nothing.
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
            **labels_of(OLD, storage.distribution_params),
            **labels_of(TEACHERS, teachers),
            **self._heads.targets(dones),
        }
        targets = {"returns": storage.returns, "values": storage.values}
        seen = [seen_by(replay.model, stored) for replay in (self.actor, self.critic)]
        find_held_frames(*seen)
        actor = everything.seen_as(seen[0], behaviour, weights)
        critic = everything.seen_as(seen[1], targets, weights)
        if not self._recurrent:
            everything = everything.as_single_steps()
            actor, critic = actor.as_single_steps(), critic.as_single_steps()
        return PpoRollout(everything, actor, critic, states)

    def normalization(
        self, mini_batch: MiniBatch, rollout: PpoRollout, alone: Alone = nullcontext
    ) -> Normalization:
        """Return how a mini-batch is normalised; ranks exchange sums for that.

        Args:
            mini_batch: What the step sees.
            rollout: The rollout.
            alone: Context of what this rank does between two exchanges; see ``Transaction.alone``.
        """
        advantages, divisor = (0.0, 1.0), mini_batch.num_samples
        if self._options.normalize_advantage_per_mini_batch:
            own = self._nothing
            with alone():
                own = mini_batch.loss_steps(rollout.actor.labels["advantages"])
            advantages = mean_and_scale(own, mini_batch.num_samples, mini_batch.ranks)
        if self._options.loss_reduction == "episode_mean":
            weights = self._nothing
            with alone():
                assert rollout.actor.weights is not None
                weights = mini_batch.loss_steps(rollout.actor.weights)
            divisor = mini_batch.ranks.sum_tensor(weights.sum())
        return Normalization(advantages, divisor)

    def accumulate(
        self,
        mini_batch: MiniBatch,
        rollout: PpoRollout,
        normalization: Normalization,
        *,
        teacher_coef: float,
        num_micro_batches: int,
        holds_actor: bool = False,
    ) -> torch.Tensor:
        """Add the gradient of an optimiser step's loss to the parameters' ``.grad``.

        Args:
            mini_batch: What the step sees.
            rollout: The rollout.
            normalization: Of the mini-batch.
            teacher_coef: Weight of the teacher's loss.
            num_micro_batches: At least so many parts are run one after the other.
            holds_actor: Whether the actor's own gradient is of no use. Its auxiliary heads learn
                all the same.

        Returns:
            The sums of what is ``reported`` over the samples of this rank, not weighed by episode.
            Shape: (M,).
        """
        policy_loss = partial(
            self.policy_loss, advantages=normalization.advantages, teacher_coef=teacher_coef
        )
        learns = not holds_actor or bool(self._heads.names)
        of_actor = (self.actor, rollout.actor, rollout.states[0], policy_loss, 1.0, learns)
        of_critic = (
            *(self.critic, rollout.critic, rollout.states[1], self._value_loss),
            *(self._options.value_loss_coef, True),
        )
        sums: dict[str, torch.Tensor] = {}
        for replay, own, states, loss, coef, with_gradient in (of_actor, of_critic):
            for part in mini_batch.parts:
                with torch.set_grad_enabled(with_gradient):
                    _, found = replay.accumulate(
                        part.group,
                        part.of(own),
                        part.state(states),
                        loss,
                        normalization.divisor,
                        num_micro_batches=num_micro_batches,
                        coef=coef,
                    )
                sums |= {name: sums.get(name, 0.0) + value for name, value in found.items()}
        sums.setdefault("teacher", torch.zeros_like(sums["kl"]))
        return torch.stack([sums[name] for name in self.reported])

"""Actor and critic of PPO as they are replayed, and the rollout as each of them sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rsl_rl.storage import RolloutStorage

from rsl_tbptt.algorithms.batches import Batches
from rsl_tbptt.algorithms.extensions import Extension
from rsl_tbptt.algorithms.extensions.heads import AuxiliaryHeads
from rsl_tbptt.algorithms.frames import deduplicate_frames
from rsl_tbptt.algorithms.health import FirstReplay
from rsl_tbptt.algorithms.options import PpoOptions
from rsl_tbptt.algorithms.policy_losses import PolicyLoss, mean_and_scale, value_loss
from rsl_tbptt.algorithms.replay import Replay, observations_of
from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.accumulate import Loss
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.rollout import Batch, Rollout, labels_of
from rsl_tbptt.core.windows import Group
from rsl_tbptt.models.protocol import action_head, distribution_head


@dataclass(frozen=True)
class Objective:
    """A model, its rollout and the loss that an optimiser step adds up over it."""

    replay: Replay
    rollout: Rollout
    states: HiddenState
    """States before the first steps of segments. Shape: (L, S * N, H), or a pair of them."""

    loss: Loss
    coef: float = 1.0
    """Weight of the loss compared with others."""

    def accumulate(
        self,
        groups: Sequence[Group],
        segments: Sequence[torch.Tensor],
        divisor: int | torch.Tensor,
        num_parts: int,
    ) -> dict[str, torch.Tensor]:
        """Add the gradient of a mini-batch to the model's; return sums of the reported values.

        Args:
            groups: Windows of the segments.
            segments: The segments of each group; see ``Indices``.
            divisor: Divisor of the sum of per-sample losses.
            num_parts: Minimum number of micro-batches.
        """
        sums: dict[str, torch.Tensor] = {}
        for group, (first_rows, places) in zip(groups, segments, strict=True):
            _, found = self.replay.accumulate(
                group,
                Batch(self.rollout, first_rows),
                hidden_state.select_envs(self.states, places),
                self.loss,
                divisor,
                num_micro_batches=num_parts,
                coef=self.coef,
            )
            for name, value in found.items():
                sums[name] = sums[name] + value if name in sums else value
        return sums


class ActorCritic:
    """The replays of actor and critic, on single steps if neither has memory."""

    def __init__(
        self, algorithm: Any, actor: MLPModel, critic: MLPModel, heads: AuxiliaryHeads
    ) -> None:
        """Choose how the models are replayed.

        Args:
            algorithm: PPO, whose options, mini-batches and extensions are set.
            actor: Policy with a distribution.
            critic: Value function.
            heads: Auxiliary heads, which are replayed, too.
        """
        options: PpoOptions = algorithm.options
        batches: Batches = algorithm.batches
        extensions: Sequence[Extension] = algorithm.extensions
        self._options, self._batches, self._extensions = options, batches, extensions
        self.first_replay = FirstReplay()
        """Metrics of the first replay of an update."""
        replay = partial(
            Replay,
            options=options,
            num_envs=batches.num_envs_of_largest,
            window_length=batches.window_length,
        )
        self.actor = replay(
            actor, distribution_head, heads=heads.outputs, first_replay=self.first_replay
        )
        self.critic = replay(critic, action_head)
        self.policy_loss = PolicyLoss(actor, options, self.first_replay)
        own = (name for extension in extensions for name in extension.reported)
        self.reported = ("kl", "value", *self.policy_loss.reported, *own)
        """Names of the sums that an optimiser step reports."""
        self.has_heads = bool(heads.reported)
        """Whether the actor's replay trains auxiliary heads, too."""

    def rollouts(
        self, storage: RolloutStorage, states: Sequence[tuple[HiddenState, HiddenState]]
    ) -> tuple[list[Rollout], Sequence[HiddenState]]:
        """View a full storage, with advantages and returns, as rollouts.

        Args:
            storage: The storage.
            states: States of actor and critic before each of S steps. Shape: (L, N, H) each.

        Returns:
            Rollouts with the observations of the actor, with those of the critic, and with all, and
            the states of actor and critic, (L, S * N, H).
        """
        assert storage.distribution_params is not None
        dones, stored = storage.dones.squeeze(-1).bool(), storage.observations
        everything = Rollout.from_dones(stored, {}, dones)
        weights = None
        if self._options.loss_reduction == "episode_mean":
            weights = 1.0 / everything.episode_lengths
        advantages = {"advantages": storage.advantages.squeeze(-1)}
        behaviour = {
            **advantages,
            "actions": storage.actions,
            "log_prob": storage.actions_log_prob.squeeze(-1),
            **labels_of("old", storage.distribution_params),
        }
        for extension in self._extensions:
            behaviour |= extension.labels()
        targets = {"returns": storage.returns, "values": storage.values}
        joined = [hidden_state.concatenate_envs(each) for each in zip(*states, strict=True)]
        seen = [observations_of(each.model, stored) for each in (self.actor, self.critic)]
        deduplicate_frames(*seen)
        actor = everything.with_observations(seen[0], behaviour, weights)
        critic = everything.with_observations(seen[1], targets, weights)
        return [actor, critic, everything.with_observations(stored, advantages, weights)], joined

    def objectives(
        self,
        rollouts: Sequence[Rollout],
        states: Sequence[HiddenState],
        **normalization: torch.Tensor,
    ) -> tuple[Objective, Objective]:
        """Return the objectives of actor and critic.

        Args:
            rollouts: Results of :meth:`rollouts`.
            states: Results of :meth:`rollouts`.
            **normalization: Offset and scale of advantages; see :class:`PolicyLoss`.
        """
        options = self._options
        loss: Loss = partial(self.policy_loss, **normalization)
        for extension in self._extensions:
            loss = extension.wrap(loss)
        clip = options.clip_param if options.use_clipped_value_loss else None
        of_values: Loss = partial(value_loss, clip=clip)
        return (
            Objective(self.actor, rollouts[0], states[0], loss),
            Objective(self.critic, rollouts[1], states[1], of_values, options.value_loss_coef),
        )

    def scales(
        self, everything: Rollout, segments: Sequence[torch.Tensor], num_samples: int, ranks: Ranks
    ) -> dict[str, torch.Tensor]:
        """Return what a mini-batch is normalised by, over all ranks, which exchange sums for it.

        Args:
            everything: The third result of :meth:`rollouts`.
            segments: The segments of the mini-batch.
            num_samples: Its samples, over all processes.
            ranks: The processes that have a share of the mini-batch.

        Returns:
            "offset" and "scale" of advantages if they are normalised over mini-batches; "divisor",
            the sum of weights, if samples have weights. Shape: () each.
        """
        of_advantages = self._options.normalize_advantage_per_mini_batch
        weights, scales = everything.rows.weights, {}
        if not of_advantages and weights is None:
            return scales
        rows = self._batches.rows(everything, segments)
        if of_advantages:
            advantages = everything.rows.labels["advantages"][rows]
            scales["offset"], scales["scale"] = mean_and_scale(advantages, num_samples, ranks)
        if weights is not None:
            scales["divisor"] = ranks.sum_tensor(weights[rows].sum())
        return scales

    def health(self, *, holds_actor: bool) -> dict[str, torch.Tensor]:
        """Check that the losses of a first step have gradients; return its measurements."""
        if not holds_actor:
            self.actor.check_gradient("policy_loss and teacher_loss")
        self.critic.check_gradient("the value loss")
        return self.first_replay.metrics()

"""The gradient of one PPO mini-batch: actor and critic replayed, weighed losses added up."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from rsl_rl.storage import RolloutStorage

from rsl_tbptt.algorithms.ppo.mini_batches import MiniBatch
from rsl_tbptt.algorithms.ppo.objective import PolicyLoss
from rsl_tbptt.algorithms.ppo.options import PpoOptions
from rsl_tbptt.algorithms.update.replay import action_head, make_replay, observed_groups, raw_head
from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.core import hidden_state, losses
from rsl_tbptt.core.accumulate import Loss, Replay, accumulate_group
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.env_blocks import bytes_per_sample, num_env_blocks
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.rollout import Rollout
from rsl_tbptt.core.scan.cuda_graphs import recordings_aside


@dataclass(frozen=True)
class PpoRollout:
    """A rollout as the networks see it, and the states that actor and critic began with."""

    all_groups: Rollout
    """All observation groups, without labels."""

    actor: Rollout
    """Labels: sample weights, advantages, actions, their log-probabilities, the parameters of the
    distribution they came from, and those of the teacher's while it pulls."""

    critic: Rollout
    """Labels: sample weights, returns, values."""

    states: tuple[HiddenState, HiddenState]
    """Stored states of actor and critic, (L, S * N, H) for S stored steps."""

    num_params: int
    """Number of the distribution's parameters."""


class PpoGradient:
    """Adds up the gradients of actor and critic over the windows of a mini-batch."""

    def __init__(
        self, actor: MLPModel, critic: MLPModel, options: PpoOptions, device: torch.device | str
    ) -> None:
        """Choose how the models are replayed.

        Raises:
            NotImplementedError: If a model cannot be replayed.
        """
        self.policy_loss = PolicyLoss(actor, options)
        self.num_env_chunks = options.num_env_chunks
        self._actor, self._critic, self._options = actor, critic, options
        self._device = torch.device(device)
        self._sample_bytes = {model: bytes_per_sample(model) for model in (actor, critic)}
        self._recurrent = actor.is_recurrent or critic.is_recurrent
        operand_dtype = torch.bfloat16 if options.use_mixed_precision else None
        shared = {"scan_engine": options.scan_engine, "operand_dtype": operand_dtype}
        self._replay_actor = make_replay(actor, head=raw_head, **shared)
        self._replay_critic = make_replay(critic, head=action_head, **shared)

    def blank_states(self, storage: RolloutStorage) -> tuple[HiddenState, HiddenState]:
        """Make an empty storage and states as the first step of a rollout makes them, but zero.

        Args:
            storage: The storage. It gets room for the distribution's parameters.

        Returns:
            States of actor and critic, N environments.
        """
        obs, starts = storage.observations[:1], storage.dones[:1].squeeze(-1).bool()
        with torch.no_grad(), recordings_aside():
            (mlp_output,), actor = self._replay_actor(obs, None, starts)
            _, critic = self._replay_critic(obs, None, starts)
            self._actor.distribution.update(mlp_output[0])  # type: ignore[union-attr]
        if storage.distribution_params is None:
            storage.distribution_params = tuple(
                param.new_zeros(storage.num_transitions_per_env, *param.shape)
                for param in self._actor.output_distribution_params
            )
        actor, critic = (hidden_state.apply(torch.zeros_like, s) for s in (actor, critic))
        return actor, critic

    def rollout(
        self,
        storage: RolloutStorage,
        states: tuple[HiddenState, HiddenState],
        teacher_params: tuple[torch.Tensor, ...],
    ) -> PpoRollout:
        """View the storage as a rollout; without memory in either model, as single steps.

        Args:
            storage: A full storage, with advantages and returns.
            states: Stored states of actor and critic.
            teacher_params: Parameters of the teacher's distribution, (T, N, A) each, or none.

        Returns:
            The rollout.
        """
        assert storage.distribution_params is not None
        everything = Rollout.from_dones(storage.observations, (), storage.dones.squeeze(-1).bool())
        weights = torch.ones_like(storage.rewards.squeeze(-1))
        if self._options.loss_reduction == "episode_mean":
            weights = weights / everything.episode_lengths
        advantages, log_prob = storage.advantages, storage.actions_log_prob
        params = storage.distribution_params
        taken = (storage.actions, log_prob.squeeze(-1), *params)
        behaviour = (weights, advantages.squeeze(-1), *taken, *teacher_params)
        targets = (weights, storage.returns, storage.values)
        stored = storage.observations
        actor = everything.seen_by(observed_groups(self._actor, stored), behaviour)
        critic = everything.seen_by(observed_groups(self._critic, stored), targets)
        if not self._recurrent:  # mini-batches then mix steps, as rsl_rl's do
            everything = everything.as_single_steps()
            actor, critic = actor.as_single_steps(), critic.as_single_steps()
        return PpoRollout(everything, actor, critic, states, len(params))

    def accumulate(
        self, mini_batch: MiniBatch, rollout: PpoRollout, teacher_coef: float
    ) -> torch.Tensor:
        """Add the gradient of one optimiser step's loss to the parameters' ``.grad``.

        Args:
            mini_batch: What the step sees.
            rollout: The rollout.
            teacher_coef: Weight of the pull towards the teacher.

        Returns:
            The sums of value loss, surrogate, entropy and KL divergence over the samples of this
            process, not weighed by episode. Shape: (4,).
        """
        weights, advantages = rollout.actor.labels[:2]
        shift, scale = self._advantage_scale(mini_batch, advantages)
        divisor = self._divisor(mini_batch, weights)
        sums: list[torch.Tensor] = []

        def critic_loss(
            values: torch.Tensor,
            weights: torch.Tensor,
            returns: torch.Tensor,
            old_values: torch.Tensor,
        ) -> losses.LossSum:
            clip = self._options.clip_param if self._options.use_clipped_value_loss else None
            loss = losses.value_error(values, returns, old_values, clip).squeeze(-1)
            sums.append(torch.nn.functional.pad(loss.detach().sum().view(1), (0, 3)))
            return self._options.value_loss_coef * (weights * loss).sum(), weights.numel()

        def actor_loss(
            mlp_output: torch.Tensor,
            weights: torch.Tensor,
            advantages: torch.Tensor,
            actions: torch.Tensor,
            old_log_prob: torch.Tensor,
            *params: torch.Tensor,
        ) -> losses.LossSum:
            loss, seen = self.policy_loss(
                mlp_output,
                actions,
                old_log_prob,
                (advantages - shift) / scale,
                old_params=params[: rollout.num_params],
                teacher_params=params[rollout.num_params :],
                teacher_coef=teacher_coef,
            )
            sums.append(torch.nn.functional.pad(seen, (1, 0)))
            return (weights * loss).sum(), weights.numel()

        actor = (rollout.actor, rollout.states[0], self._replay_actor, actor_loss)
        critic = (rollout.critic, rollout.states[1], self._replay_critic, critic_loss)
        self._accumulate(self._actor, mini_batch, *actor, divisor)
        self._accumulate(self._critic, mini_batch, *critic, divisor)
        return torch.stack(sums).sum(0)

    def _accumulate(
        self,
        model: MLPModel,
        mini_batch: MiniBatch,
        rollout: Rollout,
        state: HiddenState,
        replay: Replay,
        loss: Loss,
        divisor: int | torch.Tensor,
    ) -> None:
        """Add the gradient of one model, stretches of one shape after the other."""
        for part in mini_batch.parts:
            stretches, begin = part.of(rollout), part.state(state)
            length = max(window.stop - window.start for window in part.group)
            chunks = max(self.num_env_chunks, self.num_blocks(model, stretches.num_envs, length))
            accumulate_group(part.group, stretches, begin, replay, loss, divisor, chunks)

    def num_blocks(self, model: MLPModel, num_envs: int, num_steps: int) -> int:
        """Return the environment chunks that windows of so many steps are cut into in any case."""
        if not self._recurrent:  # such models see single steps, best all at once
            return 1
        return num_env_blocks(num_envs, num_steps, self._sample_bytes[model], self._device)

    def _advantage_scale(
        self, mini_batch: MiniBatch, advantages: torch.Tensor
    ) -> tuple[torch.Tensor | float, torch.Tensor | float]:
        """Return what the mini-batch's advantages are shifted and divided by."""
        if not self._options.normalize_advantage_per_mini_batch:
            return 0.0, 1.0
        return mean_and_scale(
            mini_batch.loss_steps(advantages), mini_batch.num_samples, mini_batch.ranks
        )

    def _divisor(self, mini_batch: MiniBatch, weights: torch.Tensor) -> int | torch.Tensor:
        """Return M, the sum of the samples' weights over all processes."""
        if self._options.loss_reduction == "mean":
            return mini_batch.num_samples
        return mini_batch.ranks.sum_tensor(mini_batch.loss_steps(weights).sum())


def mean_and_scale(
    advantages: torch.Tensor, count: int, ranks: Ranks
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what advantages are shifted and divided by when they are normalised, as in rsl_rl.

    Args:
        advantages: Those of this process.
        count: Their number in all processes.
        ranks: The processes that train together.
    """
    mean, std = ranks.mean_and_std(advantages, count)
    return mean, std + 1e-8

"""PPO whose recurrent models are trained by truncated BPTT."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from rsl_rl.algorithms import PPO
from rsl_rl.models import MLPModel
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.algorithms.checkpoints import check_matches
from rsl_tbptt.algorithms.guard import UpdateGuard, describe_non_finite, non_finite_message
from rsl_tbptt.algorithms.options import PpoOptions
from rsl_tbptt.algorithms.replay import action_head, make_replay, raw_head
from rsl_tbptt.core import distributed, hidden_state, losses
from rsl_tbptt.core.accumulate import Loss, Replay, accumulate_group
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.returns import generalized_advantages
from rsl_tbptt.core.rollout import Rollout
from rsl_tbptt.core.scan import num_cache_blocks
from rsl_tbptt.core.windows import tbptt_schedule


class TbpttPPO(PPO):
    """rsl_rl's PPO with truncated BPTT for recurrent actors and critics.

    A drop-in: same constructor, storage, models, checkpoints and runner. A mini-batch is a set of
    whole environments. Their rollout is replayed with the current weights from the state it started
    with, window by window of ``gradient_length`` steps; the windows' gradients add up to one
    optimiser step. Nothing is split or padded at dones. Feed-forward models see the rollout as
    single steps, shuffled as in rsl_rl.
    """

    def __init__(
        self,
        actor: MLPModel,
        critic: MLPModel,
        storage: RolloutStorage,
        *,
        device: str = "cpu",
        multi_gpu_cfg: dict | None = None,
        rnd_cfg: None = None,
        symmetry_cfg: None = None,
        **options: Any,  # noqa: ANN401
    ) -> None:
        """Set up models, optimiser and schedule.

        Args:
            actor: Policy with a distribution.
            critic: Value function.
            storage: rsl_rl's rollout storage of type "rl".
            device: Device of the update.
            multi_gpu_cfg: rsl_rl's description of the processes, or None for one process.
            rnd_cfg: Must be None.
            symmetry_cfg: Must be None.
            **options: Fields of :class:`PpoOptions`.

        Raises:
            ValueError: If an option is unknown, invalid or contradicts another.
            NotImplementedError: If RND or symmetry is asked for, a model cannot be replayed, or
                ``student_action_std`` has no parameter to set.
        """
        for name, cfg in (("rnd_cfg", rnd_cfg), ("symmetry_cfg", symmetry_cfg)):
            if cfg is not None:
                raise NotImplementedError(
                    f"{name} is set, expected None: TbpttPPO lacks it so far; use rsl_rl's PPO."
                )
        self.options = PpoOptions.parse(options)
        if self.options.student_action_std is not None:
            _std_parameter(actor)
        self._recurrent = actor.is_recurrent or critic.is_recurrent
        self.options.check_rollout(
            storage.num_transitions_per_env, storage.num_envs, self._recurrent
        )
        super().__init__(
            actor,
            critic,
            storage,
            num_learning_epochs=self.options.num_learning_epochs,
            num_mini_batches=self.options.num_mini_batches,
            clip_param=self.options.clip_param,
            gamma=self.options.gamma,
            lam=self.options.lam,
            value_loss_coef=self.options.value_loss_coef,
            entropy_coef=self.options.entropy_coef,
            learning_rate=self.options.learning_rate,
            max_grad_norm=self.options.max_grad_norm,
            optimizer=self.options.optimizer,
            use_clipped_value_loss=self.options.use_clipped_value_loss,
            schedule=self.options.schedule,
            desired_kl=self.options.desired_kl,  # type: ignore[arg-type]
            normalize_advantage_per_mini_batch=self.options.normalize_advantage_per_mini_batch,
            device=device,
            multi_gpu_cfg=multi_gpu_cfg,
        )
        self._raw_actor, self._raw_critic = self.actor, self.critic  # rsl_rl 5.0 lacks them
        self._start_states: tuple[HiddenState, HiddenState] = (None, None)
        self._warned_of_approximation = False
        self._critic_warmup_left = 0
        operand_dtype = torch.bfloat16 if self.options.use_mixed_precision else None
        shared = {"scan_engine": self.options.scan_engine, "operand_dtype": operand_dtype}
        self._replay_actor = make_replay(actor, head=raw_head, **shared)
        self._replay_critic = make_replay(critic, head=action_head, **shared)
        self._plan_update()

    def _plan_update(self) -> None:
        """Fix the windows, the samples of each mini-batch over all processes, and the chunks."""
        num_steps, num_envs = self.storage.num_transitions_per_env, self.storage.num_envs
        if not self._recurrent:
            num_steps, num_envs = 1, num_steps * num_envs
        gradient_length = self.options.gradient_length or num_steps
        (self._group,) = tbptt_schedule(num_steps, gradient_length, update_length=num_steps)
        shares = torch.arange(num_envs).tensor_split(self.num_mini_batches)
        self._num_samples = [
            distributed.sum_over_ranks(num_steps * len(share), self.device) for share in shares
        ]
        self._num_env_chunks = self.options.num_env_chunks
        if self._recurrent:  # 256 environments fill a cache with their windows, not as single steps
            cache_blocks = num_cache_blocks(len(shares[0]), torch.device(self.device))
            self._num_env_chunks = max(self._num_env_chunks, cache_blocks)

    def act(self, obs: TensorDict) -> torch.Tensor:
        """Sample actions and record what the update needs; hidden states once per rollout.

        Args:
            obs: Observations of all environments, batch size (N,).

        Returns:
            Actions, shape (N, A).
        """
        if self.storage.step == 0:
            self._start_states = (
                hidden_state.clone(self.actor.get_hidden_state()),
                hidden_state.clone(self.critic.get_hidden_state()),
            )
        actions = super().act(obs)
        self.transition.hidden_states = (None, None)
        return actions

    def process_env_step(
        self,
        obs: TensorDict,  # noqa: ARG002
        rewards: torch.Tensor,
        dones: torch.Tensor,
        extras: dict[str, Any],
    ) -> None:
        """Store the step and clear the states of finished episodes.

        Where time alone ended an episode, its value beyond that enters the last reward. The
        normaliser is left alone until the end of ``update()``, so that the replay sees what the
        rollout saw.

        Args:
            obs: Next observations, unused.
            rewards: Rewards, shape (N,).
            dones: Which episodes ended with this step, shape (N,).
            extras: May hold "time_outs", shape (N,): which of them ended by time alone; and
                "final_obs", the observation groups at the end of the step, before any reset.
        """
        self.transition.rewards = rewards.clone()
        self.transition.dones = dones
        if "time_outs" in extras:
            values = self._values_beyond(extras.get("final_obs"))
            time_outs = extras["time_outs"].to(self.device).bool()
            self.transition.rewards += self.gamma * torch.where(time_outs, values, 0.0)
        self.storage.add_transition(self.transition)
        self.transition.clear()
        self.actor.reset(dones)
        self.critic.reset(dones)

    def _values_beyond(self, final_obs: Mapping[str, torch.Tensor] | None) -> torch.Tensor:
        """Return the value of going on after this step, shape (N,), from the critic's live state.

        Without final observations it is approximated by the value before the step, as in rsl_rl.
        """
        if final_obs is None:
            self._warn_of_approximation()
            return self.transition.values.squeeze(-1)  # type: ignore[union-attr]
        obs = TensorDict(dict(final_obs), batch_size=[self.storage.num_envs]).to(self.device)
        state = self.critic.get_hidden_state()
        values = self.critic(obs).detach().squeeze(-1)
        self.critic.reset(hidden_state=state)
        return values

    def _warn_of_approximation(self) -> None:
        if not self._warned_of_approximation:
            self._warned_of_approximation = True
            warnings.warn(
                "Time-outs are bootstrapped with the value before the last step, because the"
                " environment gives no extras['final_obs']. In Isaac Lab 3.0 turn it on with"
                " env.compute_final_obs=true.",
                stacklevel=4,
            )

    def compute_returns(self, obs: TensorDict) -> None:
        """Compute advantages and returns; the value call at the end advances no state.

        Args:
            obs: Observations after the last step, batch size (N,).
        """
        storage = self.storage
        state = self.critic.get_hidden_state()
        last_values = self.critic(obs).detach().squeeze(-1)
        self.critic.reset(hidden_state=state)
        advantages = generalized_advantages(
            storage.rewards.squeeze(-1),
            storage.values.squeeze(-1),
            last_values,
            storage.dones.squeeze(-1).bool(),
            self.gamma,
            self.lam,
        ).unsqueeze(-1)
        # In place: the runner calls this in inference mode, whose new tensors autograd refuses.
        storage.returns.copy_(advantages + storage.values)
        if not self.normalize_advantage_per_mini_batch:
            advantages = _normalize(advantages)
        storage.advantages.copy_(advantages)

    def update(self) -> dict[str, float]:
        """Train actor and critic on the rollout and clear the storage.

        Returns:
            What the runner logs under ``Loss/``: ``value``, ``surrogate`` and ``entropy`` (means
            per sample over all epochs), ``kl`` (mean KL divergence from the policy that acted),
            ``actor_grad_norm`` and ``critic_grad_norm`` (before clipping) and
            ``episode_start_rate``.

        Raises:
            ValueError: If a loss or gradient is NaN or inf. Parameters and optimiser are then as
                before the update.
        """
        guard, learning_rate = UpdateGuard(self._parameters(), self.optimizer), self.learning_rate
        actor_rollout, critic_rollout = self._rollouts(slice(None))
        steps = []
        for _ in range(self.num_learning_epochs):
            mini_batches = self._mini_batches(actor_rollout.num_envs)
            for envs, num_samples in zip(mini_batches, self._num_samples, strict=True):
                self.optimizer.zero_grad()
                actor_state, critic_state = (
                    hidden_state.select_envs(state, envs) for state in self._start_states
                )
                actor_sums = self._accumulate_actor(
                    actor_rollout.envs(envs), actor_state, num_samples
                )
                if self._critic_warmup_left > 0:
                    self._raw_actor.zero_grad()  # the optimiser passes over it
                critic_sums = self._accumulate_critic(
                    critic_rollout.envs(envs), critic_state, num_samples
                )
                means = torch.cat((critic_sums, actor_sums)) / num_samples
                steps.append(self._optimizer_step(means))
        metrics = self._metrics(torch.stack(steps))
        if not all(math.isfinite(value) for value in metrics.values()):
            self.learning_rate = learning_rate
            self._undo(guard)
        self._finish()
        return metrics

    def _rollouts(self, envs: slice) -> tuple[Rollout, Rollout]:
        """View some environments of the storage as the actor's and the critic's rollout.

        Without memory in either, as single steps: mini-batches then mix steps as rsl_rl's do.
        """
        storage = self.storage
        assert storage.distribution_params is not None
        actor_labels = (
            storage.actions,
            storage.actions_log_prob.squeeze(-1),
            storage.advantages.squeeze(-1),
            *storage.distribution_params,
        )
        critic_labels = (storage.returns, storage.values)
        dones = storage.dones.squeeze(-1).bool()
        actor_obs = storage.observations.select(*self._raw_actor.obs_groups)
        critic_obs = storage.observations.select(*self._raw_critic.obs_groups)
        actor = Rollout(actor_obs, actor_labels, dones).envs(envs)
        critic = Rollout(critic_obs, critic_labels, dones).envs(envs)
        if self._recurrent:
            return actor, critic
        return actor.as_single_steps(), critic.as_single_steps()

    def _mini_batches(self, num_envs: int) -> tuple[torch.Tensor, ...]:
        """Split the environments into mini-batches; every environment is in one of them."""
        order = torch.randperm if self.options.shuffle_envs else torch.arange
        return order(num_envs, device=self.device).tensor_split(self.num_mini_batches)

    def _accumulate_actor(
        self, rollout: Rollout, state: HiddenState, num_samples: int
    ) -> torch.Tensor:
        """Add the actor's gradient; return the sums of surrogate, entropy and KL. Shape: (3,)."""
        sums: list[torch.Tensor] = []
        if self.normalize_advantage_per_mini_batch:
            actions, old_log_prob, advantages, *old_params = rollout.labels
            labels = (actions, old_log_prob, _normalize(advantages), *old_params)
            rollout = Rollout(rollout.obs, labels, rollout.dones)

        def loss(
            mlp_output: torch.Tensor,
            actions: torch.Tensor,
            old_log_prob: torch.Tensor,
            advantages: torch.Tensor,
            *old_params: torch.Tensor,
        ) -> losses.LossSum:
            actor = self._raw_actor
            actor.distribution.update(mlp_output)  # type: ignore[union-attr]
            surrogate, count = losses.clipped_surrogate(
                actor.get_output_log_prob(actions),
                old_log_prob,
                advantages,
                self.clip_param,
                self.options.clip_param_high or self.clip_param,
            )
            entropy = actor.output_entropy.sum()
            with torch.no_grad():
                kl = actor.get_kl_divergence(old_params, actor.output_distribution_params).sum()
            sums.append(torch.stack((surrogate.detach(), entropy.detach(), kl)))
            return surrogate - self.entropy_coef * entropy, count

        self._accumulate(rollout, state, self._replay_actor, loss, num_samples)
        return torch.stack(sums).sum(0)

    def _accumulate_critic(
        self, rollout: Rollout, state: HiddenState, num_samples: int
    ) -> torch.Tensor:
        """Add the critic's gradient; return the sum of the value loss. Shape: (1,)."""
        sums: list[torch.Tensor] = []

        def loss(*values_and_labels: torch.Tensor) -> losses.LossSum:
            clip = self.clip_param if self.use_clipped_value_loss else None
            value_loss, count = losses.value_error(*values_and_labels, clip=clip)
            sums.append(value_loss.detach())
            return self.value_loss_coef * value_loss, count

        self._accumulate(rollout, state, self._replay_critic, loss, num_samples)
        return torch.stack(sums).sum(0, keepdim=True)

    def _accumulate(
        self,
        rollout: Rollout,
        state: HiddenState,
        replay: Replay,
        loss: Loss,
        num_samples: int,
    ) -> None:
        accumulate_group(
            self._group, rollout, state, replay, loss, num_samples, self._num_env_chunks
        )

    def _optimizer_step(self, means: torch.Tensor) -> torch.Tensor:
        """Follow the KL divergence with the learning rate, clip actor and critic, step once.

        Args:
            means: Value loss, surrogate, entropy and KL divergence of the mini-batch. Shape: (4,).

        Returns:
            The same and the gradient norms of actor and critic before clipping. Shape: (6,).
        """
        means = distributed.sum_tensor_over_ranks(means)
        self.reduce_parameters()
        if self.schedule == "adaptive" and self.desired_kl and self._critic_warmup_left == 0:
            self._adapt_learning_rate(means[3].item())
        norms = [
            nn.utils.clip_grad_norm_(model.parameters(), self.max_grad_norm).to(self.device)
            for model in (self._raw_actor, self._raw_critic)
        ]
        self.optimizer.step()
        return torch.cat((means, torch.stack(norms)))

    def _adapt_learning_rate(self, kl: float) -> None:
        """Move the learning rate towards the desired KL divergence, as rsl_rl does."""
        if kl > self.desired_kl * 2.0:
            self.learning_rate = max(1e-5, self.learning_rate / 1.5)
        elif 0.0 < kl < self.desired_kl / 2.0:
            self.learning_rate = min(1e-2, self.learning_rate * 1.5)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate

    def reduce_parameters(self) -> None:
        """Sum the gradients over processes; the divisor already counts all of them."""
        distributed.sum_gradients(self._parameters(), self.options.grad_reduce_bucket_mb)

    def _parameters(self) -> list[nn.Parameter]:
        """Return all parameters; those of a shared encoder once."""
        both = chain(self._raw_actor.parameters(), self._raw_critic.parameters())
        return list(dict.fromkeys(both))

    def _metrics(self, steps: torch.Tensor) -> dict[str, float]:
        """Average over optimiser steps, shape (S, 6), and fetch the metrics in one transfer."""
        names = ("value", "surrogate", "entropy", "kl", "actor_grad_norm", "critic_grad_norm")
        rate = self.storage.dones.float().mean().view(1)
        values = torch.cat((steps.mean(0), rate)).tolist()
        return dict(zip((*names, "episode_start_rate"), values, strict=True))

    def _finish(self) -> None:
        """Update the normalisers, count the critic's warm-up down and clear the storage."""
        obs = self.storage.observations.flatten(0, 1)
        self.critic.update_normalization(obs)
        if self._critic_warmup_left > 0:
            self._critic_warmup_left -= 1
        else:
            self.actor.update_normalization(obs)
        self.storage.clear()

    def _undo(self, guard: UpdateGuard) -> None:
        """Restore what was before the update, drop the rollout and raise with the reason.

        Raises:
            ValueError: Always.
        """
        guard.restore()
        storage = self.storage
        named = {"rewards": storage.rewards, "values": storage.values, "actions": storage.actions}
        source = describe_non_finite(storage.observations, named, self._gradient_is_finite)
        self.optimizer.zero_grad()
        for model in (self.actor, self.critic):
            model.reset(hidden_state=hidden_state.clear_non_finite(model.get_hidden_state()))
        storage.clear()
        raise ValueError(non_finite_message(source))

    def _gradient_is_finite(self, envs: slice) -> bool:
        """Return whether the current parameters' gradient on some environments is finite."""
        self.optimizer.zero_grad()
        actor_rollout, critic_rollout = self._rollouts(envs)
        actor_state, critic_state = (
            hidden_state.select_envs(state, envs) for state in self._start_states
        )
        self._accumulate_actor(actor_rollout, actor_state, 1)
        self._accumulate_critic(critic_rollout, critic_state, 1)
        gradients = [p.grad for p in self._parameters() if p.grad is not None]
        return all(bool(torch.isfinite(gradient).all()) for gradient in gradients)

    def load(self, loaded_dict: dict, load_cfg: dict | None, strict: bool) -> bool:
        """Load a PPO checkpoint as rsl_rl does, after checking that all of it fits.

        A distillation checkpoint makes its student the actor, normaliser and distribution included,
        with the action noise ``student_action_std``; the critic is warmed up first.

        Args:
            loaded_dict: The checkpoint.
            load_cfg: What to load, or None for everything.
            strict: Whether parameters must match exactly.

        Returns:
            Whether the runner shall take over the iteration.

        Raises:
            ValueError: If the parameters do not fit. Nothing is changed then.
        """
        if "student_state_dict" in loaded_dict:
            return self._continue_student(loaded_dict["student_state_dict"], strict)
        for role, model in (("actor", self._raw_actor), ("critic", self._raw_critic)):
            if load_cfg is not None and not load_cfg.get(role):
                continue
            key = f"{role}_state_dict"
            if key not in loaded_dict:
                raise ValueError(
                    f"The checkpoint lacks '{key}', it holds {sorted(loaded_dict)}: expected one of"
                    " PPO or distillation of rsl_rl 5."
                )
            if strict:
                check_matches(model, loaded_dict[key], role)
        load_iteration = super().load(loaded_dict, load_cfg, strict)
        self.learning_rate = self.optimizer.param_groups[0]["lr"]  # rsl_rl 5.0 leaves it
        return load_iteration

    def _continue_student(self, state_dict: Mapping[str, torch.Tensor], strict: bool) -> bool:
        """Make a distilled student the actor; return that the iteration starts at 0.

        Raises:
            ValueError: If it does not fit the actor. Nothing is changed then.
        """
        if strict:
            check_matches(self._raw_actor, state_dict, "actor")
        self._raw_actor.load_state_dict(state_dict, strict=strict)
        std = self.options.student_action_std
        if std is not None:
            name, parameter = _std_parameter(self._raw_actor)
            parameter.data.fill_(math.log(std) if name.startswith("log") else std)
        self._critic_warmup_left = self.options.critic_warmup_iterations
        return False


def _std_parameter(actor: MLPModel) -> tuple[str, nn.Parameter]:
    """Return name and parameter, shape (A,), of the actions' (log) standard deviation.

    Raises:
        NotImplementedError: If it is not a parameter of its own.
    """
    if actor.distribution is not None:
        for name, parameter in actor.distribution.named_parameters():
            if name in ("std_param", "log_std_param"):
                return name, parameter
    raise NotImplementedError(
        f"student_action_std is set, but the actor's {type(actor.distribution).__name__} has no"
        " standard deviation of its own: use a GaussianDistribution or leave it at None."
    )


def _normalize(advantages: torch.Tensor) -> torch.Tensor:
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)

"""PPO whose recurrent models are trained by truncated BPTT."""

from __future__ import annotations

import math
from functools import partial
from itertools import chain
from typing import Any

import torch
from rsl_rl.algorithms import PPO
from rsl_rl.env import VecEnv
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.algorithms.ppo.fine_tuning import FineTuning, build_teacher
from rsl_tbptt.algorithms.ppo.gradient import PpoGradient, PpoRollout, mean_and_scale
from rsl_tbptt.algorithms.ppo.mini_batches import MiniBatch, MiniBatches
from rsl_tbptt.algorithms.ppo.options import PpoOptions
from rsl_tbptt.algorithms.ppo.rnd import CuriosityTraining
from rsl_tbptt.algorithms.ppo.time_outs import TimeOutValues, value_without_advancing
from rsl_tbptt.algorithms.update.memory_plan import MemoryPlan, plan_memory
from rsl_tbptt.algorithms.update.non_finite import (
    NonFiniteUpdates,
    find_source,
    take_over_nan_check,
)
from rsl_tbptt.algorithms.update.optimizers import follow_kl, step_at, use_fused_kernels
from rsl_tbptt.algorithms.update.replay import observed_groups
from rsl_tbptt.algorithms.update.rollback import UpdateGuard
from rsl_tbptt.algorithms.update.step_batches import step_batches
from rsl_tbptt.checkpoints.reading import check_matches
from rsl_tbptt.checkpoints.trained_models import check_configured_alike, describe
from rsl_tbptt.compat.versions import UPDATE_NORMALIZES, MLPModel, rnd_optimizer
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.returns import generalized_advantages


class TbpttPPO(PPO):
    """rsl_rl's PPO with truncated BPTT for recurrent actors and critics.

    A drop-in: same constructor, storage, models, checkpoints and runner. A mini-batch is a set of
    whole environments, replayed with the current weights from the state the rollout started with
    (or of windows, see ``minibatch_unit``). The gradient is cut every ``gradient_length`` steps;
    the windows' gradients add up to one optimiser step. Nothing is split or padded at dones.
    Feed-forward models see the rollout as single steps, shuffled as in rsl_rl.
    """

    def __init__(
        self,
        actor: MLPModel,
        critic: MLPModel,
        storage: RolloutStorage,
        *,
        device: str = "cpu",
        multi_gpu_cfg: dict | None = None,
        rnd_cfg: dict | None = None,
        symmetry_cfg: dict | None = None,
        **options: Any,
    ) -> None:
        """Set up models, optimiser and schedule.

        Args:
            actor: Policy with a distribution.
            critic: Value function.
            storage: rsl_rl's rollout storage of type "rl".
            device: Device of the update.
            multi_gpu_cfg: rsl_rl's description of the processes, or None for one process.
            rnd_cfg: rsl_rl's description of random network distillation, or None.
            symmetry_cfg: rsl_rl's description of symmetries, or None. Feed-forward models only.
            **options: Fields of :class:`PpoOptions`.

        Raises:
            ValueError: If an option is unknown, invalid or contradicts another.
            NotImplementedError: If symmetry is asked for with a recurrent model, a model cannot be
                replayed, or ``student_action_std`` has no parameter to set.
        """
        self.options = PpoOptions.parse(options)
        self._recurrent = actor.is_recurrent or critic.is_recurrent
        if symmetry_cfg is not None:
            self._check_symmetry()
        self.options.check_rollout(storage.num_transitions_per_env, self._recurrent)
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
            max_grad_norm=self.options.max_grad_norm or math.inf,
            optimizer=self.options.optimizer,
            use_clipped_value_loss=self.options.use_clipped_value_loss,
            schedule=self.options.schedule,
            desired_kl=self.options.desired_kl,  # type: ignore[arg-type]
            normalize_advantage_per_mini_batch=self.options.normalize_advantage_per_mini_batch,
            device=device,
            rnd_cfg=rnd_cfg,
            symmetry_cfg=symmetry_cfg,
            multi_gpu_cfg=multi_gpu_cfg,
        )
        self.use_mixed_precision = self.options.use_mixed_precision  # rsl_rl 5.0 lacks these
        self.grad_reduce_bucket_mb = self.options.grad_reduce_bucket_mb
        self._raw_actor, self._raw_critic = self.actor, self.critic
        self._parameters_of_models = [list(model.parameters()) for model in (actor, critic)]
        use_fused_kernels(self.optimizer)
        self._ranks = Ranks(together=self.is_multi_gpu)
        self._states: list[tuple[HiddenState, HiddenState]] = []
        self._no_sums = torch.full((4,), torch.nan, device=device)
        self._values_beyond = TimeOutValues()
        self._fine_tuning = FineTuning(actor, self.options, is_first_rank=self.gpu_global_rank == 0)
        self._gradient = PpoGradient(actor, critic, self.options, device)
        self._curiosity: CuriosityTraining | None = None
        if self.rnd:
            optimizer = rnd_optimizer(self)
            self._curiosity = CuriosityTraining(
                self.rnd, optimizer, self._ranks, self.grad_reduce_bucket_mb
            )
        further = self._curiosity.changes if self._curiosity else ([], [])
        self._guard = UpdateGuard(
            [actor, critic, *further[0]], [self.optimizer, *further[1]], self._ranks
        )
        self._non_finite = NonFiniteUpdates(
            self.options.non_finite, self.options.max_skipped_updates
        )
        self._mini_batches = self._plan_mini_batches()
        num_steps, num_envs = storage.num_transitions_per_env, storage.num_envs
        num_envs_of_ranks = self._ranks.sum_count(num_envs, device)
        self._num_samples_of_ranks = num_steps * num_envs_of_ranks
        # Normalisers may exchange sums: on every rank as often.
        self._step_batches = step_batches(num_steps, num_envs_of_ranks, device)
        self._started = False

    def _check_symmetry(self) -> None:
        """Check that symmetry can be left to rsl_rl's own update.

        Raises:
            NotImplementedError: If a model is recurrent.
            ValueError: If an option is set that rsl_rl's update lacks.
        """
        if self._recurrent:
            raise NotImplementedError(
                "symmetry_cfg is set, expected None with a recurrent actor or critic: a mirrored"
                " sample needs the hidden state of a mirrored episode, which nobody has lived."
            )
        self.options.check_symmetry()

    def _plan_mini_batches(self) -> MiniBatches:
        num_steps, num_envs = self.storage.num_transitions_per_env, self.storage.num_envs
        if not self._recurrent:
            num_steps, num_envs = 1, num_steps * num_envs
        return MiniBatches(
            num_steps,
            num_envs,
            self.num_mini_batches,
            ranks=self._ranks,
            gradient_length=self.options.gradient_length or num_steps,
            unit=self.options.minibatch_unit,
            burn_in_length=self.options.burn_in_length,
            shuffle=self.options.shuffle_envs,
            device=self.device,
        )

    @staticmethod
    def construct_algorithm(obs: TensorDict, env: VecEnv, cfg: dict, device: str) -> PPO:
        """Build models, storage and algorithm from the runner's config, as rsl_rl does.

        Args:
            obs: Observations of the environment.
            env: The environment.
            cfg: The runner's config. ``cfg["algorithm"]["teacher_cfg"]`` may describe the teacher's
                model, on observation set "teacher". ``cfg["check_for_nan"]`` is set to False where
                ``non_finite`` skips updates.
            device: Device of the update.

        Returns:
            The algorithm.
        """
        pulls = cfg["algorithm"].get("teacher_cfg") is not None
        teacher = build_teacher(obs, env, cfg, device) if pulls else None
        algorithm = PPO.construct_algorithm(obs, env, cfg, device)
        take_over_nan_check(algorithm.options.non_finite, cfg)  # type: ignore[attr-defined]
        if teacher is not None:
            algorithm.set_teacher(teacher)  # type: ignore[attr-defined]
        return algorithm

    def set_teacher(self, teacher: MLPModel) -> None:
        """Set the model of the teacher whose parameters the student's checkpoint will bring.

        Args:
            teacher: The model, untrained.

        Raises:
            NotImplementedError: If its distribution is not of the actor's kind.
        """
        self._fine_tuning.set_teacher(teacher)

    def _start_training(self) -> None:
        """Check what playing does not need, and fix the environment chunks of every update.

        Raises:
            ValueError: If an option does not suit the number of environments, on any rank, or asks
                for the pull to a teacher that did not come.
        """
        self._fine_tuning.check_training()
        self._ranks.run_together(self._check_sizes)
        budget = self.options.memory_budget_gb
        if budget is not None:
            self._gradient.num_env_chunks = self._ranks.run_together(
                lambda: self.memory_plan().num_env_chunks(budget * 1e9)
            )
        self._started = True

    def _check_sizes(self) -> None:
        num_steps, num_envs = self.storage.num_transitions_per_env, self.storage.num_envs
        self.options.check_training(num_steps, num_envs, self._recurrent)
        num_normalized = self._num_samples_of_ranks
        if self.normalize_advantage_per_mini_batch:
            num_normalized = self._mini_batches.num_samples_of_smallest
        self.options.check_normalization(num_normalized)

    def act(self, obs: TensorDict) -> torch.Tensor:
        """Sample actions and record what the update needs; no hidden state it does not.

        Args:
            obs: Observations of all environments, batch size (N,).

        Returns:
            Actions, shape (N, A).

        Raises:
            ValueError: If training starts here and an option does not suit the number of
                environments.
        """
        step = self.storage.step
        if not self._started:
            with torch.inference_mode(False):  # the runner's rollout has no gradients
                self._start_training()
        if step == 0:
            self._states.clear()
            if self._curiosity:
                self._curiosity.keep_reward_normalizer()
        if step in self._mini_batches.state_steps:
            models = (self.actor, self.critic)
            actor, critic = (hidden_state.clone(model.get_hidden_state()) for model in models)
            self._states.append((actor, critic))
        self._fine_tuning.observe(obs, step)
        actions = super().act(obs)
        self.transition.hidden_states = (None, None)
        return actions

    def process_env_step(
        self,
        obs: TensorDict,
        rewards: torch.Tensor,
        dones: torch.Tensor,
        extras: dict[str, Any],
    ) -> None:
        """Store the step and clear the states of finished episodes.

        Where time alone ended an episode, its value beyond that enters the last reward. The
        normaliser is left alone until the end of ``update()``, so that the replay sees what the
        rollout saw.

        Args:
            obs: Next observations; RND's reward comes from them.
            rewards: Rewards, shape (N,).
            dones: Which episodes ended with this step, shape (N,).
            extras: May hold "time_outs", shape (N,): which of them ended by time alone; and
                "final_obs", the observation groups at the end of the step, before any reset.
        """
        self.transition.rewards = rewards.clone()
        self.transition.dones = dones
        if self.rnd:
            self.intrinsic_rewards = self.rnd.get_intrinsic_reward(obs)
            self.transition.rewards += self.intrinsic_rewards
        if "time_outs" in extras:
            values: torch.Tensor = self.transition.values  # type: ignore[assignment]
            time_outs = extras["time_outs"].to(self.device).bool()
            final_obs = extras.get("final_obs")
            values = self._values_beyond(self.critic, values, final_obs, time_outs)
            self.transition.rewards += self.gamma * torch.where(time_outs, values, 0.0)
        self.storage.add_transition(self.transition)
        self.transition.clear()
        for model in (self.actor, self.critic, self._fine_tuning):
            model.reset(dones)

    def compute_returns(self, obs: TensorDict) -> None:
        """Compute advantages and returns; the value call at the end advances no state.

        Advantages are normalised over the rollouts of all processes.

        Args:
            obs: Observations after the last step, batch size (N,).
        """
        storage = self.storage
        last_values = value_without_advancing(self.critic, obs)
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
            count = self._num_samples_of_ranks
            mean, scale = mean_and_scale(advantages, count, self._ranks)
            advantages = (advantages - mean) / scale
        storage.advantages.copy_(advantages)

    def train_mode(self) -> None:
        """Set the models to training, and drop a rollout that an error or Ctrl+C broke off."""
        super().train_mode()
        self.storage.clear()

    def update(self) -> dict[str, float]:
        """Train actor and critic on the rollout and clear the storage, whole or not at all.

        Returns:
            What the runner logs under ``Loss/``: ``value``, ``surrogate`` and ``entropy`` (means
            per sample over all epochs), ``kl`` (mean KL divergence from the policy that acted),
            ``actor_grad_norm`` and ``critic_grad_norm`` (before clipping), ``episode_start_rate``,
            ``skipped_updates`` (all so far; alone where this is one), and where they are used
            ``rnd``, ``kl_coef`` and ``teacher_kl_coef``. With symmetry, what rsl_rl returns.

        Raises:
            ValueError: If a loss, gradient or result is NaN or inf and ``non_finite`` does not skip
                that. Parameters, optimisers and normalisers are then as before the update.
        """
        self._guard.keep()
        try:
            metrics = self._train_with_symmetry() if self.symmetry else self._train()
        except BaseException:
            self._restore()
            self._drop_rollout()
            raise
        if metrics is None:
            return self._skip_update()
        self._non_finite.passed()
        self._values_beyond.warn_once()
        self._fine_tuning.count_update()
        self.storage.clear()
        return metrics | {"skipped_updates": float(self._non_finite.num_skipped)}

    def _train_with_symmetry(self) -> dict[str, float] | None:
        """Leave the update to rsl_rl; return its metrics, None if anything is not finite.

        Raises:
            RuntimeError: What rsl_rl's update raised, if that was not for NaN.
            ValueError: Likewise.
        """
        try:
            metrics = super().update()
        except (RuntimeError, ValueError):  # rsl_rl cannot sample from a policy that is NaN
            if self._guard.is_finite():
                raise
            return None
        if not UPDATE_NORMALIZES:
            self._update_normalization()
        values = torch.tensor(list(metrics.values()), device=self.device)
        return None if self._guard.fetch(values) is None else metrics

    def _train(self) -> dict[str, float] | None:
        """Go through all epochs and mini-batches; return the metrics, None if not finite."""
        rollout, teacher_coef = self._rollout(), self._fine_tuning.teacher_coef
        # Filled, not copied: a copy from the host would wait for the device.
        rate = torch.full((), self.learning_rate, dtype=torch.float64, device=self.device)
        self._rate, steps = rate, []
        for _ in range(self.num_learning_epochs):
            for mini_batch in self._mini_batches.draw():
                self.optimizer.zero_grad()
                sums = self._guard.attempt(
                    partial(self._gradient.accumulate, mini_batch, rollout, teacher_coef),
                    otherwise=self._no_sums,
                )
                if self._fine_tuning.holds_actor:
                    self._raw_actor.zero_grad()  # the optimiser passes over it
                seen = self._optimizer_step(sums / mini_batch.num_samples)
                if self._curiosity:
                    chunks = self._gradient.num_env_chunks
                    errors = self._guard.attempt(
                        partial(self._curiosity.accumulate, rollout.all_groups, mini_batch, chunks),
                        otherwise=self._no_sums[:1],
                    )
                    seen = torch.cat((seen, self._curiosity.step(errors / mini_batch.num_samples)))
                steps.append(seen)
        self._update_normalization()
        return self._metrics(torch.stack(steps))

    def _rollout(self) -> PpoRollout:
        """View the storage as a rollout that begins with the stored states."""
        actor, critic = map(hidden_state.concatenate_envs, zip(*self._states, strict=True))
        teacher_params = self._fine_tuning.teacher_params()
        return self._gradient.rollout(self.storage, (actor, critic), teacher_params)

    def _optimizer_step(self, means: torch.Tensor) -> torch.Tensor:
        """Follow the KL divergence with the learning rate, clip actor and critic, step once.

        Args:
            means: Value loss, surrogate, entropy and KL divergence of the mini-batch. Shape: (4,).

        Returns:
            The same and the gradient norms of actor and critic before clipping. Shape: (6,).
        """
        means = self._ranks.sum_tensor(means)
        self.reduce_parameters()
        norms = self._clip_gradients()
        if self._adapts_rate:
            self._rate = follow_kl(self._rate, means[3], self.desired_kl)
            step_at(self.optimizer, self._rate)
        else:
            self.optimizer.step()
        return torch.cat((means, torch.stack(norms)))

    def _clip_gradients(self) -> list[torch.Tensor]:
        """Clip actor and critic, each on its own; return their norms before, shape () each."""
        return [
            nn.utils.clip_grad_norm_(parameters, self.max_grad_norm).to(self.device)
            for parameters in self._parameters_of_models
        ]

    @property
    def _adapts_rate(self) -> bool:
        """Whether the learning rate follows the KL divergence in this update."""
        adaptive = self.schedule == "adaptive" and bool(self.desired_kl)
        return adaptive and not self._fine_tuning.holds_actor

    def _set_learning_rate(self, learning_rate: float) -> None:
        self.learning_rate = learning_rate
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate

    def reduce_parameters(self) -> None:
        """Sum the gradients over processes; the divisor already counts all of them."""
        if self.symmetry:  # rsl_rl's own update, which averages
            super().reduce_parameters()
        else:
            self._ranks.sum_gradients(self._parameters(), self.grad_reduce_bucket_mb)

    def _parameters(self) -> list[nn.Parameter]:
        """Return all parameters; those of a shared encoder once."""
        return list(dict.fromkeys(chain(*self._parameters_of_models)))

    def _update_normalization(self) -> None:
        """Let the normalisers learn from the rollout: after its use, so that replays agree."""
        actor = None if self._fine_tuning.holds_actor else self._raw_actor
        models = [model for model in (self._raw_critic, actor, self.rnd) if model is not None]
        for steps in self._step_batches:
            for model in models:
                model.update_normalization(self.storage.observations[steps].flatten(0, 1))

    def _metrics(self, steps: torch.Tensor) -> dict[str, float] | None:
        """Average over optimiser steps, shape (S, 6 or 7), and fetch the metrics at once."""
        names = ["value", "surrogate", "entropy", "kl", "actor_grad_norm", "critic_grad_norm"]
        if self._curiosity:
            names.append("rnd")
        rate = self.storage.dones.float().mean().view(1)
        kl_of_last_epoch = steps[-self.num_mini_batches :, 3].mean().view(1)
        on_device = torch.cat((steps.mean(0), rate, kl_of_last_epoch, self._rate.view(1)))
        fetched = self._guard.fetch(on_device)
        if fetched is None:
            return None
        *values, rate, kl, learning_rate = fetched
        if self._adapts_rate:
            self._set_learning_rate(learning_rate)
        metrics = {**dict(zip(names, values, strict=True)), "episode_start_rate": rate}
        if self.options.policy_loss == "kl_penalty":
            metrics["kl_coef"] = self._gradient.policy_loss.kl_coef
            if not self._fine_tuning.holds_actor:
                self._gradient.policy_loss.adapt(kl)
        if self.options.teacher_kl_coef > 0:
            metrics["teacher_kl_coef"] = self._fine_tuning.teacher_coef
        return metrics

    def _skip_update(self) -> dict[str, float]:
        """Undo the update, drop the rollout, and say where NaN or inf came from.

        Raises:
            ValueError: If training shall not go on.
        """
        self._restore()
        stored = self.storage.observations
        models = (self._raw_actor, self._raw_critic)
        groups = {group for model in models for group in observed_groups(model, stored)}
        if self.rnd:
            groups.update(self.rnd.obs_groups["rnd_state"])
        names = ("rewards", "values", "actions", "actions_log_prob", "returns")
        read = {name: getattr(self.storage, name) for name in names}
        try:
            self._guard.raise_error()
            source = find_source(stored, groups, read, self._add_gradients, self._ranks)
        finally:
            self._drop_rollout()
        self._non_finite.met(source)
        return {"skipped_updates": float(self._non_finite.num_skipped)}

    def _restore(self) -> None:
        self._guard.restore()
        self.learning_rate = self.optimizer.param_groups[0]["lr"]  # rsl_rl's update moves it

    def _drop_rollout(self) -> None:
        """Let the environments go on from the states they are in, cleared if not finite."""
        self.optimizer.zero_grad()
        for model in (self.actor, self.critic, self._fine_tuning):
            model.reset(hidden_state=hidden_state.clear_non_finite(model.get_hidden_state()))
        if self._curiosity:
            self._curiosity.restore_reward_normalizer()
        self.storage.clear()

    def _add_gradients(self) -> None:
        self._gradient_of(slice(None))

    def _gradient_of(self, envs: slice) -> None:
        """Compute the current parameters' gradient on some environments."""
        self.optimizer.zero_grad()
        mini_batch, teacher_coef = self._mini_batch_of(envs), self._fine_tuning.teacher_coef
        self._gradient.accumulate(mini_batch, self._rollout(), teacher_coef)

    def _mini_batch_of(self, envs: slice) -> MiniBatch:
        """Return some environments of this process as a mini-batch."""
        num_steps = 1 if self._recurrent else self.storage.num_transitions_per_env
        indices = torch.arange(num_steps * self.storage.num_envs, device=self.device)
        chosen = indices.view(num_steps, -1)[:, envs].flatten()
        return self._mini_batches.of_envs(chosen)

    def memory_plan(self) -> MemoryPlan:
        """Predict what ``update()`` will take, from its gradient on a few environments.

        Parameters, states and storage are left as they are; gradients are dropped.
        """
        live = [model.get_hidden_state() for model in (self.actor, self.critic)]
        if not self._states:  # before the first rollout
            blank = self._gradient.blank_states(self.storage)
            self._states = [blank] * len(self._mini_batches.state_steps)
        num_envs = -(-self.storage.num_envs // self.num_mini_batches)
        lengths = self.storage.num_transitions_per_env, self.options.gradient_length
        blocks = self._gradient.num_blocks(self._raw_actor, num_envs, min(filter(None, lengths)))
        parameters = [
            *self._parameters(),
            *(self._curiosity.parameters() if self._curiosity else ()),
        ]
        all_alike = self.storage.num_envs % self.num_mini_batches == 0
        plan = plan_memory(self._gradient_of_first, num_envs, blocks, parameters, all_alike)
        for parameter in parameters:
            parameter.grad = None
        for model, state in zip((self.actor, self.critic), live, strict=True):
            model.reset(hidden_state=state)
        return plan

    def _gradient_of_first(self, num_envs: int, num_env_chunks: int) -> None:
        """Compute the gradient on the first environments, that of RND's predictor too."""
        kept, self._gradient.num_env_chunks = self._gradient.num_env_chunks, num_env_chunks
        envs = slice(0, num_envs)
        try:
            self._gradient_of(envs)
            if self._curiosity:
                mini_batch, rollout = self._mini_batch_of(envs), self._rollout()
                self._curiosity.accumulate(rollout.all_groups, mini_batch, num_env_chunks)
        finally:
            self._gradient.num_env_chunks = kept

    def save(self) -> dict[str, Any]:
        """Return what a checkpoint holds: rsl_rl's, and this algorithm's own under "rsl_tbptt"."""
        obs, models = (
            self.storage.observations,
            {"actor": self._raw_actor, "critic": self._raw_critic},
        )
        own = {
            "kl_coef": self._gradient.policy_loss.kl_coef,
            "fine_tuning": self._fine_tuning.state_dict(),
            "models": {role: describe(model, obs) for role, model in models.items()},
        }
        return super().save() | {"rsl_tbptt": own}

    def load(self, loaded_dict: dict, load_cfg: dict | None, strict: bool) -> bool:
        """Load a PPO checkpoint as rsl_rl does, after checking that all of it fits.

        A distillation checkpoint makes its student the actor, normaliser and distribution included,
        with the action noise ``student_action_std``; the critic is warmed up first. Its teacher is
        what ``teacher_kl_coef`` pulls towards.

        Args:
            loaded_dict: The checkpoint.
            load_cfg: What to load, or None for everything.
            strict: Whether parameters must match exactly.

        Returns:
            Whether the runner shall take over the iteration.

        Raises:
            ValueError: If the parameters do not fit, or if the models are known to have been
                configured otherwise. Nothing is changed then.
        """
        obs, wants_actor = self.storage.observations, load_cfg is None or load_cfg.get("actor")
        if "student_state_dict" in loaded_dict and wants_actor:
            for role, model in (("actor", self._raw_actor), ("teacher", self._fine_tuning.teacher)):
                if strict and model is not None:
                    check_configured_alike(model, obs, role, loaded_dict, None)
            self._fine_tuning.start(loaded_dict, strict)
            return False
        roles = {"actor": self._raw_actor, "critic": self._raw_critic, "rnd": self.rnd}
        for role, model in roles.items():
            if model is None or (load_cfg is not None and not load_cfg.get(role)):
                continue
            key = f"{role}_state_dict"
            if key not in loaded_dict:
                raise ValueError(
                    f"The checkpoint lacks '{key}', it holds {sorted(loaded_dict)}: expected one of"
                    " PPO or distillation of rsl_rl 5."
                )
            if strict:
                check_matches(model, loaded_dict[key], role)
                if role != "rnd":
                    check_configured_alike(model, obs, role, loaded_dict, None)
        own = loaded_dict.get("rsl_tbptt", {})
        self._fine_tuning.load_state_dict(own.get("fine_tuning", {}))
        load_iteration = super().load(loaded_dict, load_cfg, strict)
        self.learning_rate = self.optimizer.param_groups[0]["lr"]  # rsl_rl 5.0 leaves it
        self._gradient.policy_loss.kl_coef = own.get("kl_coef", self.options.kl_penalty_coef)
        return load_iteration

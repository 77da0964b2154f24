"""PPO whose recurrent models are trained by truncated BPTT."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from rsl_rl.storage import RolloutStorage

from rsl_tbptt.algorithms.health import explained_variance
from rsl_tbptt.algorithms.optimizers import follow_kl, set_rate, step_at, update_normalization
from rsl_tbptt.algorithms.options import PpoOptions
from rsl_tbptt.algorithms.ppo_rollouts import PpoRollouts
from rsl_tbptt.algorithms.step_checks import check_types
from rsl_tbptt.algorithms.transaction import whole_or_nothing
from rsl_tbptt.compat.versions import PPO, UPDATE_NORMALIZES, MLPModel, clip_gradients
from rsl_tbptt.core.distributed import Ranks


class TbpttPPO(PpoRollouts):
    """rsl_rl's PPO with truncated BPTT for recurrent actors and critics.

    A drop-in: same constructor, storage, models, checkpoints and runner. A mini-batch is a set of
    whole environments (or windows, see ``minibatch_unit``), replayed with the current weights from
    the state the rollout started with. The gradient is cut every ``gradient_length`` steps; the
    windows' gradients add up to one optimiser step. Feed-forward models see single steps.
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
            symmetry_cfg: rsl_rl's description of symmetries, or None; for models without memory,
                whose samples rsl_rl's own update mirrors.
            **options: Fields of :class:`PpoOptions`.

        Raises:
            ValueError: If an option is unknown, invalid or contradicts another, if the actor has no
                distribution, or if a model cannot read a group of that type.
            NotImplementedError: If a model cannot be replayed, ``symmetry_cfg`` meets one with
                memory, or ``student_action_std`` finds no parameter to set.
        """
        self.options = PpoOptions.parse(options)
        if actor.distribution is None:
            raise ValueError(
                "actor.distribution_cfg is None, expected a distribution, such as"
                " {'class_name': 'GaussianDistribution', 'init_std': 1.0}: PPO draws actions."
            )
        recurrent = actor.is_recurrent or critic.is_recurrent
        given = {k: v for k, v in vars(self.options).items() if k in _TAKEN_BY_RSL_RL}
        if symmetry_cfg:
            self.options.check_symmetry(recurrent, _TAKEN_BY_RSL_RL)
            given["symmetry_cfg"] = symmetry_cfg
        self.options.check_rollout(storage.num_transitions_per_env, recurrent)
        super().__init__(
            actor,
            critic,
            storage,
            **{**given, "max_grad_norm": self.options.max_grad_norm or math.inf},
            device=device,
            rnd_cfg=rnd_cfg,
            multi_gpu_cfg=multi_gpu_cfg,
        )
        self._raw_actor, self._raw_critic = self.actor, self.critic  # ``compile`` replaces them
        self._models = {"actor": self._raw_actor, "critic": self._raw_critic}
        check_types(self._models, storage.observations)
        self._prepare_surroundings()
        self._prepare_updates()
        self._is_built = True

    @whole_or_nothing
    def update(self) -> dict[str, torch.Tensor]:
        """Train actor and critic on the rollout and clear the storage; a failing update is undone.

        Returns:
            The metrics, which the runner logs under ``Loss/``; docs/reference/metrics.md lists
            them. ``metrics`` keeps them.

        Raises:
            ValueError: If a loss, gradient or result is NaN or inf and ``non_finite`` does not skip
                it. Parameters, optimiser and normaliser are then as before the update.
        """
        if self.symmetry:
            return self._update_by_rsl_rl()
        self._begin_update()
        holds_actor, concludes = self._fine_tuning.holds_actor, not self._ranks.together
        num_parts, steps, health = self.transaction.num_micro_batches, [], {}
        for _ in range(self.options.num_learning_epochs):
            for segments, num_samples in self.batches.draw():
                arguments = segments, num_samples, self._ranks
                scales = self.gradient.scales(self._rollouts[2], *arguments)
                fixed = {"num_samples": num_samples, "holds_actor": holds_actor}
                options = {"num_parts": num_parts, "first": not steps, "concludes": concludes}
                results = self.recorder(self.step, segments, scales, **fixed, **options)
                if not concludes:  # the recording ends where the ranks exchange gradients
                    results = self.recorder(self.conclude, *self._exchanged(*results), **fixed)
                means, of_first = results
                steps.append(means)
                health |= of_first
        metrics = self._metrics(torch.stack(steps), health)
        self._update_normalization()
        return metrics

    def step(
        self,
        segments: Sequence[torch.Tensor],
        scales: Mapping[str, torch.Tensor],
        *,
        num_samples: int,
        num_parts: int,
        holds_actor: bool = False,
        first: bool = False,
        concludes: bool = True,
    ) -> tuple[Any, ...]:
        """Make one optimiser step; it reads and writes tensors at fixed addresses only.

        Args:
            segments: The segments of the mini-batch; see ``Indices``.
            scales: What the mini-batch is normalised by; see ``ActorCritic.scales``.
            num_samples: Its samples, over all processes.
            num_parts: Minimum number of micro-batches, which run one after the other.
            holds_actor: Whether the actor's own gradient is discarded. Its auxiliary heads learn
                nevertheless.
            first: Whether the step also measures the health of the replay.
            concludes: Whether the optimisers step; otherwise the gradients are returned.

        Returns:
            The results of :meth:`conclude`, or its arguments.
        """
        self._zero_grad()
        gradient, scales, sums = self.gradient, dict(scales), {}
        divisor = scales.pop("divisor", num_samples)
        learns = not holds_actor or gradient.has_heads, True
        with gradient.first_replay.watching(first):
            objectives = gradient.objectives(self._rollouts, self._states, **scales)
            for index, objective in enumerate(objectives):
                with self.recorder.stream(index), torch.set_grad_enabled(learns[index]):
                    sums |= objective.accumulate(self.batches.groups, segments, divisor, num_parts)
            for extension in self.extensions:
                sums |= extension.accumulate(self._rollouts[2], segments, num_samples, num_parts)
            self.recorder.join()
        health = gradient.health(holds_actor=holds_actor) if first else {}
        results = self._sums_of_step(sums, gradient.reported, health)
        if not concludes:
            return results
        return self.conclude(*results, num_samples=num_samples, holds_actor=holds_actor)

    def conclude(
        self,
        sums: torch.Tensor,
        health: dict[str, torch.Tensor],
        gradients: Sequence[torch.Tensor | None],
        *,
        num_samples: int,
        holds_actor: bool,
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Clip the gradients and step the optimisers, at a rate that may follow the KL divergence.

        Args:
            sums: Sums of the reported values over the mini-batch. Shape: (M,).
            health: Measurements of the replay, returned as they are.
            gradients: Gradients of ``parameters``.
            num_samples: Samples of the mini-batch.
            holds_actor: Whether the actor's gradient is discarded.

        Returns:
            Means of the reported values and gradient norms of actor and critic, (M + 2,); health.
        """
        means, options = sums / num_samples, self.options
        self._set_gradients(gradients)
        if holds_actor:
            # Gradients that reached a shared encoder, or the layers below auxiliary heads.
            self.gradient.actor.model.zero_grad()
        of_models = [self.gradient.actor.parameters, self.gradient.critic.parameters]
        norms = torch.stack(clip_gradients(of_models, options.max_grad_norm or math.inf))
        if (desired_kl := options.followed_kl()) is not None and not holds_actor:
            self.rate.copy_(follow_kl(self.rate, means[0], desired_kl))
        step_at(self.optimizer, self.rate)
        for extension in self.extensions:
            extension.step(self.rate)
        return torch.cat((means, norms)), health

    def _update_by_rsl_rl(self) -> dict[str, torch.Tensor]:
        """Train models without memory by rsl_rl's own update, which mirrors their samples."""
        means = PPO.update(self)
        if not UPDATE_NORMALIZES:
            self._update_normalization()
        means |= {"rate": self.learning_rate, "kl_of_last_epoch": 0.0, "teacher": 0.0}
        return {name: self.rate.new_tensor(value) for name, value in means.items()}

    def _begin_update(self) -> None:
        """Put everything that the steps of an update read into its place."""
        rollouts, states = self.gradient.rollouts(self.storage, self.states)
        names = "actor", "critic", "everything"
        pairs = zip(names, rollouts, strict=True)
        self._rollouts = [self._placed(name, rollout) for name, rollout in pairs]
        pairs = zip(names, states, strict=False)
        self._states = [self._placed_state(f"{name}/state", state) for name, state in pairs]
        self.gradient.policy_loss.begin_update(self.imitation.coef)
        self._begin_steps(self._rollouts[0].labels.keys())

    def _add_gradients_of(self, envs: slice, num_micro_batches: int) -> None:
        self._rollouts, self._states = self.gradient.rollouts(self.storage, self.states)
        self.gradient.policy_loss.begin_update(self.imitation.coef)
        segments, num_samples = self.batches.of_envs(envs)
        arguments = segments, num_samples, Ranks(together=False)
        scales = self.gradient.scales(self._rollouts[2], *arguments)
        self.step(
            segments, scales, num_samples=num_samples, num_parts=num_micro_batches, concludes=False
        )

    def _update_normalization(self) -> None:
        """Update the normalisers with the rollout."""
        actor = None if self._fine_tuning.holds_actor else self._raw_actor
        models = [model for model in (self._raw_critic, actor, self.rnd) if model]
        update_normalization(models, self.storage.observations, self._step_batches)

    def _metrics(
        self, steps: torch.Tensor, health: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Return the metrics of an update with these optimiser steps, (S, M). Shape: () each."""
        stored, models = self.storage, {**self._models, "teacher": self.imitation.teacher}
        names = (*self.gradient.reported, "actor_grad_norm", "critic_grad_norm")
        explained = explained_variance(stored.values, stored.returns)
        health = {**health, "explained_variance/critic": explained}
        return {
            # Along rows: the last bits of a mean over columns depend on their number.
            **dict(zip(names, steps.T.contiguous().mean(1), strict=True)),
            "kl_of_last_epoch": steps[-self.options.num_mini_batches :, 0].mean(),
            **self._shared_metrics(self.batches.num_samples, health, models),
            "rate": self.rate,
        }

    def _advance(self, metrics: dict[str, float]) -> dict[str, float]:
        set_rate(self.optimizer, metrics.pop("rate"))
        kl, policy_loss = metrics.pop("kl_of_last_epoch"), self.gradient.policy_loss
        if self.options.policy_loss == "kl_penalty":
            metrics["kl_coef"] = policy_loss.kl_coef
            if not self._fine_tuning.holds_actor:
                policy_loss.adapt(kl)
        for extension in self.extensions:
            extension.advance(metrics)
        return metrics

    def _kept(self) -> list[Any]:
        return [*super()._kept(), self.gradient.policy_loss]


_TAKEN_BY_RSL_RL = {
    name for base in PPO.__mro__ for name in inspect.signature(base.__init__).parameters
}
"""Arguments of the constructor of rsl_rl's PPO; older releases have fewer."""

"""PPO whose recurrent models are trained by truncated BPTT: read from top to bottom."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from rsl_rl.env import VecEnv
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from rsl_tbptt.algorithms import fused, optimizers
from rsl_tbptt.algorithms.base import Algorithm, Values, checked_config
from rsl_tbptt.algorithms.batches import Batches, Indices
from rsl_tbptt.algorithms.env_step import TruncationBootstrap, value_without_advancing
from rsl_tbptt.algorithms.find_nan import Inputs
from rsl_tbptt.algorithms.fine_tuning import FineTuning
from rsl_tbptt.algorithms.frames import deduplicate_frames
from rsl_tbptt.algorithms.heads import Heads
from rsl_tbptt.algorithms.health import FirstReplay, explained_variance
from rsl_tbptt.algorithms.imitation import Imitation, build_teacher
from rsl_tbptt.algorithms.options import PpoOptions
from rsl_tbptt.algorithms.replay import Objective, Policy, Replay, observations_of
from rsl_tbptt.algorithms.rnd import RndReward, rnd_objective
from rsl_tbptt.algorithms.undo import whole_or_nothing
from rsl_tbptt.checkpoints.describing import check_fits
from rsl_tbptt.compat.checkpoints import as_models
from rsl_tbptt.compat.versions import PPO, MLPModel, rnd_optimizer
from rsl_tbptt.core import hidden_state, losses
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.rollout import WEIGHT, Rollout, Samples, generalized_advantages
from rsl_tbptt.extensions import Term


class TbpttPPO(Algorithm, PPO):
    """rsl_rl's PPO with truncated BPTT for recurrent actors and critics.

    A drop-in: same constructor, storage, models, checkpoints and runner. A mini-batch is a set of
    whole environments (or windows, see ``minibatch_unit``), replayed with the current weights from
    the state the rollout started with. The gradient is cut every ``gradient_length`` steps; the
    windows' gradients add up to one optimiser step. Feed-forward models see single steps.
    """

    options: PpoOptions
    policy_role = "actor"

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
            symmetry_cfg: Must be None.
            **options: Fields of :class:`PpoOptions`.

        Raises:
            ValueError: If an option is unknown, invalid or contradicts another, if the actor has no
                distribution, or if a model cannot read a group of that type.
            NotImplementedError: If a model cannot be replayed, ``symmetry_cfg`` is set, or
                ``student_action_std`` finds no parameter to set.
        """
        self.options = PpoOptions.parse(options)
        if actor.distribution is None:
            raise ValueError(
                "actor.distribution_cfg is None, expected a distribution, such as"
                " {'class_name': 'GaussianDistribution', 'init_std': 1.0}: PPO draws actions."
            )
        self._has_memory = actor.is_recurrent or critic.is_recurrent
        arguments = {k: v for k, v in vars(self.options).items() if k in _TAKEN_BY_RSL_RL}
        if symmetry_cfg:
            raise NotImplementedError(
                "symmetry_cfg is set, expected None: no hidden state exists for the mirrored"
                " trajectory: use examples/extensions/mirror.py, or rsl_rl's PPO without memory."
            )
        self.options.check_rollout(storage.num_transitions_per_env, self._has_memory)
        super().__init__(
            actor,
            critic,
            storage,
            **{**arguments, "max_grad_norm": self.options.max_grad_norm or math.inf},
            device=device,
            rnd_cfg=rnd_cfg,
            multi_gpu_cfg=multi_gpu_cfg,
        )
        # ``compile`` replaces ``actor`` and ``critic``.
        self.models: dict[str, MLPModel] = {"actor": self.actor, "critic": self.critic}
        self.set_up(self.models)

    def build(self) -> None:
        """Make mini-batches, extensions and objectives."""
        options, storage = self.options, self.storage
        actor, critic = self.models.values()
        device, sizes = storage.dones.device, (storage.num_transitions_per_env, storage.num_envs)
        self.batches = Batches(*sizes, options, self.ranks, device, has_memory=self._has_memory)
        self.largest_mini_batch = self.batches.num_envs_of_largest
        num_envs = self.batches.num_samples // sizes[0]
        self._step_batches = optimizers.step_batches(sizes[0], num_envs, device)
        self._bootstrap = TruncationBootstrap(critic, storage)
        self.first_replay = FirstReplay()
        """Metrics of the first replay of an update."""
        self.advantage_scale = torch.tensor([0.0, 1.0], dtype=storage.rewards.dtype, device=device)
        """Offset and scale of the advantages of a mini-batch. Shape: (2,)."""
        self.states: list[tuple[HiddenState, HiddenState]] = []
        """States of actor and critic before the first steps of segments; (L, N, H) each."""

        self.imitation = Imitation(options, self)
        """The teacher that the actor imitates; without one it has no effect."""
        self.fine_tuning = FineTuning(options, self)
        self.extensions = [
            self.imitation,
            self.fine_tuning,
            Heads(options, self, actor),
            *([RndReward(options, self)] if self.rnd else []),
        ]
        self.modules = [actor, critic]

        memory = options, self.largest_mini_batch, self.batches.window_length
        of_actor = Replay(actor, *memory, self.first_replay, needs_distribution=True)
        of_critic = Replay(critic, *memory)
        self.actor_objective = Objective(of_actor, self.policy_losses)
        self.critic_objective = Objective(of_critic, self.value_losses, options.value_loss_coef)
        self.objectives = [self.actor_objective, self.critic_objective]
        if self.rnd:
            self.objectives.append(rnd_objective(self.rnd))
            self.modules += [self.rnd.predictor, self.rnd.state_normalizer]
            self.other_optimizers.append(rnd_optimizer(self))

    @staticmethod
    def construct_algorithm(obs: TensorDict, env: VecEnv, cfg: dict, device: str) -> PPO:
        """Build models, storage and algorithm from the runner's config, as rsl_rl does.

        Args:
            obs: Observations of the environment; groups that are no tensors are left out.
            env: The environment.
            cfg: The runner's config. The teacher of ``teacher_cfg`` sees observation set "teacher".
                "check_for_nan" is set to False: the algorithm checks instead.
            device: Device of the update.

        Raises:
            ValueError: If the config or an observation group is not valid; see ``checked_config``.
        """
        obs, configs = checked_config(obs, cfg)
        algorithm = PPO.construct_algorithm(obs, env, cfg, device)
        if isinstance(algorithm, TbpttPPO):
            algorithm._join_runner(obs, env, cfg, configs)
            teacher_cfg = algorithm.options.teacher_cfg
            if teacher_cfg is not None and algorithm.options.teacher_coef > 0:
                algorithm.set_teacher(build_teacher(obs, env, cfg, teacher_cfg, device))
        return algorithm

    def set_teacher(self, teacher: MLPModel) -> None:
        """Set the teacher's model; its parameters come from a checkpoint or ``teacher_checkpoint``.

        Raises:
            ValueError: If a file is named for a teacher without parameters.
            NotImplementedError: If its distribution is of another kind than the actor's, which
                ``teacher_loss="kl"`` needs.
        """
        self.imitation.set_teacher(teacher)

    @torch.no_grad()  # a graph of your own loop's gradients would belong to another stream
    def act(self, obs: TensorDict) -> torch.Tensor:
        """Sample actions (N, A) for observations (N,) and record the values that the update needs.

        Raises:
            ValueError: If training starts here and the teacher is missing or options do not fit the
                number of environments; or if observations differ in form from the first ones.
        """
        obs, step = self.begin_step(obs, self.batches.check_training), self.storage.step
        if step == 0:
            self.states = []
        if step in self.batches.state_steps:
            actor, critic = (model.get_hidden_state() for model in self.models.values())
            self.states.append((hidden_state.clone(actor), hidden_state.clone(critic)))
        actions = super().act(obs)
        self.transition.hidden_states = (None, None)
        return actions.clone()  # the environment may change them

    def process_env_step(
        self, obs: TensorDict, rewards: torch.Tensor, dones: torch.Tensor, extras: dict[str, Any]
    ) -> None:
        """Store the step and clear the states of finished episodes.

        The normaliser is updated at the end of ``update()``, so that the replay uses the same one.

        Args:
            obs: Next observations; RND computes its reward from them.
            rewards: Rewards, shape (N,).
            dones: Which episodes ended with this step, shape (N,).
            extras: May have "time_outs", shape (N,): episodes that ended by time alone, whose
                bootstrap value is added to the reward; and "final_obs", before any reset.

        Raises:
            ValueError: If :class:`StepChecks` or :class:`TruncationBootstrap` rejects the step.
        """
        rewards, dones = self.step_checks.step(obs, rewards, dones)
        assert self.transition.values is not None
        beyond = self._bootstrap(self.critic, self.transition.values, extras)
        self.store(obs, rewards, dones, self.options.gamma * beyond)

    def compute_returns(self, obs: TensorDict) -> None:
        """Compute advantages, normalised over all processes, and returns; no state advances.

        ``obs`` follows the last step and has batch size (N,); it is checked as in :meth:`act`.
        """
        last_values = value_without_advancing(self.critic, self.step_checks.observations(obs))
        stored, options = self.storage, self.options
        rewards, values = stored.rewards.squeeze(-1), stored.values.squeeze(-1)
        discounts = options.gamma, options.lam
        advantages = generalized_advantages(rewards, values, last_values, self.dones, *discounts)
        advantages = advantages.unsqueeze(-1)
        # In place: the runner calls this in inference mode; autograd refuses tensors made there.
        stored.returns.copy_(advantages + stored.values)
        if not options.normalize_advantage_per_mini_batch:
            mean, std = self.ranks.mean_and_std(advantages, self.batches.num_samples)
            advantages = (advantages - mean) / (std + 1e-8)
        stored.advantages.copy_(advantages)

    @whole_or_nothing
    def update(self) -> Values:
        """Train actor and critic on the rollout and clear the storage; a failing update is undone.

        Returns:
            The metrics, which the runner logs under ``Loss/``; docs/reference/metrics.md lists
            them. ``metrics`` keeps them.

        Raises:
            ValueError: If a loss, gradient or result is NaN or inf and ``non_finite`` does not skip
                it. Parameters, optimiser and normaliser are then as before the update.
        """
        self.begin_update()
        steps, sizes, health = [], [], {}
        for _ in range(self.options.num_learning_epochs):
            for batch in self.batches.draw():
                results, measured = self.step(batch, first=not steps)
                steps.append(results)
                sizes.append(batch.num_samples)
                health |= measured
        shared = self.shared_metrics(self.batches.num_samples)
        metrics = {**means_of(steps, sizes), **shared, **health, "rate": self.rate}
        self._update_normalizers()
        return metrics

    def begin_update(self) -> None:
        """Put everything that the steps of an update read into its place."""
        self._begin_objectives()
        for index, objective in enumerate(self.objectives):
            read: Any = objective.rollout, objective.states
            placed = self.recorder.place(f"objective {index}", read)
            objective.rollout, objective.states = placed
        self.begin_steps(self.advantage_scale, self.storage.values, self.storage.returns)

    def step(self, batch: Indices, *, first: bool = False) -> tuple[Values, Values]:
        """Make one optimiser step; it reads and writes tensors at fixed addresses only.

        Args:
            batch: The samples of the step.
            first: Whether the step also measures the health of the replay.

        Returns:
            Sums of the terms, and gradient norms; measurements of a first step, () each.
        """
        self._normalize(batch, self.ranks)
        sizes = {"num_samples": batch.num_samples, "num_parts": self.transaction.num_micro_batches}
        sums, health = self.recorder(self.gradients, batch.segments, **sizes, first=first)
        sums = self.exchange(sums)
        norms = self.recorder(self.conclude, sums, num_samples=batch.num_samples)
        return {**sums, **norms}, health

    def gradients(
        self,
        segments: tuple[torch.Tensor, ...],
        *,
        num_samples: int,
        num_parts: int,
        first: bool = False,
    ) -> tuple[Values, Values]:
        """Compute the gradients of a mini-batch on this rank.

        Args:
            segments: The segments of each group of windows; see ``Indices``.
            num_samples: Samples of the mini-batch, over all processes.
            num_parts: Minimum number of micro-batches, which run one after the other.
            first: Whether to measure the health of the replay.

        Returns:
            Sums of the terms, and the measurements, () each.
        """
        sums: Values = {}
        groups = [*zip(self.batches.groups, segments, strict=True)]
        with self.new_gradients(), self.first_replay.watching(first):
            for index, objective in enumerate(self.objectives):
                with self.recorder.stream(index):
                    for group, (rows, places) in groups:
                        state = hidden_state.select_envs(objective.states, places)
                        _, terms = objective.accumulate(group, rows, state, num_samples, num_parts)
                        for name, value in terms.items():
                            sums[name] = sums[name] + value if name in sums else value
            self.recorder.join()
        if not first:
            return sums, {}
        self.actor_objective.check_gradient("the surrogate loss and teacher_loss")
        self.critic_objective.check_gradient("the value loss")
        explained = explained_variance(self.storage.values, self.storage.returns)
        models = {**self.models, "teacher": self.imitation.teacher}
        health = {**self.first_replay.metrics(), "explained_variance/critic": explained}
        return sums, self.measure_health(models, health)

    def conclude(self, sums: Values, *, num_samples: int) -> Values:
        """Clip the gradients and step the optimisers, at a rate that may follow the KL divergence.

        Args:
            sums: Sums of the terms over the mini-batch. Shape: () each.
            num_samples: Its samples.

        Returns:
            Gradient norms of actor and critic before clipping, () each.
        """
        norms = optimizers.clip_gradients(self.objectives[:2], self.options.max_grad_norm)
        if (desired_kl := self.options.followed_kl()) is not None and not self.holds_actor:
            of_engine = fused if self.actor_objective.replay.runs_triton else optimizers
            of_engine.follow_kl(self.rate, sums["kl"], num_samples, desired_kl)
        self.step_optimizers()
        return {"actor_grad_norm": norms[0], "critic_grad_norm": norms[1]}

    def policy_losses(self, policy: Policy, samples: Samples) -> Iterator[Term]:
        """Yield the terms of the actor's loss: PPO's own, then those of extensions.

        References:
            Schulman et al. (2017), arXiv 1707.06347, equations 7 and 9.
        """
        options, advantages = self.options, samples["advantages"]
        if options.normalize_advantage_per_mini_batch:
            offset, scale = self.advantage_scale
            advantages = (advantages - offset) / scale
        self.change_outputs(policy, samples)
        terms = policy.surrogate(advantages, options.clip_param)
        self.first_replay.see_log_ratio(terms.log_prob, samples["log_prob"])
        yield "surrogate", 1.0, terms.loss
        yield "kl", 0.0, terms.kl
        yield "clip_fraction", 0.0, terms.is_clipped
        yield "entropy", -options.entropy_coef, terms.entropy
        yield from self.losses_of_extensions(policy, samples)

    def value_losses(self, critic: Policy, samples: Samples) -> Iterator[Term]:
        """Yield the critic's loss."""
        clip = self.options.clip_param if self.options.use_clipped_value_loss else None
        of_engine = fused if critic.replay.runs_triton else losses
        errors = of_engine.value_error(critic.value, samples["returns"], samples["values"], clip)
        yield "value", 1.0, errors.squeeze(-1)

    @property
    def holds_actor(self) -> bool:
        """Whether this update does not train the actor, but the critic and auxiliary heads."""
        return self.fine_tuning.holds_actor

    def _begin_objectives(self) -> None:
        """Give each objective the stored rollout, as its model sees it, and its start states."""
        stored = self.storage
        everything = Rollout.from_dones(stored.observations, {}, self.dones)
        labels = {
            "advantages": stored.advantages.squeeze(-1),
            "actions": stored.actions,
            "log_prob": stored.actions_log_prob.squeeze(-1),
            "old": stored.distribution_params,
            **self.labels_of_extensions(),
        }
        weight = {WEIGHT: labels[WEIGHT]} if WEIGHT in labels else {}
        of_critic = {"returns": stored.returns, "values": stored.values, **weight}
        actor, critic, *others = self.objectives
        pairs = (actor, labels), (critic, of_critic)
        for (objective, read), states in zip(pairs, zip(*self.states, strict=True), strict=True):
            obs = observations_of(objective.replay.model, stored.observations)
            objective.rollout = everything.with_observations(obs, read)
            objective.states = hidden_state.concatenate_envs(states)
        deduplicate_frames(actor.rollout.obs, critic.rollout.obs)
        for objective in others:  # RND's predictor
            obs = stored.observations.select(*objective.replay.model.obs_groups["rnd_state"])
            objective.rollout, objective.states = everything.with_observations(obs, {}), None

    def _update_normalizers(self) -> None:
        """Update the normalisers with the rollout."""
        actor, critic = self.models.values()
        models = [model for model in (critic, not self.holds_actor and actor, self.rnd) if model]
        optimizers.update_normalization(models, self.storage.observations, self._step_batches)

    def _normalize(self, batch: Indices, ranks: Ranks) -> None:
        """Set offset and scale of a mini-batch's advantages, over all ranks, if it is asked for."""
        if self.options.normalize_advantage_per_mini_batch:
            rollout = self.actor_objective.rollout
            rows = self.batches.rows(rollout, batch.segments)
            advantages = rollout.rows.labels["advantages"][rows]
            mean, std = ranks.mean_and_std(advantages, batch.num_samples)
            self.advantage_scale.copy_(torch.stack((mean, std + 1e-8)))

    def _add_gradients_of(self, envs: slice, num_micro_batches: int) -> None:
        """Compute the gradient of an epoch, on this rank and some environments."""
        self._begin_objectives()
        batch = self.batches.of_envs(envs)
        self._normalize(batch, Ranks(together=False))
        self.gradients(batch.segments, num_samples=batch.num_samples, num_parts=num_micro_batches)

    def _advance(self, metrics: dict[str, float]) -> dict[str, float]:
        optimizers.set_rate(self.optimizer, metrics.pop("rate"))
        for extension in self.extensions:
            extension.advance(metrics)
        return metrics

    def _conclude(self) -> dict[str, float]:
        """End an iteration, as the base class does; warn of time-outs without observation."""
        self._bootstrap.warn_once()
        return super()._conclude()

    def models_that_act(self) -> Iterable[Any]:
        """Return actor and critic, in compiled form."""
        return self.actor, self.critic

    def stateful_models(self) -> dict[str, Any]:
        """Return all models with hidden states, by their roles in checkpoints."""
        teacher: Any = self.imitation.model
        return self.models if teacher is None else {**self.models, "teacher": teacher}

    def _read_groups(self) -> set[str]:
        return self.read_by(self.models.values())

    def _inputs(self) -> Inputs:
        names = ("rewards", "values", "actions", "actions_log_prob", "returns")
        recorded = {name: getattr(self.storage, name) for name in names}
        return Inputs(self._read_groups(), {**recorded, **self.recorded_by_extensions()})

    def save(self) -> dict[str, Any]:
        """Return rsl_rl's checkpoint, with this algorithm's part under "rsl_tbptt"."""
        part = {"learning_rate": self.options.learning_rate, **self.describe(self.models)}
        return super().save() | {"rsl_tbptt": part}

    def load(self, loaded_dict: dict, load_cfg: dict | None, strict: bool) -> bool:
        """Load a PPO checkpoint as rsl_rl does, after checking that all of it fits.

        A distillation checkpoint makes its student the actor, with the action noise
        ``student_action_std``; the critic is warmed up first. It also brings a teacher, so you do
        not need ``teacher_checkpoint``. From a checkpoint of rsl_rl 1 to 3 only models are loaded.

        Args:
            loaded_dict: The checkpoint.
            load_cfg: Parts to load, or None for all. "actor" includes its warm-up, its teacher and
                schedule, and extensions, which their names load alone, such as "auxiliary".
            strict: Whether parameters must match exactly.

        Returns:
            Whether the runner should take over the iteration.

        Raises:
            ValueError: If parameters or optimiser do not fit, or if the models were configured
                differently. Nothing is changed then.
        """
        checkpoint, load_cfg = as_models(loaded_dict, load_cfg)
        wants: dict = dict.fromkeys(_LOADED, True) if load_cfg is None else load_cfg
        part, stored = checkpoint.get("rsl_tbptt", {}), self.storage.observations
        becomes_actor = "student_state_dict" in checkpoint and bool(wants.get("actor"))
        with self.transaction.undone_on_error():
            if becomes_actor:
                student = checkpoint["student_state_dict"]
                if strict:
                    check_fits(self.models["actor"], student, "actor", stored, checkpoint)
                teacher = checkpoint.get("teacher_state_dict")
                self.imitation.state = {}
                self.imitation.load_teacher(teacher, checkpoint if strict else None)
                self.load_extensions(part, {"auxiliary": True})
                self.fine_tuning.start(student, strict)
                load_iteration = False
            else:
                roles = {**self.models, "rnd": self.rnd}.items()
                models = {role: model for role, model in roles if model and wants.get(role)}
                self.check_models(models, checkpoint, strict)
                if wants.get("optimizer"):
                    optimizers.check_optimizer(self.optimizer, checkpoint)
                self.load_extensions(part, wants)
                load_iteration = super().load(checkpoint, load_cfg, strict)
                if wants.get("optimizer"):
                    self.resume_rate(part)
        if wants.get("actor"):
            self.curricula.go_on_from(loaded_dict)
        return load_iteration


def means_of(steps: Sequence[Values], sizes: Sequence[int]) -> Values:
    """Return the means over optimiser steps, by name. Shape: () each.

    Args:
        steps: Results of ``TbpttPPO.step``; the last two are no sums over samples.
        sizes: Samples of each step.
    """
    rows = torch.stack([value for step in steps for value in step.values()])
    rows = rows.unflatten(0, (len(steps), -1))
    torch._foreach_div_([row[:-2] for row in rows], [float(size) for size in sizes])
    # Along rows: the last bits of a mean over columns depend on their number.
    return dict(zip(steps[0], rows.T.contiguous().mean(1), strict=True))


_LOADED = ("actor", "critic", "rnd", "optimizer", "auxiliary")
"""Parts of a PPO checkpoint that are loaded by default."""

_TAKEN_BY_RSL_RL = {
    name for base in PPO.__mro__ for name in inspect.signature(base.__init__).parameters
}
"""Arguments of the constructor of rsl_rl's PPO; older releases have fewer."""

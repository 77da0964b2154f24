"""PPO whose recurrent models are trained by truncated BPTT."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

import torch
from rsl_rl.env import VecEnv
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from rsl_tbptt.algorithms.base import TbpttAlgorithm
from rsl_tbptt.algorithms.extensions.heads import AuxiliaryHeads, parse_heads
from rsl_tbptt.algorithms.health import explained_variance, finite, obs_scales
from rsl_tbptt.algorithms.extensions.fine_tuning import FineTuning, Imitation, build_teacher
from rsl_tbptt.algorithms.batches import Batches
from rsl_tbptt.algorithms.optimizers import (
    check_optimizer,
    follow_kl,
    set_rate,
    step_at,
    step_batches,
    update_normalization,
)
from rsl_tbptt.algorithms.options import (
    PpoArguments,
    PpoOptions,
    check_runner_keys,
    has_attributes_of,
    takes,
)
from rsl_tbptt.algorithms.policy_losses import (
    KL,
    PpoGradient,
    PpoRollout,
    States,
    store_advantages,
)
from rsl_tbptt.algorithms.replay import observed_groups
from rsl_tbptt.algorithms.extensions.rnd import RndTraining, restore_rnd, state_of_rnd
from rsl_tbptt.algorithms.step_checks import check_types, tensor_groups
from rsl_tbptt.algorithms.extensions.symmetry import MirroredRobots
from rsl_tbptt.algorithms.transaction import Inputs, Transaction
from rsl_tbptt.algorithms.truncation_bootstrap import (
    TruncationBootstrap,
    value_without_advancing,
)
from rsl_tbptt.checkpoints.describing import check_fits, model_configs
from rsl_tbptt.checkpoints.reading import check_matches
from rsl_tbptt.compat.rsl_rl3_checkpoints import as_models
from rsl_tbptt.compat.versions import (
    PPO,
    MLPModel,
)
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.memory import MemoryPlan, Sizes
from rsl_tbptt.models.protocol import check_rnn_types


@has_attributes_of(PpoOptions)
class TbpttPPO(TbpttAlgorithm, PPO):
    """rsl_rl's PPO with truncated BPTT for recurrent actors and critics.

    A drop-in: same constructor, storage, models, checkpoints and runner. A mini-batch is a set of
    whole environments (or windows, see ``minibatch_unit``), replayed with the current weights from
    the state the rollout started with. The gradient is cut every ``gradient_length`` steps; the
    windows' gradients add up to one optimiser step. Feed-forward models see single steps.
    """

    @takes(PpoArguments)
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
            symmetry_cfg: rsl_rl's description of symmetries, or None; for models with memory, too.
            **options: Fields of :class:`PpoOptions`.

        Raises:
            ValueError: If an option is unknown, invalid or contradicts another, if the actor has no
                distribution, or if a model cannot read a group of that type.
            NotImplementedError: If a model cannot be replayed, or ``student_action_std`` finds no
                parameter to set.
        """
        self.options = PpoOptions.parse(options)
        if actor.distribution is None:
            raise ValueError(
                "actor.distribution_cfg is None, expected a distribution, such as"
                " {'class_name': 'GaussianDistribution', 'init_std': 1.0}: PPO draws actions."
            )
        self._recurrent = actor.is_recurrent or critic.is_recurrent
        if symmetry_cfg:
            self.options.check_symmetry()
        self.options.check_rollout(storage.num_transitions_per_env, self._recurrent)
        given = {k: v for k, v in vars(self.options).items() if k in _TAKEN_BY_RSL_RL}
        super().__init__(
            actor,
            critic,
            storage,
            **{**given, "max_grad_norm": self.options.max_grad_norm or math.inf},
            device=device,
            rnd_cfg=rnd_cfg,
            multi_gpu_cfg=multi_gpu_cfg,
        )
        self.mirrored: MirroredRobots | None = None
        """The mirror images of the robots, with symmetry."""
        if symmetry_cfg:  # rsl_rl's own refuses models with memory
            self.mirrored = MirroredRobots(symmetry_cfg, storage, [actor, critic])
        self._raw_actor, self._raw_critic = self.actor, self.critic  # ``compile`` replaces them
        self._models = {"actor": self._raw_actor, "critic": self._raw_critic}
        check_types(self._models, storage.observations)
        self._prepare_surroundings()
        self._prepare_updates()
        self.options.use()

    def _prepare_updates(self) -> None:
        """Set up the replay of the models, the mini-batches and the transaction of an update."""
        options, storage, ranks = self.options, self.storage, self._ranks
        actor, critic, device = self._raw_actor, self._raw_critic, storage.dones.device
        num_steps, num_envs = storage.num_transitions_per_env, storage.num_envs
        self._fine_tuning = FineTuning(actor, options, is_first_rank=self.gpu_global_rank == 0)
        self.imitation = Imitation(actor, options, storage, ranks)
        """The teacher that the actor imitates; without one it has no effect."""
        self.episode_returns = self.imitation.returns
        self._heads = AuxiliaryHeads(parse_heads(options.auxiliary), actor, storage, self.optimizer)
        rnd = self._rnd = RndTraining(self, ranks) if self.rnd else None
        self._bootstrap = TruncationBootstrap(critic, storage)
        self.mini_batches = MiniBatches(
            num_steps, num_envs, options, ranks, device, single_steps=not self._recurrent
        )
        self.gradient = PpoGradient(
            actor, critic, options, self._heads, self.mini_batches, self.mirrored
        )
        self.states: list[States] = []
        """States of actor and critic before the first steps of segments; (L, N, H) each."""
        num_envs_of_ranks = self.mini_batches.num_samples // num_steps
        self._step_batches = step_batches(num_steps, num_envs_of_ranks, device)
        self.transaction = Transaction(
            storage,
            [actor, critic, self._heads.module, *(rnd.modules if rnd else ())],
            [self.optimizer, *self._heads.optimizers, *([rnd.optimizer] if rnd else ())],
            options,
            ranks,
            others=lambda: [
                *(self, self._fine_tuning, self.imitation, self.imitation.returns),
                *(self.gradient.policy_loss, self.mirrored),
            ],
            stateful_models=lambda: [actor, critic, *self.imitation.models],
            add_gradients=self._add_gradients_of,
            inputs=self._inputs,
            max_micro_batches=self.mini_batches.num_envs_of_largest,
            on_drop=self._drop_rollout,
        )

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
            ValueError: If a key of the runner's config is mistyped, a model of rsl_rl's has another
                ``rnn_type`` than rsl_rl's, or a group in ``obs_groups`` is no tensor.
        """
        check_runner_keys(cfg)
        check_rnn_types(cfg)
        configs = model_configs(cfg)
        obs = tensor_groups(obs, cfg.get("obs_groups") or {})
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
            NotImplementedError: If its distribution is of another kind than the actor's, which
                ``teacher_loss="kl"`` needs.
        """
        self.imitation.set_teacher(teacher)

    def memory_plan(self) -> MemoryPlan:
        """Predict the memory of ``update()`` from its gradient on parts of the last rollout.

        Raises:
            ValueError: If there has been no complete rollout yet.
        """
        largest = self.mini_batches.num_envs_of_largest
        sizes = Sizes(largest, self.gradient.actor.least_micro_batches(largest))
        of_rnd = self._rnd.parameters if self._rnd else ()
        return self.transaction.plan_memory(sizes, [*self.gradient.parameters, *of_rnd])

    def act(self, obs: TensorDict) -> torch.Tensor:
        """Sample actions (N, A) for observations (N,) and record the values that the update needs.

        Raises:
            ValueError: If training starts here and the teacher is missing or options do not fit the
                number of environments; or if observations differ in form from the first ones.
        """
        if not self._started:  # playing needs neither a teacher nor many environments
            self.imitation.start_training()
            self._fine_tuning.start_training()
            self._ranks.run_together(self.mini_batches.check_training)
            self._started = True
        obs = self._begin_step(obs)
        step = self.storage.step
        if step == 0:
            self.states = []
            if self._rnd:
                self._rnd.begin_rollout()
        if step in self.mini_batches.state_steps:
            states = self._raw_actor.get_hidden_state(), self._raw_critic.get_hidden_state()
            self.states.append((hidden_state.clone(states[0]), hidden_state.clone(states[1])))
        self.imitation.observe(obs, step)
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
        self.transition.dones, self.transition.rewards = dones, rewards
        if self.rnd:
            self.intrinsic_rewards = self.rnd.get_intrinsic_reward(obs)
            self.transition.rewards = rewards + self.intrinsic_rewards
        self.transition.rewards = self.transition.rewards + self.options.gamma * beyond
        self._store_step(self.transition, extras)
        for model in (self.actor, self.critic):
            model.reset(dones)
        self.imitation.process_env_step(rewards, dones)

    def compute_returns(self, obs: TensorDict) -> None:
        """Compute advantages, normalised over all processes, and returns; no state advances.

        ``obs`` follows the last step and has batch size (N,); it is checked as in :meth:`act`.
        """
        obs = self.step_checks.observations(obs)
        last_values = value_without_advancing(self.critic, obs)
        store_advantages(
            self.storage, last_values, self.options, self.mini_batches.num_samples, self._ranks
        )

    @whole_or_nothing
    def update(self) -> dict[str, torch.Tensor]:
        """Train actor and critic on the rollout and clear the storage; a failing update is undone.

        Returns:
            What the runner logs under ``Loss/``; docs/reference/metrics.md lists it. In a runner
            only the losses: the others reach its logger through ``health_log``. ``metrics`` has
            all.

        Raises:
            ValueError: If a loss, gradient or result is NaN or inf and ``non_finite`` does not skip
                it. Parameters, optimiser and normaliser are then as before the update.
        """
        rollout, steps = self._rollout(), []
        num_micro_batches = self.transaction.num_micro_batches
        rate = self.optimizer.param_groups[0]["lr"]
        # Filled on the device: a copy from the host would wait for it.
        rate = torch.full((), rate, dtype=torch.float64, device=self.storage.dones.device)
        holds_actor = self._fine_tuning.holds_actor
        for _ in range(self.options.num_learning_epochs):
            for mini_batch in self.mini_batches.draw():
                self._zero_grad()
                normalization = self.gradient.normalization(mini_batch, rollout)
                with self.gradient.first_replay.watching(first=not steps):
                    sums = self.gradient.accumulate(
                        mini_batch,
                        rollout,
                        normalization,
                        num_micro_batches,
                        holds_actor=holds_actor,
                    )
                if not steps:
                    self.gradient.check(holds_actor=holds_actor)
                means = self._ranks.sum_tensor(sums / mini_batch.num_samples)
                norms = self.gradient.clip(self._ranks, holds_actor)
                rate = self._optimizer_step(rate, means[KL])
                rnd = [self._rnd.train(mini_batch, rollout, num_micro_batches)] if self._rnd else []
                steps.append(torch.cat((means, norms, *rnd)))
        metrics = {**self._metrics(torch.stack(steps)), "rate": rate}
        self._update_normalization()
        return metrics

    def _rollout(self) -> PpoRollout:
        """View the storage as a rollout that starts with the recorded states."""
        actor, critic = map(hidden_state.concatenate_envs, zip(*self.states, strict=True))
        teacher = self.imitation.params(), self.imitation.coef
        return self.gradient.rollout(self.storage, (actor, critic), *teacher)

    def _optimizer_step(self, rate: torch.Tensor, kl: torch.Tensor) -> torch.Tensor:
        """Step, with the adaptive schedule at a rate that follows the KL; return the rate, ()."""
        options, desired_kl = self.options, self.options.desired_kl
        adapts = options.schedule == "adaptive" and not self._fine_tuning.holds_actor
        if adapts and desired_kl is not None:
            rate = follow_kl(rate, kl, desired_kl)
            step_at(self.optimizer, rate)
            self._heads.step(rate, options.max_grad_norm)
        else:
            self.optimizer.step()
            self._heads.step(self.optimizer.param_groups[0]["lr"], options.max_grad_norm)
        return rate

    def _drop_rollout(self, num_steps: int) -> None:
        """Undo the changes of a dropped rollout; mirrored robots continue after its steps."""
        if self._rnd:
            self._rnd.drop_rollout()
        if self.mirrored:
            self.mirrored.drop_rollout(num_steps)

    def _update_normalization(self) -> None:
        """Update the normalisers with the rollout."""
        actor = None if self._fine_tuning.holds_actor else self._raw_actor
        models = [model for model in (self._raw_critic, actor, self.rnd) if model]
        update_normalization(models, self.storage.observations, self._step_batches)

    def _metrics(self, steps: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the metrics of an update with these optimiser steps, (S, M). Shape: () each."""
        stored, models = self.storage, {**self._models, "teacher": self.imitation.teacher}
        health = {
            **self.gradient.first_replay.metrics(),
            "explained_variance/critic": explained_variance(stored.values, stored.returns),
            **obs_scales(models, stored.observations[0]),
        }
        return {
            **self.gradient.means(steps),
            "done_rate": self._ranks.mean(stored.dones.float(), self.mini_batches.num_samples),
            **self.imitation.metrics(),
            **finite(health),
        }

    def _advance(self, metrics: dict[str, float]) -> dict[str, float]:
        """Advance the schedules after an update; return those of its metrics that are logged."""
        rate, kl = metrics.pop("rate"), metrics.pop("kl_of_last_epoch")
        set_rate(self.optimizer, rate)
        if self.options.policy_loss == "kl_penalty":
            metrics["kl_coef"] = self.gradient.policy_loss.kl_coef
            if not self._fine_tuning.holds_actor:
                self.gradient.policy_loss.adapt(kl)
        if self.mirrored:
            self.mirrored.advance()
        self.imitation.conclude(metrics, waits=self._fine_tuning.holds_actor)
        self._fine_tuning.count_update()
        return metrics

    def _conclude(self) -> dict[str, float]:
        """End an iteration, as the base class does; warn of time-outs without observation."""
        self._bootstrap.warn_once()
        return super()._conclude()

    def _add_gradients_of(self, envs: slice, num_micro_batches: int) -> None:
        """Compute this rank's gradient on some environments, including RND's, into ``.grad``."""
        self._zero_grad()
        mini_batch, rollout = self.mini_batches.of_envs(envs), self._rollout()
        normalization = self.gradient.normalization(mini_batch, rollout)
        self.gradient.accumulate(mini_batch, rollout, normalization, num_micro_batches)
        if self._rnd:
            self._rnd.accumulate(mini_batch, rollout, num_micro_batches)

    def _read_by_models(self, teacher: MLPModel | None) -> set[str]:
        """Return the observation groups that the models read, with this teacher."""
        models, stored = [*self._models.values(), teacher], self.storage.observations
        return {group for model in models if model for group in observed_groups(model, stored)}

    def _read_by_others(self) -> set[str]:
        """Return the observation groups that auxiliary heads and RND read."""
        rnd_state = self.rnd.obs_groups["rnd_state"] if self.rnd else ()
        return self._heads.targets.observed_groups().union(rnd_state)

    def _read_groups(self) -> set[str]:
        if self.mirrored:  # its function may read any group
            return {*map(str, self.storage.observations.keys())}
        return self._read_by_models(self.imitation.model) | self._read_by_others()

    def _inputs(self) -> Inputs:
        """Return the inputs of an update; those derived from others come last."""
        groups = self._read_by_models(self.imitation.teacher)
        mirrored = self.mirrored.named_obs(groups) if self.mirrored else {}
        groups |= self._read_by_others()
        names = ("rewards", "values", "actions", "actions_log_prob", "returns")
        recorded = {name: getattr(self.storage, name) for name in names}
        for index, params in enumerate(self.imitation.params()):
            recorded[f"the teacher's distribution, parameter {index}"] = params
        return Inputs(groups, recorded | mirrored)

    def save(self) -> dict[str, Any]:
        """Return rsl_rl's checkpoint, with this algorithm's part under "rsl_tbptt"."""
        own = {
            "kl_coef": self.gradient.policy_loss.kl_coef,
            "fine_tuning": self._fine_tuning.state_dict(),
            "imitation": self.imitation.state_dict(),
            **self._described(self._models),
        }
        if self.rnd:
            own["rnd"] = state_of_rnd(self.rnd)
        return super().save() | {"rsl_tbptt": own}

    def load(self, loaded_dict: dict, load_cfg: dict | None, strict: bool) -> bool:
        """Load a PPO checkpoint as rsl_rl does, after checking that all of it fits.

        A distillation checkpoint makes its student the actor, with the action noise
        ``student_action_std``; the critic is warmed up first. It also brings a teacher, so you do
        not need ``teacher_checkpoint``. From a checkpoint of rsl_rl 1 to 3 only models are loaded.

        Args:
            loaded_dict: The checkpoint.
            load_cfg: Parts to load, or None for all. "actor" includes its warm-up, its teacher and
                schedule, and its auxiliary heads, which "auxiliary" loads alone; "optimizer"
                includes the weight of the KL penalty.
            strict: Whether parameters must match exactly.

        Returns:
            Whether the runner should take over the iteration.

        Raises:
            ValueError: If parameters or optimiser do not fit, or if the models were configured
                differently. Nothing is changed then.
        """
        loaded_dict, load_cfg = as_models(loaded_dict, load_cfg)
        wants: dict = dict.fromkeys(_LOADED, True) if load_cfg is None else load_cfg
        obs, own = self.storage.observations, loaded_dict.get("rsl_tbptt", {})
        heads, wants_heads = own.get("auxiliary", {}), wants.get("actor") or wants.get("auxiliary")
        if wants_heads:
            self._heads.check(heads)
        if "student_state_dict" in loaded_dict and wants.get("actor"):
            self._fine_tuning.start(loaded_dict, obs, strict, self.imitation)
            self._heads.load_state_dict(heads, with_optimizer=False)
            return False
        roles = {**self._models, "rnd": self.rnd}.items()
        models = {role: model for role, model in roles if model and wants.get(role)}
        _check_checkpoint(models, loaded_dict, obs, strict)
        if wants.get("optimizer"):
            check_optimizer(self.optimizer, loaded_dict)
        if wants.get("actor"):
            self.imitation.load_state_dict(own.get("imitation", {}))  # first, since it may raise
            self._fine_tuning.load_state_dict(own.get("fine_tuning", {}))
        load_iteration = super().load(loaded_dict, load_cfg, strict)
        if wants_heads:
            self._heads.load_state_dict(heads, with_optimizer=bool(wants.get("optimizer")))
        if self.rnd and "rnd" in models:
            restore_rnd(self.rnd, own.get("rnd", {}), self.storage.num_envs)
        if wants.get("optimizer"):
            self.gradient.policy_loss.kl_coef = own.get("kl_coef", self.options.kl_penalty_coef)
        if load_iteration:
            self.emergency_save.go_on_from(loaded_dict)
        return load_iteration


def _check_checkpoint(
    models: Mapping[str, Any], checkpoint: Mapping[str, Any], obs: TensorDict, strict: bool
) -> None:
    """Check that a PPO checkpoint has the requested parts.

    Args:
        models: Models to load, by role: "actor", "critic" and "rnd".
        checkpoint: The checkpoint.
        obs: Observations of any batch size.
        strict: Whether parameters must match exactly.

    Raises:
        ValueError: If a part is missing or does not fit.
    """
    for role, model in models.items():
        key = f"{role}_state_dict"
        if key not in checkpoint:
            raise ValueError(
                f"The checkpoint lacks '{key}', it holds {sorted(checkpoint)}: expected one of"
                " PPO or distillation of rsl_rl 5."
            )
        if strict and role == "rnd":
            check_matches(model, checkpoint[key], role)
        elif strict:
            check_fits(model, checkpoint[key], role, obs, checkpoint)


_LOADED = ("actor", "critic", "rnd", "optimizer", "auxiliary")
"""Parts of a PPO checkpoint that are loaded by default."""

_TAKEN_BY_RSL_RL = {
    name for base in PPO.__mro__ for name in inspect.signature(base.__init__).parameters
}
"""Arguments of the constructor of rsl_rl's PPO; older releases have fewer."""

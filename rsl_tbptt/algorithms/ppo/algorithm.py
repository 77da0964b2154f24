"""PPO whose recurrent models are trained by truncated BPTT."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from rsl_rl.env import VecEnv
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from rsl_tbptt.algorithms.auxiliary.heads import AuxiliaryHeads
from rsl_tbptt.algorithms.ppo.advantages import normalize_advantages, store_advantages
from rsl_tbptt.algorithms.ppo.arguments import PpoArguments
from rsl_tbptt.algorithms.ppo.episode_returns import EpisodeReturns
from rsl_tbptt.algorithms.ppo.fine_tuning import FineTuning
from rsl_tbptt.algorithms.ppo.imitation import Imitation, build_teacher
from rsl_tbptt.algorithms.ppo.learner import PpoLearner
from rsl_tbptt.algorithms.ppo.loading import check_checkpoint
from rsl_tbptt.algorithms.ppo.options import PpoOptions
from rsl_tbptt.algorithms.ppo.rnd import RndTraining, restore_rnd, state_of_rnd
from rsl_tbptt.algorithms.ppo.symmetry import MirroredLearner, check_symmetry
from rsl_tbptt.algorithms.ppo.time_outs import TimeOutValues, value_without_advancing
from rsl_tbptt.algorithms.update.arguments import check_runner_keys, takes
from rsl_tbptt.algorithms.update.health import HealthLog
from rsl_tbptt.algorithms.update.memory_plan import MemoryPlan
from rsl_tbptt.algorithms.update.optimizers import use_fused_kernels
from rsl_tbptt.algorithms.update.safe_line import SafeLine
from rsl_tbptt.algorithms.update.session import UpdateSession
from rsl_tbptt.algorithms.update.step_checks import StepChecks
from rsl_tbptt.checkpoints.trained_models import describe_all, model_configs
from rsl_tbptt.compat.versions import PPO, MLPModel, rnd_optimizer
from rsl_tbptt.core.distributed import Ranks


class TbpttPPO(PPO):
    """rsl_rl's PPO with truncated BPTT for recurrent actors and critics.

    A drop-in: same constructor, storage, models, checkpoints and runner. A mini-batch is a set of
    whole environments, replayed with the current weights from the state the rollout started with
    (or of windows, see ``minibatch_unit``). The gradient is cut every ``gradient_length`` steps;
    the windows' gradients add up to one optimiser step. Nothing is split or padded at dones.
    Feed-forward models see the rollout as single steps, shuffled as in rsl_rl.
    """

    model_configs: Mapping[str, Any] | None = None
    """What the runner's config says of the models, for checkpoints."""

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
            symmetry_cfg: rsl_rl's description of symmetries, or None. Feed-forward models only.
            **options: Fields of :class:`PpoOptions`.

        Raises:
            ValueError: If an option is unknown, invalid or contradicts another.
            NotImplementedError: If symmetry is asked for with a recurrent model, a model cannot be
                replayed, or ``student_action_std`` has no parameter to set.
        """
        self.options = PpoOptions.parse(options)
        recurrent = actor.is_recurrent or critic.is_recurrent
        if symmetry_cfg is not None:
            check_symmetry(self.options, recurrent)
        self.options.check_rollout(storage.num_transitions_per_env, recurrent)
        super().__init__(
            actor,
            critic,
            storage,
            **{name: getattr(self.options, name) for name in _OPTIONS_OF_RSL_RL},
            max_grad_norm=self.options.max_grad_norm or math.inf,
            device=device,
            rnd_cfg=rnd_cfg,
            symmetry_cfg=symmetry_cfg,
            multi_gpu_cfg=multi_gpu_cfg,
        )
        self.use_mixed_precision = self.options.use_mixed_precision  # rsl_rl 5.0 lacks these
        self.grad_reduce_bucket_mb = self.options.grad_reduce_bucket_mb
        self._raw_actor, self._raw_critic = self.actor, self.critic
        use_fused_kernels(self.optimizer)
        self._ranks = Ranks(together=self.is_multi_gpu)
        self._values_beyond = TimeOutValues()
        self._fine_tuning = FineTuning(actor, self.options, is_first_rank=self.gpu_global_rank == 0)
        self._imitation = Imitation(actor, self.options, storage)
        rnd = None
        if self.rnd:
            bucket_mb = self.options.grad_reduce_bucket_mb
            rnd = RndTraining(self.rnd, rnd_optimizer(self), self._ranks, bucket_mb)
        trained = (actor, critic, storage, self.optimizer, self.options, self._ranks)
        self._heads = AuxiliaryHeads(self.options.heads(), actor, storage, self.optimizer)
        parts: dict[str, Any] = {"rnd": rnd, "heads": self._heads}
        parts |= {"fine_tuning": self._fine_tuning, "imitation": self._imitation}
        self.learner = (
            MirroredLearner(*trained, **parts, update=super().update)
            if self.symmetry
            else PpoLearner(*trained, **parts)
        )
        self._session = UpdateSession(self.learner, storage, self.options, self._ranks)
        self.safe_line = SafeLine(self.options.safe_checkpoint_interval, self, self._ranks)
        self.step_checks = StepChecks(storage)
        self.metrics: dict[str, float] = {}
        self.health_log: HealthLog | None = None  # one's own loop has no logger

    @staticmethod
    def construct_algorithm(obs: TensorDict, env: VecEnv, cfg: dict, device: str) -> PPO:
        """Build models, storage and algorithm from the runner's config, as rsl_rl does.

        Args:
            obs: Observations of the environment.
            env: The environment.
            cfg: The runner's config. ``cfg["algorithm"]["teacher_cfg"]`` may describe the teacher's
                model, on observation set "teacher". ``cfg["check_for_nan"]`` is set to False: the
                algorithm looks itself.
            device: Device of the update.

        Returns:
            The algorithm.

        Raises:
            ValueError: If a key of the runner's config is mistyped.
        """
        check_runner_keys(cfg)
        configs = model_configs(cfg)
        algorithm = PPO.construct_algorithm(obs, env, cfg, device)
        if isinstance(algorithm, TbpttPPO):
            algorithm.model_configs = configs
            options = algorithm.options
            algorithm.step_checks.take_over_nan_check(options.non_finite, cfg)
            algorithm.safe_line.write_beside_logs_of(env)
            algorithm.health_log = HealthLog()
            if options.teacher_cfg is not None and options.teacher_coef > 0:
                teacher = build_teacher(obs, env, cfg, options.teacher_cfg, device)
                algorithm.set_teacher(teacher)
        return algorithm

    @property
    def episode_returns(self) -> EpisodeReturns | None:
        """What ``teacher_schedule="return"`` knows of the episodes; None with another schedule."""
        return self._imitation.returns

    def set_teacher(self, teacher: MLPModel) -> None:
        """Set the model of the teacher; its parameters come when a checkpoint is loaded.

        That is a student's, that of a run with this teacher, or when training starts the file that
        ``teacher_checkpoint`` names.

        Raises:
            NotImplementedError: If its distribution is not of the actor's kind, which
                ``teacher_loss="kl"`` needs.
        """
        self._imitation.set_teacher(teacher)

    def broadcast_parameters(self) -> None:
        """Let all processes begin with the first one's models and auxiliary heads."""
        super().broadcast_parameters()
        self._heads.broadcast()

    def memory_plan(self) -> MemoryPlan:
        """Predict what ``update()`` will take; see :meth:`UpdateSession.plan_memory`."""
        return self._session.plan_memory()

    def act(self, obs: TensorDict) -> torch.Tensor:
        """Sample actions and record what the update needs; no hidden state it does not.

        Args:
            obs: Observations of all environments, batch size (N,).

        Returns:
            Actions, shape (N, A).

        Raises:
            ValueError: If training starts here and an option does not suit the number of
                environments, or the teacher did not come or does not fit; or if observations are
                not as they were at first.
        """
        if self.health_log is not None:
            self.health_log.leave()
        if not self._session.started:
            self._start_training()
        self.step_checks.check_observations(obs)
        step = self.storage.step
        self.learner.record(step)
        self._imitation.observe(obs, step)
        actions = super().act(obs)
        self.transition.hidden_states = (None, None)
        return actions

    def _start_training(self) -> None:
        """Load a teacher that no checkpoint brought, and check what playing does not need."""
        if self._imitation.awaits_teacher:
            with torch.inference_mode(False):  # the runner's rollout has no gradients
                self._ranks.run_together(self._imitation.load_file)
        self._fine_tuning.check_training()
        self._session.start()

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

        Raises:
            ValueError: If :class:`StepChecks` finds anything wrong with the step.
        """
        self.step_checks.check_step(obs, rewards, dones)
        self.transition.rewards = rewards.clone()
        self.transition.dones = dones
        if self.rnd:
            self.intrinsic_rewards = self.rnd.get_intrinsic_reward(obs)
            self.transition.rewards += self.intrinsic_rewards
        if "time_outs" in extras:
            assert self.transition.values is not None
            beyond = self._values_beyond(self.critic, self.transition.values, extras)
            self.transition.rewards += self.gamma * beyond
        self.storage.add_transition(self.transition)
        self.transition.clear()
        if self.health_log is not None:
            self.health_log.join(extras, self.storage.step == self.storage.num_transitions_per_env)
        for model in (self.actor, self.critic):
            model.reset(dones)
        self._imitation.process_env_step(rewards, dones)

    def compute_returns(self, obs: TensorDict) -> None:
        """Compute advantages and returns; the value call at the end advances no state.

        Advantages are normalised over all processes. ``obs`` is what follows the last step, batch
        size (N,), and checked as in :meth:`act`.
        """
        self.step_checks.check_observations(obs)
        last_values = value_without_advancing(self.critic, obs)
        store_advantages(self.storage, last_values, self.options)
        if not self.options.normalize_advantage_per_mini_batch:
            normalize_advantages(self.storage, self.learner.num_samples_of_ranks, self._ranks)

    def train_mode(self) -> None:
        """Set the models to training, and drop a rollout that an error or Ctrl+C broke off."""
        super().train_mode()
        self.storage.clear()
        if self.health_log is not None:
            self.health_log.start()
        self.safe_line.start()

    def update(self) -> dict[str, float]:
        """Train actor and critic on the rollout and clear the storage, whole or not at all.

        Returns:
            What the runner logs under ``Loss/``: ``value``, ``surrogate`` and ``entropy`` (means
            per sample over all epochs), ``kl`` (mean KL divergence from the policy that acted),
            ``actor_grad_norm`` and ``critic_grad_norm`` (before clipping), ``done_rate``,
            ``skipped_updates`` (all so far; alone where this is one), and where they are used
            ``rnd``, ``kl_coef``, ``teacher_coef``, ``teacher`` (mean loss of the imitation, before
            that weight) and ``auxiliary/NAME`` (mean loss of a head; a sample without target counts
            as 0); and what docs/health.md lists. With symmetry, what rsl_rl returns. In a runner
            the losses alone; the others reach its logger by ``health_log``. ``metrics`` has all.

        Raises:
            ValueError: If a loss, gradient or result is NaN or inf and ``non_finite`` does not skip
                that. Parameters, optimisers and normalisers are then as before the update.
        """
        try:
            self.metrics = self._session.run()
        finally:
            self.learning_rate = self.optimizer.param_groups[0]["lr"]
        self._values_beyond.warn_once()
        self.safe_line.conclude_iteration()
        return self.health_log.losses_of(self.metrics) if self.health_log else self.metrics

    def save(self) -> dict[str, Any]:
        """Return what a checkpoint holds: rsl_rl's, and this algorithm's own under "rsl_tbptt"."""
        models = {"actor": self._raw_actor, "critic": self._raw_critic}
        own = {
            "kl_coef": self.learner.gradient.policy_loss.kl_coef,
            "fine_tuning": self._fine_tuning.state_dict(),
            "imitation": self._imitation.state_dict(),
            "models": describe_all(models, self.storage.observations, self.model_configs),
        }
        if self.options.auxiliary:
            own["auxiliary"] = self._heads.state_dict()
        if self.rnd:
            own["rnd"] = state_of_rnd(self.rnd)
        return super().save() | {"rsl_tbptt": own}

    def load(self, loaded_dict: dict, load_cfg: dict | None, strict: bool) -> bool:
        """Load a PPO checkpoint as rsl_rl does, after checking that all of it fits.

        A distillation checkpoint makes its student the actor, normaliser and distribution included,
        with the action noise ``student_action_std``; the critic is warmed up first. Its teacher is
        imitated with ``teacher_coef``, as that of a PPO checkpoint with one, and the file that
        ``teacher_checkpoint`` names is not needed then.

        Args:
            loaded_dict: The checkpoint.
            load_cfg: What to load, or None for everything. With the actor come its warm-up, its
                teacher and that one's schedule, and its auxiliary heads, which "auxiliary" loads
                alone; with the optimiser, like its learning rate, the weight of the KL penalty.
            strict: Whether parameters must match exactly.

        Returns:
            Whether the runner shall take over the iteration.

        Raises:
            ValueError: If the parameters do not fit, or if the models are known to have been
                configured otherwise. Nothing is changed then.
        """
        obs, wants_actor = self.storage.observations, load_cfg is None or load_cfg.get("actor")
        own = loaded_dict.get("rsl_tbptt", {})
        heads = own.get("auxiliary", {})
        wants_heads = wants_actor or bool(load_cfg and load_cfg.get("auxiliary"))
        if wants_heads:
            self._heads.check(heads)
        if "student_state_dict" in loaded_dict and wants_actor:
            self._fine_tuning.start(loaded_dict, obs, strict, self._imitation)
            self._heads.load_state_dict(heads, with_optimizer=False)
            return False
        wants_optimizer = load_cfg is None or bool(load_cfg.get("optimizer"))
        roles = {"actor": self._raw_actor, "critic": self._raw_critic, "rnd": self.rnd}
        wanted = {role for role in roles if load_cfg is None or load_cfg.get(role)}
        models = {role: model for role, model in roles.items() if model and role in wanted}
        check_checkpoint(models, loaded_dict, obs, strict)
        if wants_actor:
            self._imitation.load_state_dict(own)  # first, as it may refuse
            self._fine_tuning.load_state_dict(own.get("fine_tuning", {}))
        load_iteration = super().load(loaded_dict, load_cfg, strict)
        if wants_heads:
            self._heads.load_state_dict(heads, with_optimizer=wants_optimizer)
        if self.rnd and "rnd" in wanted:
            restore_rnd(self.rnd, own.get("rnd", {}), self.storage.num_envs)
        if wants_optimizer:
            self.learning_rate = self.optimizer.param_groups[0]["lr"]  # rsl_rl 5.0 leaves it
            policy_loss = self.learner.gradient.policy_loss
            policy_loss.kl_coef = own.get("kl_coef", self.options.kl_penalty_coef)
        if load_iteration:
            self.safe_line.go_on_from(loaded_dict)
        return load_iteration


_OPTIONS_OF_RSL_RL = (
    "num_learning_epochs",
    "num_mini_batches",
    "clip_param",
    "gamma",
    "lam",
    "value_loss_coef",
    "entropy_coef",
    "learning_rate",
    "optimizer",
    "use_clipped_value_loss",
    "schedule",
    "desired_kl",
    "normalize_advantage_per_mini_batch",
)
"""Those that rsl_rl's constructor takes as they are, in every release."""

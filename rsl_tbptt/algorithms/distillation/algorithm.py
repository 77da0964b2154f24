"""Distillation of a teacher into a (recurrent) student by truncated BPTT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from rsl_rl.env import VecEnv
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from rsl_tbptt.algorithms.auxiliary.heads import AuxiliaryHeads
from rsl_tbptt.algorithms.distillation.arguments import DistillationArguments
from rsl_tbptt.algorithms.distillation.awaited_teacher import (
    AwaitedTeacher,
    check_one_source,
    check_teacher,
    load_teacher,
)
from rsl_tbptt.algorithms.distillation.dagger import Dagger
from rsl_tbptt.algorithms.distillation.labels import teacher_labels
from rsl_tbptt.algorithms.distillation.learner import DistillationLearner
from rsl_tbptt.algorithms.distillation.learning_rate import scheduled_rate
from rsl_tbptt.algorithms.distillation.losses import resolve_behavior_loss
from rsl_tbptt.algorithms.distillation.options import DistillationOptions
from rsl_tbptt.algorithms.distillation.rollout_memory import NEWEST
from rsl_tbptt.algorithms.distillation.sample_weights import sample_weights
from rsl_tbptt.algorithms.distillation.teacher_layers import TeacherLayers
from rsl_tbptt.algorithms.update.arguments import check_runner_keys, takes
from rsl_tbptt.algorithms.update.health import HealthLog
from rsl_tbptt.algorithms.update.memory_plan import MemoryPlan
from rsl_tbptt.algorithms.update.optimizers import use_fused_kernels
from rsl_tbptt.algorithms.update.safe_line import SafeLine
from rsl_tbptt.algorithms.update.session import UpdateSession
from rsl_tbptt.algorithms.update.step_checks import StepChecks
from rsl_tbptt.checkpoints.reading import student_state_dict
from rsl_tbptt.checkpoints.trained_models import check_fits, describe_all, model_configs
from rsl_tbptt.compat.versions import (
    Distillation,
    MLPModel,
    teacher_state_dict,
)
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.models.selected_teachers import models_by_role


class TbpttDistillation(Distillation):
    """rsl_rl's Distillation with normalised, gradient-accumulating truncated BPTT.

    A drop-in: same constructor, storage, models, checkpoints and runner. ``update()`` replays the
    rollout with the current weights from the state the rollout started with, window by window, and
    steps the optimiser every ``update_length`` steps. Labels are those stored in the rollout, so a
    recurrent teacher is never replayed and keeps its memory; those of a memoryless one can be
    computed for the whole rollout at once. A share of the environments can act with those labels
    (DAgger); the student runs forward in all of them.
    """

    checkpoint_path: str | None = None
    """File that ``load`` is given the content of, where the runner or its config tells."""

    model_configs: Mapping[str, Any] | None = None
    """What the runner's config says of the models, for checkpoints."""

    teacher_loaded: Any
    """Whether a checkpoint brought the teacher; asking an :class:`AwaitedTeacher` loads its."""

    @takes(DistillationArguments)
    def __init__(
        self,
        student: MLPModel,
        teacher: MLPModel,
        storage: RolloutStorage,
        *,
        device: str = "cpu",
        multi_gpu_cfg: dict | None = None,
        rnd_cfg: None = None,
        symmetry_cfg: None = None,
        **options: Any,
    ) -> None:
        """Set up models, optimiser and schedule.

        Args:
            student: Model to train.
            teacher: Model to imitate.
            storage: rsl_rl's rollout storage of type "distillation".
            device: Device of the update.
            multi_gpu_cfg: rsl_rl's description of the processes, or None for one process.
            rnd_cfg: Must be None.
            symmetry_cfg: Must be None.
            **options: Fields of :class:`DistillationOptions`.

        Raises:
            ValueError: If an option is unknown, invalid or contradicts another.
            NotImplementedError: If the loss needs a Gaussian that a model does not have, or
                auxiliary heads a latent that is not seen.
        """
        if rnd_cfg is not None or symmetry_cfg is not None:
            raise ValueError(
                "rnd_cfg and symmetry_cfg have no meaning in distillation: remove them."
            )
        self.options = DistillationOptions.parse(options)
        self.options.check_rollout(storage.num_transitions_per_env)
        # The parent's warning about dropped steps does not hold here: it is given a divisor.
        super().__init__(
            student,
            teacher,
            storage,
            num_learning_epochs=self.options.num_learning_epochs,
            gradient_length=1,
            learning_rate=self.options.learning_rate,
            max_grad_norm=self.options.max_grad_norm,
            optimizer=self.options.optimizer,
            device=device,
            multi_gpu_cfg=multi_gpu_cfg,
        )
        use_fused_kernels(self.optimizer)
        self.gradient_length = self.options.gradient_length
        self.use_mixed_precision = self.options.use_mixed_precision
        self._raw_student, self._raw_teacher = self.student, self.teacher  # rsl_rl 5.0 lacks them
        num_actions = storage.privileged_actions.shape[-1]
        loss = resolve_behavior_loss(self.options.loss_type, student, teacher, num_actions)
        in_batches, heads = self.options.batch_teacher_labels, self.options.heads()
        layers = TeacherLayers(teacher, storage, heads, in_batches=in_batches)
        self._labels = teacher_labels(teacher, storage, loss.to_gaussian, in_batches, layers)
        self._weights = sample_weights(self.options.imitation_weight, storage)
        self._heads = AuxiliaryHeads(
            heads, student, storage, self.optimizer, layers=layers.outputs, reported_where=NEWEST
        )
        self._dagger = Dagger(self.options, storage.num_envs, device)
        self._ranks = Ranks(together=self.is_multi_gpu)
        trained = (student, teacher, storage, self.optimizer, self.options, self._ranks)
        self.learner = DistillationLearner(
            *trained,
            labels=self._labels,
            dagger=self._dagger,
            loss=loss,
            heads=self._heads,
            layers=layers,
            weights=self._weights,
        )
        self._session = UpdateSession(self.learner, storage, self.options, self._ranks)
        self.safe_line = SafeLine(self.options.safe_checkpoint_interval, self, self._ranks)
        self.step_checks = StepChecks(storage)
        self.metrics: dict[str, float] = {}
        self.health_log: HealthLog | None = None  # one's own loop has no logger
        self.awaited_teacher = AwaitedTeacher(
            check_one_source(teacher, self.options.teacher_checkpoint),
            lambda: self._ranks.run_together(self._load_teacher),
        )
        self.teacher_loaded = self.awaited_teacher

    @staticmethod
    def construct_algorithm(obs: TensorDict, env: VecEnv, cfg: dict, device: str) -> Distillation:
        """Build models, storage and algorithm from the runner's config, as rsl_rl does.

        Args:
            obs: Observations of the environment.
            env: The environment.
            cfg: The runner's config. Isaac Lab puts its ``--checkpoint`` into "load_checkpoint".
                "check_for_nan" is set to False: the algorithm looks itself.
            device: Device of the update.

        Returns:
            The algorithm.

        Raises:
            ValueError: If a key of the runner's config is mistyped.
        """
        check_runner_keys(cfg)
        configs = model_configs(cfg)
        algorithm = Distillation.construct_algorithm(obs, env, cfg, device)
        if isinstance(algorithm, TbpttDistillation):
            algorithm.model_configs = configs
            algorithm.checkpoint_path = cfg.get("load_checkpoint")
            algorithm.step_checks.take_over_nan_check(algorithm.options.non_finite, cfg)
            algorithm.safe_line.write_beside_logs_of(env)
            algorithm.health_log = HealthLog()
        return algorithm

    def broadcast_parameters(self) -> None:
        """Let all processes begin with the first one's models and auxiliary heads."""
        super().broadcast_parameters()
        self._heads.broadcast()

    def memory_plan(self) -> MemoryPlan:
        """Predict what ``update()`` will take; see :meth:`UpdateSession.plan_memory`."""
        return self._session.plan_memory()

    def act(self, obs: TensorDict) -> torch.Tensor:
        """Sample the student's actions, record the teacher's labels and choose who acts.

        The student runs forward in every environment, so its state is continuous also where the
        teacher acts. The environments of the teacher are drawn at the first step of a rollout.

        Args:
            obs: Observations of all environments, batch size (N,).

        Returns:
            The actions to execute, shape (N, A): the teacher's label in the environments drawn for
            it, elsewhere the student's sample.

        Raises:
            ValueError: If training starts here and an option does not suit the number of
                environments, or the file of a teacher that is still awaited cannot be loaded; or
                if observations are not as they were at first.
        """
        if self.health_log is not None:
            self.health_log.leave()
        step = self.storage.step
        if step == 0:
            self._start_rollout()
        self.step_checks.check_observations(obs)
        actions = self.student(obs, stochastic_output=True).detach()
        labels = self._labels.of_step(self.teacher, obs, step)
        actions = self._dagger.mix(actions, labels)
        self.transition.observations = obs
        self.transition.privileged_actions = labels
        self.transition.actions = actions
        return actions

    def _start_rollout(self) -> None:
        """Keep the state the rollout starts with and draw where the teacher acts."""
        if not self._session.started:
            with torch.inference_mode(False):  # the runner's rollout has no gradients
                self.awaited_teacher.read()  # nobody asks in a caller's own loop
            self._session.start()
        self.learner.begin_rollout()
        self._dagger.draw(self.num_updates)

    def process_env_step(
        self, obs: TensorDict, rewards: torch.Tensor, dones: torch.Tensor, extras: dict
    ) -> None:
        """Store the step and clear the states of finished episodes.

        The normaliser is left alone until the end of ``update()`` (as in rsl_rl 5.5, for all
        versions), so that the replay sees what the rollout saw.

        Args:
            obs: Next observations, unused.
            rewards: Rewards, shape (N,).
            dones: Which episodes ended with this step, shape (N,).
            extras: Further information of the environment.

        Raises:
            ValueError: If :class:`StepChecks` finds anything wrong with the step.
        """
        self.step_checks.check_step(obs, rewards, dones)
        self.transition.rewards = rewards
        self.transition.dones = dones
        if self._weights is not None:
            self._weights.count_step(self.storage.step, dones)
        self.storage.add_transition(self.transition)
        self.transition.clear()
        if self.health_log is not None:
            self.health_log.join(extras, self.storage.step == self.storage.num_transitions_per_env)
        self.student.reset(dones)
        self.teacher.reset(dones)

    def train_mode(self) -> None:
        """Set the student to training, and drop a rollout that an error or Ctrl+C broke off."""
        super().train_mode()
        self.storage.clear()
        if self.health_log is not None:
            self.health_log.start()
        self.safe_line.start()

    def update(self) -> dict[str, float]:
        """Train the student on the rollout and clear the storage, whole or not at all.

        Returns:
            What the runner logs under ``Loss/``: ``behavior`` (mean per-sample loss), ``grad_norm``
            (mean over optimiser steps, before clipping), ``optimizer_steps``, ``flushed_steps``
            (steps per epoch in a last, shorter group), ``done_rate``, ``skipped_updates`` (all so
            far; alone where this is one) and, where the options are used, ``teacher_action_share``
            (of the environments, in this rollout), ``imitation_weight`` (mean over its steps) and
            ``auxiliary/NAME`` (mean loss of a head on this rollout; a sample without target counts
            as 0); and what docs/health.md lists. In a runner the losses alone; the others reach its
            logger by ``health_log``. ``metrics`` has all.

        Raises:
            ValueError: If a loss, gradient or result is NaN or inf and ``non_finite`` does not skip
                that. Parameters, optimiser and normaliser are then as before the update.
        """
        if (last_update := self.options.learning_rate_updates) is not None:
            rate = scheduled_rate(self.options.learning_rate, self.num_updates, last_update)
            self.learning_rate = rate  # which the runner logs
            for group in self.optimizer.param_groups:  # auxiliary heads follow it
                group["lr"] = rate
        self.metrics = self._session.run()
        self.num_updates += "behavior" in self.metrics  # and not where it was skipped
        self.safe_line.conclude_iteration()
        return self.health_log.losses_of(self.metrics) if self.health_log else self.metrics

    def save(self) -> dict:
        """Return rsl_rl's checkpoint, with this algorithm's own under "rsl_tbptt".

        That is the number of updates, what models are configured with, auxiliary heads, and with
        ``save_memory`` the memory of rollouts. rsl_rl ignores that key, so the checkpoint loads
        there too.
        """
        models = {"student": self._raw_student, **models_by_role(self._raw_teacher)}
        described = describe_all(models, self.storage.observations, self.model_configs)
        own = {"num_updates": self.num_updates, "models": described}
        memory = self.learner.experience.memory
        if self.options.save_memory and memory is not None:
            own["memory"] = memory.state_dict()
        if self.options.auxiliary:
            own["auxiliary"] = self._heads.state_dict()
        return {**super().save(), "rsl_tbptt": own}

    def load(self, loaded_dict: dict, load_cfg: dict | None, strict: bool) -> bool:
        """Load a checkpoint as rsl_rl does, after checking that all of it fits.

        A PPO checkpoint loads the teacher; a distillation checkpoint loads student, teacher,
        optimiser and iteration. With the student comes its number of updates, 0 where rsl_rl wrote
        the checkpoint, so that the schedule of ``teacher_action_share`` goes on, its auxiliary
        heads, and with ``save_memory`` the memory of rollouts; else that is empty.

        Args:
            loaded_dict: The checkpoint.
            load_cfg: What to load, or None for the above.
            strict: Whether parameters must match exactly.

        Returns:
            Whether the runner shall take over the iteration.

        Raises:
            ValueError: If the parameters do not fit or are missing, or if the models are known to
                have been configured otherwise. Nothing is changed then.
        """
        wants = load_cfg or {"teacher": True, "student": "student_state_dict" in loaded_dict}
        obs, source = self.storage.observations, (loaded_dict, self.checkpoint_path)
        if strict and wants.get("teacher"):
            state_dict = teacher_state_dict(loaded_dict, "The checkpoint")
            check_teacher(self._raw_teacher, state_dict, obs, *source)
        if strict and wants.get("student"):
            check_fits(self._raw_student, student_state_dict(loaded_dict), "student", obs, *source)
        own = loaded_dict.get("rsl_tbptt", {})
        memory = own.get("memory") if self.options.save_memory else None
        if wants.get("student"):  # first, as these may refuse
            self._heads.check(own.get("auxiliary", {}))
            self.learner.experience.check(memory)
        load_iteration = super().load(loaded_dict, load_cfg, strict)
        if wants.get("teacher"):
            self.awaited_teacher.forget()
        if wants.get("student"):
            self.num_updates = own.get("num_updates", 0)
            with_optimizer = load_cfg is None or bool(load_cfg.get("optimizer"))
            self._heads.load_state_dict(own.get("auxiliary", {}), with_optimizer=with_optimizer)
            self.learner.experience.restore(memory)  # last, as the past is gone then
        if load_iteration:
            self.safe_line.go_on_from(loaded_dict)
        return load_iteration

    def _load_teacher(self) -> None:
        """Read the teacher from the file that the config names, or several from theirs."""
        path = self.options.teacher_checkpoint
        load_teacher(self._raw_teacher, path, self.storage.observations, self.device)
        self.teacher_loaded = True

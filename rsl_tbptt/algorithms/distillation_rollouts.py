"""Distillation between updates: how it is built, acts, stores steps, is saved and loaded."""

from __future__ import annotations

from typing import Any

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict

from rsl_tbptt.algorithms.algorithm import Algorithm, checked_config
from rsl_tbptt.algorithms.behavior_losses import NEWEST, resolve_behavior_loss
from rsl_tbptt.algorithms.extensions.heads import AuxiliaryHeads
from rsl_tbptt.algorithms.extensions.held_out import HeldOut
from rsl_tbptt.algorithms.extensions.teachers import Dagger, LazyTeacher, TeacherLabels
from rsl_tbptt.algorithms.extensions.weight_average import WeightAverage
from rsl_tbptt.algorithms.find_nan import Inputs
from rsl_tbptt.algorithms.optimizers import check_optimizer, set_rate, step_batches
from rsl_tbptt.algorithms.options import DistillationOptions
from rsl_tbptt.algorithms.replay import observed_groups
from rsl_tbptt.algorithms.replay_buffer import Experience
from rsl_tbptt.algorithms.student import Student
from rsl_tbptt.algorithms.transaction import Transaction
from rsl_tbptt.checkpoints.describing import check_fits
from rsl_tbptt.checkpoints.reading import student_state_dict
from rsl_tbptt.compat.checkpoints import as_models
from rsl_tbptt.compat.versions import Distillation, MLPModel, teacher_state_dict
from rsl_tbptt.models.controller import has_parameters, with_controllers
from rsl_tbptt.models.teacher_group import check_teacher, models_by_role


class DistillationRollouts(Algorithm, Distillation):
    """The part of the distillation around its updates."""

    options: DistillationOptions
    num_updates: int

    max_iterations: int | None = None
    """Updates of a training, if the runner's config tells."""

    _planned_updates: int | None = None
    """The last update of the schedule that the newest update followed."""

    _resumed_end: int | None = None
    """The same of a training that was broken off, from its checkpoint; the schedule goes on."""

    _raw_student: MLPModel
    _raw_teacher: MLPModel

    def _prepare_updates(self) -> None:
        """Set up labels, extensions, the student's replay and the transaction of an update."""
        options, storage, ranks = self.options, self.storage, self._ranks
        student, teacher = self._raw_student, self._raw_teacher
        path, loaded = options.teacher_checkpoint, self.curricula.go_on_from_teachers
        self.lazy_teacher = LazyTeacher(teacher, path, storage.observations, ranks, loaded)
        self.teacher_loaded: Any = self.lazy_teacher
        """Whether training can start, for rsl_rl's runners."""
        num_actions = storage.privileged_actions.shape[-1]
        loss = resolve_behavior_loss(options.loss_type, student, teacher, num_actions)
        self._labels = TeacherLabels(teacher, storage, loss.to_gaussian)
        self._heads = AuxiliaryHeads(self, student, reported_where=NEWEST)
        self.held_out = HeldOut(options, storage, ranks)
        """The environments that enter no loss."""
        trained = self.held_out.trained
        self._dagger = Dagger(options, storage.num_envs, trained, lambda: self.num_updates)
        averaged = {"student": student, **self._heads.networks} if options.weight_average else {}
        self._average = WeightAverage(averaged)
        own = self._dagger, self._heads, self.held_out, self.curricula
        # The teacher comes first, since nothing starts without it; the average after the heads.
        self.extensions = [self.lazy_teacher, *own, self._average]
        self.experience = Experience(self, self._labels)
        """The newest rollout and the replay buffer."""
        self._student = Student(self, student, loss)
        num_steps, device = storage.num_transitions_per_env, storage.dones.device
        self._num_envs_of_ranks = ranks.sum_count(storage.num_envs, device)
        self._num_trained_of_ranks = ranks.sum_count(len(trained), device)
        self._step_batches = step_batches(num_steps, self._num_envs_of_ranks, device)
        self._prepare_recording(self._student.replay)
        self.transaction = Transaction(self, [student], self.experience.largest_mini_batch)

    @staticmethod
    def construct_algorithm(obs: TensorDict, env: VecEnv, cfg: dict, device: str) -> Distillation:
        """Build models, storage and algorithm from the runner's config, as rsl_rl does.

        Args:
            obs: Observations of the environment; groups that are no tensors are left out.
            env: The environment.
            cfg: The runner's config. "check_for_nan" is set to False: the algorithm checks instead.
            device: Device of the update.

        Raises:
            ValueError: If the config or an observation group is not valid; see ``checked_config``.
        """
        obs, configs = checked_config(obs, cfg)
        teacher_cfg = cfg["teacher"]
        cfg["teacher"] = with_controllers(teacher_cfg, env)
        try:
            algorithm = Distillation.construct_algorithm(obs, env, cfg, device)
        finally:
            cfg["teacher"] = teacher_cfg
        if isinstance(algorithm, DistillationRollouts):
            algorithm._join_runner(obs, env, cfg, configs)
            algorithm.max_iterations = cfg.get("max_iterations")
        return algorithm

    @property
    def last_update(self) -> int | None:
        """Number of updates at which the learning rate has fallen; None if it is kept."""
        updates, length = self.options.learning_rate_updates, self.max_iterations
        if updates != "auto":
            return updates
        return self._resumed_end or (length and length * (1 + self.num_updates // length))

    @torch.no_grad()  # a graph of your own loop's gradients would belong to another stream
    def act(self, obs: TensorDict) -> torch.Tensor:
        """Sample the student's actions, record the teacher's labels and choose who acts.

        The student runs forward in every environment, so its state stays continuous where the
        teacher acts. The first step of a rollout draws the environments where it does. Return the
        actions to execute, shape (N, A), for observations of batch size (N,).

        Raises:
            ValueError: If observations differ in form from the first ones. At the first step also
                if an option does not fit the environments, the teacher's file cannot be loaded, or
                a runner's student has no distribution.
        """
        self._start_training(self._check_training)
        obs = self._begin_step(obs)
        self._average.put_newest()
        if self.storage.step == 0:
            self.experience.begin_rollout()
        actions = self.student(obs, stochastic_output=True).detach()
        labels = self._labels.of_step(self.teacher, obs, self.storage.step)
        self.transition.observations = obs
        self.transition.privileged_actions = labels.clone()  # a controller may reuse its output
        self.transition.actions = self._dagger.mix(actions, labels)
        return self.transition.actions.clone()  # the environment may change them

    def _check_training(self) -> None:
        """Check the student and the options against the size of a training.

        Raises:
            ValueError: See :meth:`act`.
        """
        if self.model_configs is not None and self._raw_student.distribution is None:
            raise ValueError(
                "student.distribution_cfg is None, expected a distribution, such as"
                " {'class_name': 'GaussianDistribution', 'init_std': 0.1}: rsl_rl's runner"
                " logs its standard deviation."
            )
        self.options.check_training(self.storage.num_envs)

    def process_env_step(
        self, obs: TensorDict, rewards: torch.Tensor, dones: torch.Tensor, extras: dict
    ) -> None:
        """Store the step and clear the states of finished episodes.

        The normaliser is updated at the end of ``update()`` only, so that the replay uses the
        rollout's normalisation. Shape of rewards and dones: (N,).

        Raises:
            ValueError: If :class:`StepChecks` rejects the step.
        """
        rewards, dones = self.step_checks.step(obs, rewards, dones)
        self.transition.rewards = rewards
        self.transition.dones = dones
        for extension in self.extensions:
            extension.process_env_step(self.storage.step, rewards, dones)
        self.storage.add_transition(self.transition)
        self.transition.clear()
        self.student.reset(dones)
        self.teacher.reset(dones)

    def _kept(self) -> list[Any]:
        return [*super()._kept(), self.experience]

    def stateful_models(self) -> dict[str, Any]:
        """Return all models with hidden states, by their roles in checkpoints."""
        return {"student": self._raw_student, **models_by_role(self._raw_teacher)}

    def _read_groups(self) -> set[str]:
        return self._read_by([self._raw_student, self._raw_teacher])

    def _inputs(self) -> Inputs:
        stored = self.storage.observations
        seen = {*observed_groups(self._raw_student, stored)}
        targets = {*observed_groups(self._raw_teacher, stored), *self._heads.observed_groups()}
        others = {group: values for group, values in stored.items() if group in targets - seen}
        recorded: dict[str, Any] = {
            **{f"observation group '{group}'": values for group, values in others.items()},
            **self._labels.recorded(),
        }
        return Inputs(seen, recorded)

    def eval_mode(self) -> None:
        """Set the models to evaluation; the student is the one that is saved."""
        super().eval_mode()
        self._average.put_average()

    def save(self) -> dict:
        """Return rsl_rl's checkpoint, with this algorithm's part under "rsl_tbptt".

        That part has the number of updates, the models' configs, auxiliary heads and, with
        ``save_buffer``, the replay buffer. rsl_rl ignores that key.
        """
        self._average.put_average()  # in the midst of a rollout, too
        own = {"num_updates": self.num_updates, **self._described(self.stateful_models())}
        own["planned_updates"] = self._planned_updates
        past = self.experience.past() if self.options.save_buffer else None
        if past is not None:
            own["buffer"] = past
        return {**super().save(), "rsl_tbptt": own}

    def load(self, loaded_dict: dict, load_cfg: dict | None, strict: bool) -> bool:
        """Load a checkpoint as rsl_rl does, after checking that all of it fits.

        A PPO checkpoint loads the teacher; a distillation checkpoint loads student, teacher,
        optimiser and iteration. With the student come its number of updates (0 from rsl_rl),
        auxiliary heads and, with ``save_buffer``, the replay buffer; otherwise that is emptied.
        From a checkpoint of rsl_rl 1 to 3 only models are loaded. A teacher without parameters is
        not loaded.
        ``load_cfg`` selects what to load; ``strict`` requires that parameters match exactly. Return
        whether the runner should take over the iteration.

        Raises:
            ValueError: If parameters or optimiser do not fit or are missing, or if the models were
                configured differently. Nothing is changed then.
        """
        given, (loaded_dict, load_cfg) = loaded_dict, as_models(loaded_dict, load_cfg)
        has_student = "student_state_dict" in loaded_dict
        names = ("student", "optimizer", "iteration")
        of_all = {"teacher": True, **dict.fromkeys(names, has_student)}
        wants = dict(of_all if load_cfg is None else load_cfg)
        of_controller = loaded_dict.get("teacher_state_dict", True) == {}
        if not has_parameters(self._raw_teacher) or of_controller:
            wants["teacher"] = False
        obs, source = self.storage.observations, (loaded_dict, self.checkpoint_path)
        if strict and wants.get("teacher"):
            parameters = teacher_state_dict(loaded_dict, "The checkpoint")
            check_teacher(self._raw_teacher, parameters, obs, *source)
        own = loaded_dict.get("rsl_tbptt", {})
        buffer = own.get("buffer") if self.options.save_buffer else None
        if wants.get("student"):
            if strict:
                parameters = student_state_dict(loaded_dict)
                check_fits(self._raw_student, parameters, "student", obs, *source)
            self.experience.check(buffer)
        self._check_extensions(own, wants)
        if wants.get("optimizer"):
            check_optimizer(self.optimizer, loaded_dict)
        load_iteration = super().load(loaded_dict, wants, strict)
        if wants.get("optimizer"):
            set_rate(self.optimizer, self.options.learning_rate)  # a schedule sets it in updates
        if wants.get("teacher"):
            self.lazy_teacher.is_loaded = True
        if wants.get("student"):
            self.num_updates = own.get("num_updates", 0)
            planned = own.get("planned_updates") or 0
            self._resumed_end = planned if self.num_updates < planned else None
            self.experience.restore(buffer)
        self._load_extensions(own, wants)
        resumes = bool(wants.get("student"))
        self.curricula.go_on_from(given, resumes=resumes)
        return load_iteration

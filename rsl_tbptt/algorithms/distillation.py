"""Distillation of a teacher into a recurrent student by truncated BPTT: read from top to bottom."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from rsl_rl.env import VecEnv
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.algorithms import optimizers
from rsl_tbptt.algorithms.base import Algorithm, Values, checked_config
from rsl_tbptt.algorithms.behavior_losses import resolve_behavior_loss
from rsl_tbptt.algorithms.find_nan import Inputs
from rsl_tbptt.algorithms.frames import deduplicate_frames
from rsl_tbptt.algorithms.heads import Heads
from rsl_tbptt.algorithms.health import FirstReplay
from rsl_tbptt.algorithms.held_out import ERROR, HeldOut
from rsl_tbptt.algorithms.options import DistillationOptions
from rsl_tbptt.algorithms.replay import Objective, Policy, Replay, observed_groups, set_state
from rsl_tbptt.algorithms.replay_buffer import Drawn, Experience
from rsl_tbptt.algorithms.teachers import Dagger, TeacherFile, TeacherLabels
from rsl_tbptt.algorithms.undo import whole_or_nothing
from rsl_tbptt.algorithms.weight_average import WeightAverage
from rsl_tbptt.checkpoints.describing import check_fits
from rsl_tbptt.checkpoints.reading import student_state_dict
from rsl_tbptt.compat.checkpoints import as_models
from rsl_tbptt.compat.versions import Distillation, MLPModel, teacher_state_dict
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.hidden_state import HiddenState, as_tensors
from rsl_tbptt.core.rollout import ACTIONS, BEHAVIOR, BUFFER, NEWEST, Samples
from rsl_tbptt.core.windows import num_steps_of_full_group, tbptt_schedule
from rsl_tbptt.extensions import Term
from rsl_tbptt.models.controller import as_teacher, has_parameters, with_controllers

LAST_SHARE = 0.03
"""Share of the learning rate left at the end, so that a longer training continues to learn."""


class TbpttDistillation(Algorithm, Distillation):
    """rsl_rl's Distillation with normalised, gradient-accumulating truncated BPTT.

    A drop-in: same constructor, storage, models, checkpoints and runner. ``update()`` replays the
    rollout with the current weights from the state the rollout started with, window by window, and
    steps the optimiser every ``update_length`` steps. Labels are stored in the rollout, so a
    recurrent teacher is never replayed and keeps its state. The teacher can act in a share of the
    environments (DAgger); the student runs forward in all of them.
    """

    options: DistillationOptions
    num_updates: int
    policy_role = "student"

    max_iterations: int | None = None
    """Updates of a training, if the runner's config tells."""

    _planned_updates: int | None = None
    """The last update of the schedule that the newest update followed."""

    _declared_loaded = False
    """Whether somebody has set ``teacher_loaded``."""

    _resumed_end: int | None = None
    """The same of a training that was broken off, from its checkpoint; the schedule goes on."""

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
            teacher: Model to imitate, or a controller; see :class:`Controller`.
            storage: rsl_rl's rollout storage of type "distillation".
            device: Device of the update.
            multi_gpu_cfg: rsl_rl's description of the processes, or None for one process.
            rnd_cfg: Must be None.
            symmetry_cfg: Must be None.
            **options: Fields of :class:`DistillationOptions`.

        Raises:
            ValueError: If an option is unknown, invalid or contradicts another, or if a model
                cannot read a group of that type.
            NotImplementedError: If a model lacks the Gaussian or the latent that a loss needs.
        """
        if rnd_cfg is not None or symmetry_cfg is not None:
            raise ValueError("rnd_cfg and symmetry_cfg mean nothing in distillation: remove them.")
        self.options = DistillationOptions.parse(options)
        self.options.check_rollout(storage.num_transitions_per_env)
        super().__init__(
            student,
            as_teacher(teacher, storage.actions.shape[-1]),
            storage,
            num_learning_epochs=self.options.num_learning_epochs,
            gradient_length=1,  # divides every rollout, so rsl_rl does not warn of dropped steps
            learning_rate=self.options.learning_rate,
            max_grad_norm=self.options.max_grad_norm,
            optimizer=self.options.optimizer,
            device=device,
            multi_gpu_cfg=multi_gpu_cfg,
        )
        self.gradient_length = self.options.gradient_length
        # ``compile`` replaces ``student`` and ``teacher``; rsl_rl 5.0 lacks these two.
        self._raw_student, self._raw_teacher = self.student, self.teacher
        self.set_up({"student": self.student, "teacher": self.teacher})

    def build(self) -> None:
        """Make labels, extensions, the schedule of windows, the experience and the objective."""
        options, storage, ranks = self.options, self.storage, self.ranks
        student, teacher = self._raw_student, self._raw_teacher
        num_steps, device = storage.num_transitions_per_env, storage.dones.device
        self._num_steps, path = num_steps, options.teacher_checkpoint
        self.teacher_file = TeacherFile(teacher, path, storage.observations, ranks)
        num_actions = storage.privileged_actions.shape[-1]
        self._loss = resolve_behavior_loss(options.loss_type, student, teacher, num_actions)
        self._labels = TeacherLabels(storage, self._loss.to_gaussian)
        self.extensions = [Heads(options, self, student)]
        self.modules = [student]
        self._num_envs_of_ranks = ranks.sum_count(storage.num_envs, device)
        self._step_batches = optimizers.step_batches(num_steps, self._num_envs_of_ranks, device)

        lengths = options.gradient_length, options.update_length
        groups = tbptt_schedule(num_steps, *lengths, tail=options.tail)
        self.groups = [group for group in groups if group[-1].num_loss_steps > 0]
        """The windows of each optimiser step of a pass."""
        self._dropped_tail = groups[len(self.groups) :]
        self.held_out = HeldOut(options, storage, ranks)
        """The environments that enter no loss."""
        self.held_out.groups = self.groups
        trained = self.held_out.trained
        self._dagger = Dagger(options, storage.num_envs, trained, lambda: self.num_updates)
        self._num_trained_of_ranks = ranks.sum_count(len(trained), device)
        self.num_loss_steps = sum(w.num_loss_steps for group in groups for w in group)
        """Steps of a rollout that enter the loss."""
        steps_per_group = num_steps_of_full_group(num_steps, *lengths)
        self._flushed_steps = self.num_loss_steps % steps_per_group
        self._steps_in_mean = steps_per_group if options.loss_reduction == "mean" else 1

        self.first_replay = FirstReplay()
        """Metrics of the first replay of an update."""
        self.experience = Experience(student, storage, options, ranks, trained, self._all_labels)
        """The newest rollout and the replay buffer."""
        self.largest_mini_batch = self.experience.largest_mini_batch
        self.objective = Objective(self._replay_of(student, self.first_replay), self.losses)
        self.objectives = [self.objective]

    def _replay_of(self, model: Any, first_replay: FirstReplay | None = None) -> Replay:
        """Return the replay of the student or its average."""
        sizes = self.largest_mini_batch, min(self.options.gradient_length, self._num_steps)
        of_distribution = self._loss.of_distribution
        return Replay(model, self.options, *sizes, first_replay, needs_distribution=of_distribution)

    def _prepare_updates(self) -> None:
        """Set up, with the extensions known, the average of the weights and the deployed policy."""
        averaged = {"student": self._raw_student}
        for extension in self.extensions:
            averaged |= {f"{extension.name}/{n}": m for n, m in extension.modules.items()}
        self._average = WeightAverage(averaged, averages=self.options.weight_average)
        self.modules = [*self.modules, *self._average.modules.values()]
        self._deployed: Any = self._average.modules["student"]
        """The copy of the student that acts in held-out environments, with its own memory."""
        self.held_out.objective = Objective(self._replay_of(self._deployed), self._measured_terms)
        super()._prepare_updates()

    def _all_labels(self) -> dict[str, Any]:
        """Return the labels of the stored rollout: the teacher's and those of extensions."""
        return {**self._labels.of_rollout(), **self.labels_of_extensions()}

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
        copied = {**cfg, "teacher": with_controllers(cfg["teacher"], env)}
        algorithm = Distillation.construct_algorithm(obs, env, copied, device)
        if isinstance(algorithm, TbpttDistillation):
            algorithm._join_runner(obs, env, cfg, configs)
            algorithm.max_iterations = cfg.get("max_iterations")
        return algorithm

    @property
    def teacher_loaded(self) -> bool:
        """Whether training can start, for rsl_rl's runners, which ask before it.

        Raises:
            ValueError: If there will be no teacher; rsl_rl's own error does not say how to name it.
        """
        return self._declared_loaded or self.teacher_file.check()

    @teacher_loaded.setter
    def teacher_loaded(self, is_loaded: bool) -> None:
        self._declared_loaded = is_loaded

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
        if not self._started and (checkpoint := self.teacher_file.load()):
            self.curricula.go_on_from(checkpoint)
        obs, step = self.begin_step(obs, self._check_training), self.storage.step
        if step == 0:
            self._dagger.begin_rollout()
            self.experience.begin_rollout()
            self._average.follow()
            self.held_out.begin_rollout(self._deployed)
        actions = self.student(obs, stochastic_output=True).detach()
        labels = self._labels.of_step(self.teacher, obs, step)
        self.transition.observations = obs
        self.transition.privileged_actions = labels.clone()  # a controller may reuse its output
        actions = self._dagger.mix(actions, labels)
        self.transition.actions = self.held_out.act(self._deployed, obs, actions)
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
        self.held_out.process_env_step(self._deployed, rewards, dones)
        self.store(obs, rewards, dones)

    @whole_or_nothing
    def update(self) -> Values:
        """Train the student on the rollout and clear the storage; a failing update is undone.

        Return what the runner logs under ``Loss/``; docs/reference/metrics.md lists it. ``metrics``
        keeps it.

        Raises:
            ValueError: If a loss, gradient or result is NaN or inf and ``non_finite`` is "raise".
                Parameters, optimiser and normaliser are then as before the update.
        """
        held_out = self.begin_update()
        steps, health = [], {}
        ends: deque[tuple[Drawn, HiddenState]] = deque(maxlen=self.experience.num_mini_batches)
        for drawn in self.experience.draw(self.options.num_learning_epochs):
            state = None
            for group in range(len(self.groups)):
                state, sums, measured = self.step(drawn, state, group, first=not steps)
                steps.append(sums)
                health |= measured
            ends.append((drawn, state))
        self._keep_states_after(ends)
        metrics = self._metrics(steps, health) | held_out
        stored = self.storage.observations
        optimizers.update_normalization([self._raw_student], stored, self._step_batches)
        return metrics

    def begin_update(self) -> Values:
        """Put everything that the steps of an update read into its place.

        Returns:
            Measurements of the held-out environments, () each.
        """
        last = self._planned_updates = self.last_update
        if last is not None:  # heads follow the rate, and the runner logs it
            share = max(LAST_SHARE, 1.0 - self.num_updates / last)
            optimizers.set_rate(self.optimizer, self.options.learning_rate * share)
        taken = self.objective.rollout, self.objective.states = self.experience.take()
        self._state_after = hidden_state.clone(self._raw_student.get_hidden_state())
        if self.experience.buffer is None:  # a buffer stays where it is
            self.objective.rollout, self.objective.states = self.recorder.place("newest", taken)
        held_out = self.held_out
        held_out.objective.rollout = self.objective.rollout
        self.begin_steps(self.objective.rollout, self.objective.states)
        read = self.experience.columns_of(held_out.envs), held_out.states, held_out.returns
        if self.ranks.together or not len(held_out.envs):  # no recording contains an exchange
            return held_out.measure(*read)
        return self.recorder(held_out.measure, *read)

    def step(
        self, drawn: Drawn, state: HiddenState, group: int, *, first: bool = False
    ) -> tuple[HiddenState, Values, Values]:
        """Make one optimiser step; it reads and writes tensors at fixed addresses only.

        Args:
            drawn: The mini-batch.
            state: State before the group, (L, n, H); of the first group it is taken from storage.
            group: Index of the group of windows.
            first: Whether the step also measures the health of the replay.

        Returns:
            The detached state after the group; sums of the terms and the norm of the gradient;
            measurements of a first step, () each.
        """
        divisor = self._steps_in_mean * drawn.num_sequences  # M of a full group, over all ranks
        fixed = {"group": group, "num_parts": self.transaction.num_micro_batches, "first": first}
        state, sums, health = self.recorder(self.gradients, drawn.columns, state, divisor, **fixed)
        sums = self.exchange(sums)
        return state, self.recorder(self.conclude, sums), health

    def gradients(
        self,
        columns: torch.Tensor,
        state: HiddenState,
        divisor: int | torch.Tensor,
        *,
        group: int,
        num_parts: int,
        first: bool = False,
    ) -> tuple[HiddenState, Values, Values]:
        """Compute the gradient of a group of windows on this rank.

        Args:
            columns: Columns of the rollout. Shape: (n,).
            state: State before the group, (L, n, H); of the first group it is taken from storage.
            divisor: M, the divisor of the sum of per-sample losses. Shape: ().
            group: Index of the group of windows.
            num_parts: Minimum number of micro-batches, which run one after the other.
            first: Whether to measure the health of the replay.

        Returns:
            The detached state after the group, sums of the terms, and the measurements, () each.
        """
        if group == 0:
            state = hidden_state.select_envs(self.objective.states, columns)
        with self.new_gradients(), self.first_replay.watching(first):
            state, sums = self.objective.accumulate(
                self.groups[group], columns, state, divisor, num_parts
            )
        if not first:
            return state, sums, {}
        self.objective.check_gradient("loss_type")
        measured = self.first_replay.metrics()
        return state, sums, self.measure_health(self.stateful_models(), measured)

    def conclude(self, sums: Values) -> Values:
        """Clip the gradients and step the optimisers.

        Args:
            sums: Sums of the terms. Shape: () each.

        Returns:
            The sums and the norm of the student's gradient before clipping, () each.
        """
        (norm,) = optimizers.clip_gradients([self.objective], self.options.max_grad_norm)
        self.step_optimizers()
        return {**sums, "grad_norm": norm}

    def losses(self, policy: Policy, samples: Samples) -> Iterator[Term]:
        """Yield the terms of the student's loss: the behaviour's, then those of extensions."""
        self.change_outputs(policy, samples)
        values = self._loss.per_sample(policy, samples)
        if self._loss.of_actions:
            self.first_replay.see_labels(policy.mean, samples[ACTIONS])
        yield BEHAVIOR, 1.0, values
        if NEWEST in samples:
            yield BUFFER, 0.0, values
        yield from self.losses_of_extensions(policy, samples)

    def _measured_terms(self, policy: Policy, samples: Samples) -> Iterator[Term]:
        """Yield what is measured in held-out environments."""
        yield BEHAVIOR, 1.0, self._loss.per_sample(policy, samples)
        if self._loss.of_actions:
            yield ERROR, 0.0, (policy.mean - samples[ACTIONS]).square().flatten(2).sum(2)

    def _keep_states_after(self, ends: Sequence[tuple[Drawn, HiddenState]]) -> None:
        """Store the hidden states after the rollout; run the dropped tail first.

        Args:
            ends: The mini-batches of the last pass, and the state after the last group of each.
                Shape: (L, n + m, H).
        """
        states, num_parts = [], self.transaction.num_micro_batches
        for drawn, state in ends:
            columns = drawn.columns[: len(drawn.envs)]
            state = hidden_state.select_envs(state, slice(len(columns)))
            if self._dropped_tail:
                state = self.recorder(self.after_dropped_tail, columns, state, num_parts=num_parts)
            states.append(state)
        envs = torch.cat([drawn.envs for drawn, _ in ends])
        end = hidden_state.concatenate_envs(states)
        for kept, new in zip(*map(as_tensors, (self._state_after, end)), strict=True):
            kept.index_copy_(1, envs, new)

    def after_dropped_tail(
        self, columns: torch.Tensor, state: HiddenState, *, num_parts: int
    ) -> HiddenState:
        """Return the state, (L, n, H), after the steps that no loss reaches.

        Args:
            columns: Columns of the rollout. Shape: (n,).
            state: State before these steps. Shape: (L, n, H).
            num_parts: Minimum number of micro-batches, which run one after the other.
        """
        for group in self._dropped_tail:
            state, _ = self.objective.accumulate(group, columns, state, 1, num_parts)
        return state

    def _metrics(self, steps: list[Values], health: Values) -> Values:
        """Return the metrics of an update, given the sums of its steps. Shape: () each."""
        trained, past = self._num_trained_of_ranks, self.experience.num_sequences
        num_steps = self.num_loss_steps * self.options.num_learning_epochs
        sizes = {BUFFER: num_steps * (past - trained), "grad_norm": len(steps)}
        means = {
            name: torch.stack([sums[name] for sums in steps]).sum()
            / sizes.get(name, num_steps * trained)
            for name in steps[0]
            if name != BUFFER or self.experience.num_drawn > 0
        }
        num_robot_steps = self.storage.num_transitions_per_env * self._num_envs_of_ranks
        return {**means, **self.shared_metrics(num_robot_steps), **health, **self._dagger.metrics()}

    def _advance(self, metrics: dict[str, float]) -> dict[str, float]:
        for extension in self.extensions:
            extension.advance(metrics)
        self.held_out.advance(metrics)
        self._average.advance()
        set_state(self._raw_student, self._state_after, self.dones[-1])
        self.num_updates += 1
        num_passes = self.options.num_learning_epochs * self.experience.num_mini_batches
        metrics["optimizer_steps"] = float(num_passes * len(self.groups))
        metrics["flushed_steps"] = float(self._flushed_steps)
        self.experience.keep_newest(self.num_loss_steps)  # last: it cannot be undone
        return metrics

    def _add_gradients_of(self, envs: slice, num_micro_batches: int) -> None:
        """Compute the gradient of an epoch, on this rank and some environments.

        Environments beyond the last one start over, as a mini-batch with past sequences can be
        larger than the rollout.
        """
        self.objective.rollout, trained = self.experience.newest(), self.experience.trained
        deduplicate_frames(self.objective.rollout.obs)
        rows = torch.arange(envs.stop or len(trained), device=trained.device)
        columns = trained[rows % len(trained)]
        state = hidden_state.select_envs(self.experience.start_state, columns)
        divisor = self._steps_in_mean * len(columns)
        with self.new_gradients():
            for group in (*self.groups, *self._dropped_tail):
                state, _ = self.objective.accumulate(
                    group, columns, state, divisor, num_micro_batches
                )

    def kept_objects(self) -> list[Any]:
        """Return the objects whose attributes an update replaces."""
        return [*super().kept_objects(), self.experience, self._average]

    def models_that_act(self) -> Iterable[Any]:
        """Return student and teacher, in compiled form."""
        return self.student, self.teacher

    def stateful_models(self) -> dict[str, Any]:
        """Return all models with hidden states, by their roles in checkpoints."""
        return {"student": self._raw_student, "teacher": self._raw_teacher}

    def running_state(self) -> dict[str, Any]:
        """Return values that only the continuation of running episodes needs, by name."""
        return self.held_out.running_state(self._deployed)

    def resume(self, state: Mapping[str, Any]) -> None:
        """Restore values of ``running_state``: the episodes continue."""
        self.held_out.resume(state, self._deployed)

    def _read_groups(self) -> set[str]:
        return self.read_by([self._raw_student, self._raw_teacher])

    def _inputs(self) -> Inputs:
        stored = self.storage.observations
        read = {*observed_groups(self._raw_student, stored)}
        targets = {*observed_groups(self._raw_teacher, stored)}
        targets = targets.union(*(extension.observed_groups() for extension in self.extensions))
        others = {group: values for group, values in stored.items() if group in targets - read}
        recorded: dict[str, Any] = {
            **{f"observation group '{group}'": values for group, values in others.items()},
            **self._labels.recorded(),
            **self.recorded_by_extensions(),
        }
        return Inputs(read, recorded)

    def get_policy(self) -> Any:
        """Return the student with the average of its weights, which runners save, export and play.

        It has the noise of the newest actions, which runners log. While the algorithm is built,
        extensions get the student that acts.
        """
        newest: Any = self._raw_student
        average: Any = self._average.of(newest) if self._is_built else newest
        if average is not newest and newest.distribution is not None:
            of_module = vars(nn.Module())
            noise = {k: v for k, v in vars(newest.distribution).items() if k not in of_module}
            vars(average.distribution).update(noise)
        return average

    def saved_form(self, module: nn.Module) -> nn.Module:
        """Return the average of a module, which is saved in its place."""
        return self._average.of(module)

    def save(self) -> dict:
        """Return rsl_rl's checkpoint, with this algorithm's part under "rsl_tbptt".

        The student has the average of its weights. That part has the newest ones, the number of
        updates, the models' configs, extensions and, with ``save_buffer``, the replay buffer.
        rsl_rl ignores that key.
        """
        part = {"num_updates": self.num_updates, **self.describe(self.stateful_models())}
        part["planned_updates"] = self._planned_updates
        if average := self._average.saved():
            part["weight_average"] = average
        past = self.experience.past() if self.options.save_buffer else None
        if past is not None:
            part["buffer"] = past
        student = {"student_state_dict": self._average.of(self._raw_student).state_dict()}
        return {**super().save(), **student, "rsl_tbptt": part}

    def load(self, loaded_dict: dict, load_cfg: dict | None, strict: bool) -> bool:
        """Load a checkpoint as rsl_rl does, after checking that all of it fits.

        A PPO checkpoint loads the teacher; a distillation checkpoint loads student, teacher,
        optimiser and iteration. With the student come its number of updates (0 from rsl_rl),
        extensions and, with ``save_buffer``, the replay buffer; otherwise that is emptied.
        From a checkpoint of rsl_rl 1 to 3 only models are loaded. A teacher without parameters is
        not loaded.
        ``load_cfg`` selects what to load; ``strict`` requires that parameters match exactly. Return
        whether the runner should take over the iteration.

        Raises:
            ValueError: If parameters or optimiser do not fit or are missing, or if the models were
                configured differently. Nothing is changed then.
        """
        checkpoint, load_cfg = as_models(loaded_dict, load_cfg)
        has_student = "student_state_dict" in checkpoint
        names = ("student", "optimizer", "iteration")
        everything = {"teacher": True, **dict.fromkeys(names, has_student)}
        wants = dict(everything if load_cfg is None else load_cfg)
        of_controller = checkpoint.get("teacher_state_dict", True) == {}
        if not has_parameters(self._raw_teacher) or of_controller:
            wants["teacher"] = False
        stored, source = self.storage.observations, (checkpoint, self.checkpoint_path)
        part = checkpoint.get("rsl_tbptt", {})
        buffer = part.get("buffer") if self.options.save_buffer else None
        with self.transaction.undone_on_error():
            if strict and wants.get("teacher"):
                parameters = teacher_state_dict(checkpoint, "The checkpoint")
                check_fits(self._raw_teacher, parameters, "teacher", stored, *source)
            if wants.get("student"):
                if strict:
                    student_state_dict(checkpoint)  # names what a file of PPO is for
                    self.check_models({"student": self._raw_student}, checkpoint, strict)
                self.experience.check(buffer)
            if wants.get("optimizer"):
                optimizers.check_optimizer(self.optimizer, checkpoint)
            self.load_extensions(part, wants)
            load_iteration = super().load(checkpoint, wants, strict)
        if wants.get("optimizer"):
            self.resume_rate({})  # a schedule sets it in updates
        if wants.get("teacher"):
            self.teacher_file.is_loaded = True
        if wants.get("student"):
            self.num_updates = part.get("num_updates", 0)
            planned = part.get("planned_updates") or 0
            self._resumed_end = planned if self.num_updates < planned else None
            self.experience.restore(buffer)
            self._average.load(part.get("weight_average", {}))
        self.curricula.go_on_from(loaded_dict)
        return load_iteration

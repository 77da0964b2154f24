"""Distillation of a teacher into a (recurrent) student by truncated BPTT."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from rsl_rl.env import VecEnv
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.algorithms.algorithm import Algorithm
from rsl_tbptt.algorithms.behavior_losses import ACTIONS, BUFFER, NEWEST, resolve_behavior_loss
from rsl_tbptt.algorithms.extensions import Extension
from rsl_tbptt.algorithms.extensions.heads import AuxiliaryHeads, parse_heads
from rsl_tbptt.algorithms.extensions.symmetry import STUDENT, MirroredRobots
from rsl_tbptt.algorithms.extensions.teachers import (
    Dagger,
    LazyTeacher,
    LossPerTeacher,
    RolloutLabels,
    StepLabels,
    TeacherLayers,
)
from rsl_tbptt.algorithms.extensions.weights import OPTION, SampleWeights, or_one
from rsl_tbptt.algorithms.find_nan import Inputs
from rsl_tbptt.algorithms.frames import deduplicate_frames
from rsl_tbptt.algorithms.health import FirstReplay, finite, obs_scales
from rsl_tbptt.algorithms.optimizers import (
    check_optimizer,
    set_rate,
    step_at,
    step_batches,
    update_normalization,
)
from rsl_tbptt.algorithms.options import (
    DistillationArguments,
    DistillationOptions,
    check_runner_keys,
    has_attributes_of,
    takes,
)
from rsl_tbptt.algorithms.replay import Replay, observed_groups, set_state
from rsl_tbptt.algorithms.replay_buffer import Drawn, Experience, weights_of
from rsl_tbptt.algorithms.step_checks import check_types, tensor_groups
from rsl_tbptt.algorithms.transaction import whole_or_nothing
from rsl_tbptt.checkpoints.describing import check_fits, model_configs
from rsl_tbptt.checkpoints.reading import student_state_dict
from rsl_tbptt.compat.rsl_rl3_checkpoints import as_models
from rsl_tbptt.compat.versions import Distillation, MLPModel, teacher_state_dict
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.memory import MemoryPlan, Sizes
from rsl_tbptt.core.rollout import Batch
from rsl_tbptt.core.windows import num_steps_of_full_group, tbptt_schedule
from rsl_tbptt.models.controller import as_teacher, has_parameters, with_controllers
from rsl_tbptt.models.protocol import check_rnn_types
from rsl_tbptt.models.teacher_group import check_teacher, models_by_role

LAST_SHARE = 0.03
"""Share of the learning rate left at the end, so that a longer training continues to learn."""


@has_attributes_of(DistillationOptions)
class TbpttDistillation(Algorithm, Distillation):
    """rsl_rl's Distillation with normalised, gradient-accumulating truncated BPTT.

    A drop-in: same constructor, storage, models, checkpoints and runner. ``update()`` replays the
    rollout with the current weights from the state the rollout started with, window by window, and
    steps the optimiser every ``update_length`` steps. Labels are stored in the rollout, so a
    recurrent teacher is never replayed and keeps its state. The teacher can act in a share of the
    environments (DAgger); the student runs forward in all of them.
    """

    checkpoint_path: str | None = None
    """Path of the checkpoint that ``load`` is given, if the runner or its config names it."""

    teacher_loaded: Any
    """Whether a checkpoint has loaded the teacher; reading it makes :class:`LazyTeacher` load."""

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
        symmetry_cfg: dict | None = None,
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
            symmetry_cfg: rsl_rl's description of symmetries for data augmentation, or None.
            **options: Fields of :class:`DistillationOptions`.

        Raises:
            ValueError: If an option is unknown, invalid or contradicts another, or if a model
                cannot read a group of that type.
            NotImplementedError: If a model lacks the Gaussian or the latent that a loss needs.
        """
        if rnd_cfg is not None:
            raise ValueError("rnd_cfg means nothing in distillation: remove it.")
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
        self._raw_student, self._raw_teacher = self.student, self.teacher  # rsl_rl 5.0 lacks them
        models = {"student": self._raw_student, "teacher": self._raw_teacher}
        check_types(models, storage.observations)
        self._prepare_surroundings()
        self.set_symmetry(symmetry_cfg)
        self.options.use()

    def set_symmetry(self, cfg: dict | None) -> None:
        """Train on mirrored sequences as well, or not; call it before the first rollout.

        Args:
            cfg: rsl_rl's description of symmetries, or None for none.

        Raises:
            ValueError: If it asks for something else than data augmentation, or contradicts an
                option.
        """
        mirrored: MirroredRobots | None = None
        if cfg:
            self.options.check_symmetry()
            mirrored = MirroredRobots(cfg, self.storage, [self._raw_student], distills=True)
        self.mirrored = mirrored
        """The mirror images of the robots, with symmetry."""
        self._prepare_extensions()
        self._prepare_updates()

    def _prepare_extensions(self) -> None:
        """Set up loss, labels and extensions."""
        options, storage, ranks = self.options, self.storage, self._ranks
        student, teacher = self._raw_student, self._raw_teacher
        path, weight = options.teacher_checkpoint, options.imitation_weight
        self.lazy_teacher = LazyTeacher(teacher, path, storage.observations, ranks)
        self.teacher_loaded = self.lazy_teacher
        of_heads = parse_heads(options.auxiliary)
        num_actions = storage.privileged_actions.shape[-1]
        loss = resolve_behavior_loss(options.loss_type, student, teacher, num_actions)
        in_batches = options.batch_teacher_labels
        layers = TeacherLayers(teacher, storage, of_heads, in_batches=in_batches)
        label = RolloutLabels if in_batches else StepLabels
        self._labels = label(teacher, storage, loss.to_gaussian, layers)
        self.sample_weights = None if weight is None else SampleWeights(weight, storage, ranks)
        """Weights of the samples; None if all are 1."""
        self._heads = AuxiliaryHeads(
            of_heads,
            student,
            storage,
            self.optimizer,
            options,
            layers=layers.outputs,
            reported_where=NEWEST,
        )
        self._dagger = Dagger(options, storage.num_envs, storage.dones.device)
        self._dagger.num_updates = lambda: self.num_updates
        per_teacher = LossPerTeacher(self._labels.teacher_names)
        of_option: list[Extension] = [e for e in (self.mirrored, self.sample_weights) if e]
        self.extensions = [*of_option, self._dagger, per_teacher, self._heads]
        self._first_replay, self._head_of_loss = FirstReplay(), loss.head
        self.loss: Any = loss
        """Loss to minimise."""
        if loss.of_actions and self.sample_weights is None:  # labels of weight 0 may be arbitrary
            self.loss = self._first_replay.beside(loss, ACTIONS)
        for extension in self.extensions:
            self.loss = extension.wrap(self.loss)
        self._means_of = (*loss.reported_names, *self._heads.reported)
        self._reported = (*self._means_of, *per_teacher.reported)

    def _prepare_updates(self) -> None:
        """Set up the schedule of windows, the replay of the student and the transaction."""
        options, storage, device = self.options, self.storage, self.storage.dones.device
        student, ranks, mirrored = self._raw_student, self._ranks, self.mirrored
        self.experience = Experience(
            student,
            storage,
            self._labels,
            options,
            ranks,
            self.extensions,
            self.sample_weights,
            mirrored,
        )
        """The newest rollout and the replay buffer."""
        num_steps = storage.num_transitions_per_env
        lengths = (options.gradient_length, options.update_length)
        groups = tbptt_schedule(num_steps, *lengths, tail=options.tail)
        self._schedule = [group for group in groups if group[-1].num_loss_steps > 0]
        self._dropped_tail = groups[len(self._schedule) :]
        self._steps_per_group = num_steps_of_full_group(num_steps, *lengths)
        is_mean = options.loss_reduction == "mean"
        self._steps_in_mean = self._steps_per_group if is_mean else 1  # a sequence's share of M
        self._num_loss_steps = sum(w.num_loss_steps for group in groups for w in group)
        self._num_envs_of_ranks = ranks.sum_count(storage.num_envs, device)
        self._step_batches = step_batches(num_steps, self._num_envs_of_ranks, device)
        self._student = Replay(
            student,
            self._head_of_loss,
            options=options,
            num_envs=self.experience.largest_mini_batch,
            num_robots=mirrored.num_robots if mirrored else 1,
            window_length=min(options.gradient_length, num_steps),
            heads=self._heads.outputs,
            first_replay=self._first_replay,
        )
        if mirrored:
            mirrored.replays = {STUDENT: self._student}
        self._prepare_recording([self._student], self._student.parameters)
        largest = self.experience.largest_mini_batch
        self._make_transaction([student], max_micro_batches=largest)

    @staticmethod
    def construct_algorithm(obs: TensorDict, env: VecEnv, cfg: dict, device: str) -> Distillation:
        """Build models, storage and algorithm from the runner's config, as rsl_rl does.

        Args:
            obs: Observations of the environment; groups that are no tensors are left out.
            env: The environment.
            cfg: The runner's config. Isaac Lab puts its ``--checkpoint`` into "load_checkpoint".
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
        symmetry_cfg = cfg["algorithm"].pop("symmetry_cfg", None)  # rsl_rl's own refuses it
        teacher_cfg = cfg["teacher"]
        cfg["teacher"] = with_controllers(teacher_cfg, env)
        try:
            algorithm = Distillation.construct_algorithm(obs, env, cfg, device)
        finally:
            cfg["teacher"] = teacher_cfg
            if symmetry_cfg:
                cfg["algorithm"]["symmetry_cfg"] = symmetry_cfg  # for a second runner of the config
        if isinstance(algorithm, TbpttDistillation):
            if symmetry_cfg:
                algorithm.set_symmetry({**symmetry_cfg, "env": env})
            algorithm._join_runner(obs, env, cfg, configs)
            algorithm.checkpoint_path = cfg.get("load_checkpoint")
        return algorithm

    def memory_plan(self) -> MemoryPlan:
        """Predict the memory of ``update()`` from its gradient on parts of the last rollout.

        Raises:
            ValueError: If there has been no complete rollout yet.
        """
        experience, largest = self.experience, self.experience.largest_mini_batch
        num_bytes = experience.buffer_size(experience.newest()).num_bytes
        sizes = Sizes(largest, self._student.least_micro_batches(largest), num_bytes)
        return self.transaction.plan_memory(sizes, self.parameters)

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
        if self.storage.step == 0:
            self._start_training()
            self.experience.begin_rollout()
        obs = self._begin_step(obs)
        actions = self.student(obs, stochastic_output=True).detach()
        labels = self._labels.of_step(self.teacher, obs, self.storage.step)
        self.transition.observations = obs
        self.transition.privileged_actions = labels.clone()  # a controller may reuse its output
        self.transition.actions = self._dagger.mix(actions, labels)
        return self.transition.actions.clone()  # the environment may change them

    def _start_training(self) -> None:
        """Load the teacher and check what training needs, once.

        Raises:
            ValueError: See :meth:`act`.
        """
        if self._started:
            return
        if self.health_log is not None and self._raw_student.distribution is None:
            raise ValueError(
                "student.distribution_cfg is None, expected a distribution, such as"
                " {'class_name': 'GaussianDistribution', 'init_std': 0.1}: rsl_rl's runner"
                " logs its standard deviation."
            )
        with torch.inference_mode(False):  # the runner's rollout disables gradients
            self.lazy_teacher.read()  # in a caller's own loop, no runner loads it
        self._ranks.run_together(partial(self.options.check_training, self.storage.num_envs))
        for extension in self.extensions:
            extension.start_training()
        self._started = True

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
        self._store_step(self.transition, extras)
        self.student.reset(dones)
        self.teacher.reset(dones)

    @whole_or_nothing
    def update(self) -> dict[str, torch.Tensor]:
        """Train the student on the rollout and clear the storage; a failing update is undone.

        Return what the runner logs under ``Loss/``; docs/reference/metrics.md lists it. In a runner
        ``health_log`` logs all but the losses. ``metrics`` has all.

        Raises:
            ValueError: If a loss, gradient or result is NaN or inf and ``non_finite`` is "raise".
                Parameters, optimiser and normaliser are then as before the update.
        """
        self._begin_update()
        num_passes, num_parts = self.options.num_learning_epochs, self.transaction.num_micro_batches
        steps, weights, health, concludes = [], [], {}, not self._ranks.together
        self._state_after = hidden_state.clone(self.experience.start_state)
        for drawn in self.experience.draw(num_passes):
            state, (divisor, of_newest_and_past) = None, self._divisor(drawn)
            weights.append(of_newest_and_past)
            for group in range(len(self._schedule)):
                fixed = {"group": group, "num_parts": num_parts, "concludes": concludes}
                arguments = drawn.columns, state, divisor
                state, *results = self.recorder(self.step, *arguments, first=not steps, **fixed)
                if not concludes:  # the recording ends where the ranks exchange gradients
                    results = self.recorder(self.conclude, *self._exchanged(*results))
                steps.append(results[0])
                health |= results[1]
            self._keep_end_state(drawn, state)
        metrics = self._metrics(torch.stack(steps), torch.stack(weights).sum(0), health)
        update_normalization([self._raw_student], self.storage.observations, self._step_batches)
        return metrics

    def step(
        self,
        columns: torch.Tensor,
        state: HiddenState,
        divisor: int | torch.Tensor,
        *,
        group: int,
        num_parts: int,
        first: bool = False,
        concludes: bool = True,
    ) -> tuple[Any, ...]:
        """Make one optimiser step; it reads and writes tensors at fixed addresses only.

        Args:
            columns: Columns of the rollout. Shape: (n,).
            state: State before the group, (L, n, H); of the first group it is taken from storage.
            divisor: M, the divisor of the weighted sum of per-sample losses. Shape: ().
            group: Index of the group of windows.
            num_parts: Minimum number of micro-batches, which run one after the other.
            first: Whether the step also measures the health of the replay.
            concludes: Whether the optimisers step; otherwise the gradients are returned.

        Returns:
            The detached state after the group, then the results of :meth:`conclude`, or its
            arguments.
        """
        self._zero_grad()
        if group == 0:
            state = hidden_state.select_envs(self._start_states, columns)
        batch, health = Batch(self._rollout, torch.zeros_like(columns), columns), {}
        with self._first_replay.watching(first):
            state, sums = self._student.accumulate(
                self._schedule[group],
                batch,
                state,
                self.loss,
                divisor,
                num_micro_batches=num_parts,
            )
        if first:
            self._student.check_gradient("loss_type")
            health = self._first_replay.metrics()
        zero = torch.zeros_like(next(iter(sums.values())))
        reported = torch.stack([sums.get(name, zero) for name in self._reported])
        results = reported, health, self._gradients()
        return state, *(self.conclude(*results) if concludes else results)

    def conclude(
        self,
        sums: torch.Tensor,
        health: dict[str, torch.Tensor],
        gradients: Sequence[torch.Tensor | None],
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Clip the gradients and step the optimisers.

        Args:
            sums: Sums of the reported values. Shape: (M,).
            health: Measurements of the replay, returned as they are.
            gradients: Gradients of ``parameters``.

        Returns:
            The sums and the norm of the student's gradient before clipping, (M + 1,); health.
        """
        self._set_gradients(gradients)
        max_norm = self.options.max_grad_norm or math.inf
        norm = nn.utils.clip_grad_norm_(self._student.parameters, max_norm)
        step_at(self.optimizer, self.rate)
        for extension in self.extensions:
            extension.step(self.rate)
        # Without gradients torch returns a norm on the CPU.
        return torch.cat((sums, norm.to(sums).view(1))), health

    def _begin_update(self) -> None:
        """Put everything that the steps of an update read into its place."""
        last_update = self.options.learning_rate_updates
        if last_update is not None:  # heads follow the rate, and the runner logs it
            share = max(LAST_SHARE, 1.0 - self.num_updates / last_update)
            set_rate(self.optimizer, self.options.learning_rate * share)
        self._rollout, self._start_states = self.experience.take()
        if self.experience.buffer is None:  # a buffer stays where it is
            self._rollout = self._placed("newest", self._rollout)
            self._start_states = self._placed_state("start", self._start_states)
        rollout, state = self._rollout, hidden_state.as_tensors(self._start_states)
        moving = rollout.labels, rollout.episode_starts, rollout.weights, state
        self._begin_steps(moving)

    def _divisor(self, drawn: Drawn) -> tuple[int | torch.Tensor, torch.Tensor]:
        """Return M of a mini-batch's groups over all ranks, and the sums of its weights, (2,).

        A sequence counts by the mean weight of its steps, so that a sample has the same weight
        in every group of windows.
        """
        if self._rollout.weights is None:
            return self._steps_in_mean * drawn.num_sequences, self.rate.new_zeros(2)
        weights = self._rollout.weights[: self._num_loss_steps]
        sums = weights_of(weights, drawn.columns, len(drawn.envs))
        num_sequences = or_one(self._ranks.sum_tensor(sums.sum()) / self._num_loss_steps)
        return self._steps_in_mean * num_sequences, sums

    def _keep_end_state(self, drawn: Drawn, state: HiddenState) -> None:
        """Keep the state of a mini-batch's environments after the rollout, dropped steps too."""
        columns = drawn.columns[: len(drawn.envs)]
        state = hidden_state.select_envs(state, slice(len(columns)))
        batch = Batch(self._rollout, torch.zeros_like(columns), columns)
        num_parts = self.transaction.num_micro_batches
        for group in self._dropped_tail:
            state, _ = self._student.accumulate(
                group, batch, state, self.loss, 1, num_micro_batches=num_parts
            )
        kept, ended = map(hidden_state.as_tensors, (self._state_after, state))
        for tensor, part in zip(kept, ended, strict=True):
            tensor.index_copy_(1, drawn.envs, part)

    def _metrics(
        self, steps: torch.Tensor, weights: torch.Tensor, health: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Return the metrics, taken before the normaliser is updated. Shape: () each.

        Args:
            steps: Reported sums and gradient norms of optimiser steps. Shape: (S, M + 1).
            weights: Sums of the weights of newest and past samples. Shape: (2,).
            health: Measurements of the first step.
        """
        experience, num_envs = self.experience, self._num_envs_of_ranks
        num_steps = self.options.num_learning_epochs * self._num_loss_steps
        sizes: Any = num_steps * num_envs, num_steps * (experience.num_sequences - num_envs)
        rows = steps.T.contiguous()
        means: dict[str, torch.Tensor] = dict(zip(self._reported, rows[:-1].sum(1), strict=True))
        if self.sample_weights is not None:
            weights = self._ranks.sum_tensor(weights)
            means[OPTION] = weights[0] / sizes[0]
            sizes = or_one(weights)
        for name in self._means_of:
            means[name] = means[name] / sizes[int(name == BUFFER)]
        if experience.num_drawn == 0:
            del means[BUFFER]
        dones = experience.dones().float()
        models = {"student": self._raw_student, "teacher": self._raw_teacher}
        return {
            **means,
            "grad_norm": rows[-1].mean(),
            "done_rate": self._ranks.mean(dones, len(dones) * num_envs),
            **{k: v for each in self.extensions for k, v in each.metrics().items()},
            **finite({**health, **obs_scales(models, self.storage.observations[0])}),
        }

    def _advance(self, metrics: dict[str, float]) -> dict[str, float]:
        end_state = self._state_after
        if self.mirrored:
            end_state = self.mirrored.split(STUDENT, end_state)
        for extension in self.extensions:
            extension.advance(metrics)
        set_state(self._raw_student, end_state, self.experience.dones()[-1])
        self.num_updates += 1
        num_passes = self.options.num_learning_epochs * self.experience.num_mini_batches
        metrics["optimizer_steps"] = float(num_passes * len(self._schedule))
        metrics["flushed_steps"] = float(self._num_loss_steps % self._steps_per_group)
        self.experience.keep_newest(self._num_loss_steps)  # last: it cannot be undone
        return metrics

    def _add_gradients_of(self, envs: slice, num_micro_batches: int) -> None:
        """Add the gradient of an epoch, on this rank and some environments, to ``.grad``.

        Environments beyond the last one start over, as a mini-batch with past sequences can be
        larger than the rollout.
        """
        num_envs, rollout = self.storage.num_envs, self.experience.newest()
        deduplicate_frames(rollout.obs)
        columns = torch.arange(envs.stop or num_envs, device=rollout.episode_starts.device)
        columns, divisor = columns % num_envs, self._steps_in_mean * len(columns)
        state = hidden_state.select_envs(self.experience.start_state, columns)
        self._zero_grad()
        batch = Batch(rollout, torch.zeros_like(columns), columns)
        for group in (*self._schedule, *self._dropped_tail):
            state, _ = self._student.accumulate(
                group, batch, state, self.loss, divisor, num_micro_batches=num_micro_batches
            )

    def _kept(self) -> list[Any]:
        return [*super()._kept(), self.experience]

    def _stateful_models(self) -> list[Any]:
        return [self._raw_student, *models_by_role(self._raw_teacher).values()]

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
        weights = {}
        if self.sample_weights is not None:
            given = self.sample_weights.given
            weights = {OPTION: given[: self._num_loss_steps]}
            # The loss excludes samples of weight 0, so their values are replaced by 0.
            recorded = {n: v.index_put((given == 0,), v.new_zeros(())) for n, v in recorded.items()}
        if self.mirrored:  # a memory reads them at steps of weight 0, too
            recorded |= self.mirrored.named_obs(seen)
        return Inputs(seen, recorded, weights)

    def save(self) -> dict:
        """Return rsl_rl's checkpoint, with this algorithm's part under "rsl_tbptt".

        That part has the number of updates, the models' configs, auxiliary heads and, with
        ``save_buffer``, the replay buffer. rsl_rl ignores that key.
        """
        models = {"student": self._raw_student, **models_by_role(self._raw_teacher)}
        own = {"num_updates": self.num_updates, **self._described(models)}
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
        loaded_dict, load_cfg = as_models(loaded_dict, load_cfg)
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
        if wants.get("teacher"):
            self.lazy_teacher.is_loaded = True
        if wants.get("student"):
            self.num_updates = own.get("num_updates", 0)
            self.experience.restore(buffer)
        self._load_extensions(own, wants)
        if load_iteration:
            self.emergency_save.go_on_from(loaded_dict)
        return load_iteration

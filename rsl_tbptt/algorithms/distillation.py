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

from rsl_tbptt.algorithms.base import TbpttAlgorithm
from rsl_tbptt.algorithms.behavior_losses import (
    ACTIONS,
    BUFFER,
    NEWEST,
    OPTION,
    SampleWeights,
    or_one,
    resolve_behavior_loss,
)
from rsl_tbptt.algorithms.extensions.heads import AuxiliaryHeads, parse_heads
from rsl_tbptt.algorithms.health import FirstReplay, finite, obs_scales
from rsl_tbptt.algorithms.optimizers import (
    check_optimizer,
    set_rate,
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
from rsl_tbptt.algorithms.replay_buffer import Experience, MiniBatch, weights_of
from rsl_tbptt.algorithms.step_checks import check_types, tensor_groups
from rsl_tbptt.algorithms.extensions.symmetry import STUDENT, MirroredRobots
from rsl_tbptt.algorithms.extensions.teachers import (
    Dagger,
    LazyTeacher,
    LossPerTeacher,
    RolloutLabels,
    StepLabels,
    TeacherLayers,
)
from rsl_tbptt.algorithms.transaction import Transaction, whole_or_nothing
from rsl_tbptt.checkpoints.describing import check_fits, model_configs
from rsl_tbptt.checkpoints.reading import student_state_dict
from rsl_tbptt.compat.rsl_rl3_checkpoints import as_models
from rsl_tbptt.compat.versions import Distillation, MLPModel, teacher_state_dict
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.memory import MemoryPlan, Sizes
from rsl_tbptt.core.rollout import Rollout, Segments
from rsl_tbptt.core.windows import num_steps_of_full_group, tbptt_schedule
from rsl_tbptt.models.controller import as_teacher, has_parameters, with_controllers
from rsl_tbptt.models.protocol import check_rnn_types
from rsl_tbptt.models.teacher_group import check_teacher, models_by_role

LAST_SHARE = 0.03
"""Share of the learning rate left at the end, so that a longer training continues to learn."""

_NEWEST, _PAST = "weight of newest", "weight of past"
"""Names of the sums of the samples' weights, if they have weights."""


class UpdateSums:
    """Sums of one update; they stay on the device until it ends."""

    def __init__(self) -> None:
        """Start empty."""
        self.reported: list[dict[str, torch.Tensor]] = []
        """Sums of losses and of weights, by name. Shape: () each."""
        self.grad_norms: list[torch.Tensor] = []
        """Gradient norms before clipping, one per optimiser step. Shape: () each."""

    def means(
        self,
        names: Sequence[str],
        per_teacher: LossPerTeacher,
        sizes: tuple[int, Any],
        ranks: Ranks,
        *,
        weighted: bool,
    ) -> dict[str, torch.Tensor]:
        """Return the means over the update and all processes (one exchange). Shape: () each.

        Args:
            names: Names that losses report.
            per_teacher: The losses of several teachers.
            sizes: Samples of the newest rollout and of the past, over all passes and processes.
            ranks: The processes.
            weighted: Whether samples have weights, whose sums then divide the losses.
        """
        zero = self.grad_norms[0].new_zeros(())
        wanted = (*names, *per_teacher.names, *((_NEWEST, _PAST) if weighted else ()))
        own = {name: [zero, *(s[name] for s in self.reported if name in s)] for name in wanted}
        total = ranks.sum_named({name: torch.stack(parts).sum() for name, parts in own.items()})
        divisors: tuple[Any, Any] = sizes
        means = {}
        if weighted:
            means[OPTION] = total[_NEWEST] / sizes[0]
            divisors = or_one(total[_NEWEST]), or_one(total[_PAST])
        means |= {name: total[name] / divisors[name == BUFFER] for name in names}
        means["grad_norm"] = torch.stack(self.grad_norms).mean()
        return {**means, **per_teacher.metrics(total)}


@has_attributes_of(DistillationOptions)
class TbpttDistillation(TbpttAlgorithm, Distillation):
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
        self._prepare_losses()
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
        self.mirrored: MirroredRobots | None = None
        """The mirror images of the robots, with symmetry."""
        if cfg:
            self.options.check_symmetry()
            self.mirrored = MirroredRobots(cfg, self.storage, [self._raw_student])
            self.mirrored.check_distillation()
        self._prepare_updates()

    def _prepare_losses(self) -> None:
        """Set up loss, labels, weights and auxiliary heads."""
        options, storage = self.options, self.storage
        student, teacher = self._raw_student, self._raw_teacher
        path, weight = options.teacher_checkpoint, options.imitation_weight
        self.lazy_teacher = LazyTeacher(teacher, path, storage.observations, self._ranks)
        self.teacher_loaded = self.lazy_teacher
        heads = parse_heads(options.auxiliary)
        num_actions = storage.privileged_actions.shape[-1]
        loss = resolve_behavior_loss(options.loss_type, student, teacher, num_actions)
        in_batches = options.batch_teacher_labels
        layers = TeacherLayers(teacher, storage, heads, in_batches=in_batches)
        label = RolloutLabels if in_batches else StepLabels
        self._labels = label(teacher, storage, loss.to_gaussian, layers)
        self.sample_weights = None if weight is None else SampleWeights(weight, storage)
        """Weights of the samples; None if all are 1."""
        self._heads = AuxiliaryHeads(
            heads, student, storage, self.optimizer, layers=layers.outputs, reported_where=NEWEST
        )
        self._dagger = Dagger(options, storage.num_envs, storage.dones.device)
        self._per_teacher = LossPerTeacher(self._labels.teacher_names)
        self._first_replay = FirstReplay()
        self._head_of_loss = loss.head
        self.loss = self._per_teacher.reported_by(loss)
        """Loss to minimise, without auxiliary heads."""
        if loss.of_actions and self.sample_weights is None:  # labels of weight 0 may be arbitrary
            self.loss = self._first_replay.beside(self.loss, ACTIONS)
        self._means_of = (*loss.reported_names, *self._heads.names)

    def _prepare_updates(self) -> None:
        """Set up the schedule of windows and the transaction of an update."""
        options, storage, device = self.options, self.storage, self.storage.dones.device
        student, ranks, heads = self._raw_student, self._ranks, self._heads
        weights, mirrored = self.sample_weights, self.mirrored
        self.experience = Experience(
            student, storage, self._labels, options, ranks, heads, weights, mirrored
        )
        """The newest rollout and the replay buffer."""
        num_steps = storage.num_transitions_per_env
        lengths = (options.gradient_length, options.update_length)
        self._schedule = tbptt_schedule(num_steps, *lengths, tail=options.tail)
        self._steps_per_group = num_steps_of_full_group(num_steps, *lengths)
        is_mean = options.loss_reduction == "mean"
        self._steps_in_mean = self._steps_per_group if is_mean else 1  # a sequence's share of M
        self._num_loss_steps = sum(w.num_loss_steps for group in self._schedule for w in group)
        self._end_state: HiddenState = None
        self._num_envs_of_ranks = ranks.sum_count(storage.num_envs, device)
        self._step_batches = step_batches(num_steps, self._num_envs_of_ranks, device)
        self._student = Replay(
            student,
            self._head_of_loss,
            options=options,
            num_envs=self.experience.largest_mini_batch,
            num_robots=self.mirrored.num_robots if self.mirrored else 1,
            window_length=min(options.gradient_length, num_steps),
            heads=heads,
            first_replay=self._first_replay,
        )
        if mirrored:
            mirrored.replays = {STUDENT: self._student}
        self._parameters = [*self._student.parameters, *heads.parameters]
        self.transaction = Transaction(
            storage,
            [student, heads.module],
            [self.optimizer, *heads.optimizers],
            options,
            ranks,
            others=lambda: [self, self.experience, self.mirrored],
            stateful_models=lambda: [student, *models_by_role(self._raw_teacher).values()],
            add_gradients=self._add_gradients_of,
            inputs=partial(self.experience.inputs, self._raw_teacher, self._num_loss_steps),
            max_micro_batches=self.experience.largest_mini_batch,
            on_drop=self._drop_rollout,
        )

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
        return self.transaction.plan_memory(sizes, self._parameters)

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
            self._start_rollout()
        obs = self._begin_step(obs)
        actions = self.student(obs, stochastic_output=True).detach()
        labels = self._labels.of_step(self.teacher, obs, self.storage.step)
        self.transition.observations = obs
        self.transition.privileged_actions = labels.clone()  # a controller may reuse its output
        self.transition.actions = self._dagger.mix(actions, labels)
        return self.transition.actions.clone()  # the environment may change them

    def _read_groups(self) -> set[str]:
        stored, weight = self.storage.observations, self.options.imitation_weight
        own = set() if weight is None else {weight}
        if self.mirrored or own - {*stored.keys()}:  # your functions may read any group
            return {*map(str, stored.keys())}
        models = self._raw_student, self._raw_teacher
        groups = {group for model in models for group in observed_groups(model, stored)}
        return groups | own | self._heads.targets.observed_groups()

    def _start_rollout(self) -> None:
        """Keep the state at the rollout's start; draw the environments where the teacher acts.

        Raises:
            ValueError: See :meth:`act`.
        """
        if not self._started:
            if self.health_log is not None and self._raw_student.distribution is None:
                raise ValueError(
                    "student.distribution_cfg is None, expected a distribution, such as"
                    " {'class_name': 'GaussianDistribution', 'init_std': 0.1}: rsl_rl's runner"
                    " logs its standard deviation."
                )
            with torch.inference_mode(False):  # the runner's rollout disables gradients
                self.lazy_teacher.read()  # in a caller's own loop, no runner loads it
            self._ranks.run_together(partial(self.options.check_training, self.storage.num_envs))
            if self.sample_weights is not None:  # check now: the first update is a rollout away
                self._ranks.run_together(self.sample_weights.try_out)
            self._started = True
        self.experience.begin_rollout()
        self._dagger.draw(self.num_updates)

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
        if self.sample_weights is not None:
            self.sample_weights.count_step(self.storage.step, dones)
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
        self._follow_schedule()
        self.experience.take()
        self.experience.plan()
        sums, drawn, end_states = UpdateSums(), [], []
        for _ in range(self.options.num_learning_epochs):
            drawn, end_states = list(self.experience.draw()), []
            for batch in drawn:
                rollout, state = self.experience.of(batch)
                divisor = self._divisor(batch, rollout, sums)
                newest = slice(len(batch.envs))
                for group in self._schedule:
                    has_loss = group[-1].num_loss_steps > 0
                    self._zero_grad()
                    if not has_loss:  # the dropped tail: only the newest need its state
                        rollout = rollout.envs(newest)
                        state = hidden_state.select_envs(state, newest)
                    first = not sums.grad_norms
                    with self._first_replay.watching(first=first):
                        state, reported = self._student.accumulate(
                            group,
                            rollout,
                            state,
                            self.loss,
                            divisor,
                            num_micro_batches=self.transaction.num_micro_batches,
                        )
                    if first:
                        self._student.check_gradient("loss_type")
                    if has_loss:
                        sums.reported.append(reported)
                        sums.grad_norms.append(self._optimizer_step())
                end_states.append(hidden_state.select_envs(state, newest))
        metrics = self._metrics(sums)
        update_normalization([self._raw_student], self.storage.observations, self._step_batches)
        self._end_state = _in_order(end_states, drawn)
        return metrics

    def _follow_schedule(self) -> None:
        """Set the learning rate of this update, which heads follow and the runner logs."""
        last_update = self.options.learning_rate_updates
        if last_update is not None:
            share = max(LAST_SHARE, 1.0 - self.num_updates / last_update)
            set_rate(self.optimizer, self.options.learning_rate * share)

    def _divisor(
        self, batch: MiniBatch, sequences: Rollout | Segments, sums: UpdateSums
    ) -> int | torch.Tensor:
        """Return M of a mini-batch's groups over all ranks, which exchange their weights.

        A sequence counts by the mean weight of its steps, so that a sample has the same weight
        in every group of windows.
        """
        if self.sample_weights is None:
            return self._steps_in_mean * batch.num_sequences
        weights = weights_of(sequences, len(batch.envs), self._num_loss_steps)
        sums.reported.append({_NEWEST: weights[0], _PAST: weights[1]})
        num_sequences = or_one(self._ranks.sum_tensor(weights.sum()) / self._num_loss_steps)
        return self._steps_in_mean * num_sequences

    def _optimizer_step(self) -> torch.Tensor:
        """Sum gradients over ranks, clip once, step once; return the norm before clipping, ()."""
        max_norm = self.options.max_grad_norm
        self._ranks.sum_gradients(self._parameters, self.options.grad_reduce_bucket_mb)
        norm = nn.utils.clip_grad_norm_(self._student.parameters, max_norm or math.inf)
        norm = norm.to(self.storage.dones.device)  # without gradients torch returns a CPU tensor
        self.optimizer.step()
        self._heads.step(self.optimizer.param_groups[0]["lr"], max_norm)
        return norm

    def _metrics(self, sums: UpdateSums) -> dict[str, torch.Tensor]:
        """Return the metrics, taken before the normaliser is updated. Shape: () each."""
        experience, num_envs = self.experience, self._num_envs_of_ranks
        num_steps = self.options.num_learning_epochs * self._num_loss_steps
        sizes = num_steps * num_envs, num_steps * (experience.num_sequences - num_envs)
        weighted, dones = self.sample_weights is not None, experience.dones().float()
        models = {"student": self._raw_student, "teacher": self._raw_teacher}
        first_obs = self.storage.observations[0]
        means = sums.means(self._means_of, self._per_teacher, sizes, self._ranks, weighted=weighted)
        if experience.num_drawn == 0:
            del means[BUFFER]
        return {
            **means,
            "done_rate": self._ranks.mean(dones, len(dones) * num_envs),
            **self._dagger.metrics(),
            **finite({**self._first_replay.metrics(), **obs_scales(models, first_obs)}),
        }

    def _advance(self, metrics: dict[str, float]) -> dict[str, float]:
        """Set the student's state to that after the replay; return the metrics to log."""
        experience, end_state = self.experience, self._end_state
        if self.mirrored:
            end_state = self.mirrored.split(STUDENT, end_state)
            self.mirrored.advance()
        set_state(self._raw_student, end_state, experience.dones()[-1])
        self.num_updates += 1
        num_passes = self.options.num_learning_epochs * experience.num_mini_batches
        num_steps = sum(group[-1].num_loss_steps > 0 for group in self._schedule)
        logged = {
            **self._per_teacher.logged(metrics),
            "optimizer_steps": float(num_passes * num_steps),
            "flushed_steps": float(self._num_loss_steps % self._steps_per_group),
        }
        experience.keep_newest(self._num_loss_steps)  # last: it cannot be undone
        return logged

    def _drop_rollout(self, num_steps: int) -> None:
        """Let mirrored robots continue after the steps of a dropped rollout."""
        if self.mirrored:
            self.mirrored.drop_rollout(num_steps)

    def _add_gradients_of(self, envs: slice, num_micro_batches: int) -> None:
        """Add the gradient of an epoch, on this rank and some environments, to ``.grad``."""
        rollout, state = self.experience.of_envs(envs)
        divisor = self._steps_in_mean * rollout.num_envs
        self._zero_grad()
        for group in self._schedule:
            state, _ = self._student.accumulate(
                group, rollout, state, self.loss, divisor, num_micro_batches=num_micro_batches
            )

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
        heads = own.get("auxiliary", {})
        buffer = own.get("buffer") if self.options.save_buffer else None
        if wants.get("student"):
            if strict:
                parameters = student_state_dict(loaded_dict)
                check_fits(self._raw_student, parameters, "student", obs, *source)
            self._heads.check(heads)
            self.experience.check(buffer)
        if wants.get("optimizer"):
            check_optimizer(self.optimizer, loaded_dict)
        load_iteration = super().load(loaded_dict, wants, strict)
        if wants.get("teacher"):
            self.lazy_teacher.is_loaded = True
        if wants.get("student"):
            self.num_updates = own.get("num_updates", 0)
            self._heads.load_state_dict(heads, with_optimizer=bool(wants.get("optimizer")))
            self.experience.restore(buffer)
        if load_iteration:
            self.emergency_save.go_on_from(loaded_dict)
        return load_iteration


def _in_order(end_states: list[HiddenState], drawn: list[MiniBatch]) -> HiddenState:
    """Join the last states of an epoch's mini-batches in the order of the environments."""
    order = torch.cat([batch.envs for batch in drawn]).argsort()
    return hidden_state.select_envs(hidden_state.concatenate_envs(end_states), order)

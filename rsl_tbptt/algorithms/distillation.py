"""Distillation of a teacher into a (recurrent) student by truncated BPTT."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

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
from rsl_tbptt.algorithms.heads import AuxiliaryHeads, parse_heads
from rsl_tbptt.algorithms.health import FirstReplay, finite, obs_scales
from rsl_tbptt.algorithms.optimizers import step_batches, update_normalization
from rsl_tbptt.algorithms.options import (
    DistillationArguments,
    DistillationOptions,
    check_runner_keys,
    takes,
)
from rsl_tbptt.algorithms.replay import Replay, observed_groups, set_state
from rsl_tbptt.algorithms.replay_buffer import Experience, MiniBatch, weights_of
from rsl_tbptt.algorithms.teachers import (
    Dagger,
    LazyTeacher,
    LossPerTeacher,
    RolloutLabels,
    StepLabels,
    TeacherLayers,
)
from rsl_tbptt.algorithms.transaction import Inputs, Transaction
from rsl_tbptt.checkpoints.describing import check_fits, describe_all, model_configs
from rsl_tbptt.checkpoints.reading import student_state_dict
from rsl_tbptt.compat.versions import Distillation, MLPModel, teacher_state_dict
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.memory import MemoryPlan, Sizes
from rsl_tbptt.core.rollout import Rollout, Segments
from rsl_tbptt.core.windows import num_steps_of_full_group, tbptt_schedule
from rsl_tbptt.models.teacher_group import models_by_role

LAST_SHARE = 0.03
"""Share of the learning rate that is left at the end: a longer training goes on learning."""

_NEWEST, _PAST = "weight of newest", "weight of past"
"""Sums of the samples' weights, where they have any."""


class UpdateSums:
    """Sums of one update, on the device until it ends."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.reported: list[dict[str, torch.Tensor]] = []
        """What losses and weights report, by name. Shape: () each."""
        self.grad_norms: list[torch.Tensor] = []
        """Gradient norms before clipping, one per optimiser step. Shape: () each."""

    def totals(self, names: Sequence[str], zero: torch.Tensor, ranks: Ranks) -> dict[str, Any]:
        """Return sums over the update and all processes (one exchange). Shape: () each."""
        own = {name: [zero, *(s[name] for s in self.reported if name in s)] for name in names}
        return ranks.sum_named({name: torch.stack(parts).sum() for name, parts in own.items()})


class TbpttDistillation(TbpttAlgorithm, Distillation):
    """rsl_rl's Distillation with normalised, gradient-accumulating truncated BPTT.

    A drop-in: same constructor, storage, models, checkpoints and runner. ``update()`` replays the
    rollout with the current weights from the state the rollout started with, window by window, and
    steps the optimiser every ``update_length`` steps. Labels are those stored in the rollout, so a
    recurrent teacher is never replayed and keeps its memory; those of a memoryless teacher can be
    computed for the whole rollout at once. A share of the environments can act with those labels
    (DAgger); the student runs forward in all of them.
    """

    checkpoint_path: str | None = None
    """File whose content ``load`` is given, if the runner or its config tells."""

    teacher_loaded: Any
    """Whether a checkpoint brought the teacher; asking a :class:`LazyTeacher` loads it."""

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
                auxiliary heads need a latent that cannot be read.
        """
        if rnd_cfg is not None or symmetry_cfg is not None:
            raise ValueError(
                "rnd_cfg and symmetry_cfg have no meaning in distillation: remove them."
            )
        self.options = DistillationOptions.parse(options)
        self.options.check_rollout(storage.num_transitions_per_env)
        super().__init__(
            student,
            teacher,
            storage,
            num_learning_epochs=self.options.num_learning_epochs,
            gradient_length=1,  # divides every rollout, so rsl_rl warns of no dropped steps
            learning_rate=self.options.learning_rate,
            max_grad_norm=self.options.max_grad_norm,
            optimizer=self.options.optimizer,
            device=device,
            multi_gpu_cfg=multi_gpu_cfg,
        )
        self.gradient_length = self.options.gradient_length
        self._raw_student, self._raw_teacher = self.student, self.teacher  # rsl_rl 5.0 lacks them
        self._prepare_surroundings()
        self._prepare_losses()
        self._prepare_updates()

    def _prepare_losses(self) -> None:
        """Resolve loss, labels, weights and auxiliary heads."""
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
        self._weights = None if weight is None else SampleWeights(weight, storage)
        self._heads = AuxiliaryHeads(
            heads,
            student,
            storage,
            self.optimizer,
            layers=layers.outputs,
            reported_where=NEWEST,
        )
        self._dagger = Dagger(options, storage.num_envs, storage.dones.device)
        self._per_teacher = LossPerTeacher(self._labels.teacher_names)
        self._first_replay = FirstReplay()
        self._head_of_loss = loss.head
        self.loss = self._per_teacher.reported_by(loss)
        """What is minimised, besides auxiliary heads."""
        if loss.of_actions and self._weights is None:  # labels of weight 0 need not make sense
            self.loss = self._first_replay.beside(self.loss, ACTIONS)
        self._means_of = (*loss.reported_names, *self._heads.names)

    def _prepare_updates(self) -> None:
        """Fix the windows and what an update changes."""
        options, storage, device = self.options, self.storage, self.storage.dones.device
        student, ranks, heads = self._raw_student, self._ranks, self._heads
        self.experience = Experience(
            student, storage, self._labels, options, ranks, heads, self._weights
        )
        """The newest rollout and the replay buffer."""
        num_steps = storage.num_transitions_per_env
        lengths = (options.gradient_length, options.update_length)
        self._schedule = tbptt_schedule(num_steps, *lengths, tail=options.tail)
        self._steps_per_group = num_steps_of_full_group(num_steps, *lengths)
        self._num_loss_steps = sum(w.num_loss_steps for group in self._schedule for w in group)
        self._num_envs_of_ranks = ranks.sum_count(storage.num_envs, device)
        self._step_batches = step_batches(num_steps, self._num_envs_of_ranks, device)
        self._student = Replay(
            student,
            self._head_of_loss,
            options=options,
            num_envs=self.experience.largest_mini_batch,
            window_length=min(options.gradient_length, num_steps),
            heads=heads,
            first_replay=self._first_replay,
        )
        self._parameters = [*self._student.parameters, *heads.parameters]
        self.transaction = Transaction(
            storage,
            [student, heads.module],
            [self.optimizer, *heads.optimizers],
            options,
            ranks,
            stateful_models=[student, self._raw_teacher],
            add_gradients=self._add_gradients_of,
            inputs=self._inputs,
            max_micro_batches=self.experience.largest_mini_batch,
        )
        self._started = False

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
            algorithm._join_runner(env, cfg, configs)
            algorithm.checkpoint_path = cfg.get("load_checkpoint")
        return algorithm

    def memory_plan(self) -> MemoryPlan:
        """Predict what ``update()`` takes, from its gradient on parts of the last rollout.

        Raises:
            ValueError: If there was no rollout yet, or it is not whole.
        """
        experience, largest = self.experience, self.experience.largest_mini_batch
        least = self._student.least_micro_batches(largest)
        num_bytes = experience.buffer_size(experience.newest()).num_bytes
        sizes = Sizes(largest, least, num_bytes)
        return self.transaction.plan_memory(sizes, self._parameters)

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
                environments, or the teacher's file cannot be loaded; or if observations are not as
                they were at first.
        """
        if self.storage.step == 0:
            self._start_rollout()
        self._begin_step(obs)
        actions = self.student(obs, stochastic_output=True).detach()
        labels = self._labels.of_step(self.teacher, obs, self.storage.step)
        self.transition.observations = obs
        self.transition.privileged_actions = labels
        self.transition.actions = self._dagger.mix(actions, labels)
        return self.transition.actions

    def _start_rollout(self) -> None:
        """Keep the state the rollout starts with and draw where the teacher acts."""
        if not self._started:
            with torch.inference_mode(False):  # the runner's rollout has no gradients
                self.lazy_teacher.read()  # nobody asks in a caller's own loop
            self._ranks.run_together(self._check_training)
            self._started = True
        self.experience.begin_rollout()
        self._dagger.draw(self.num_updates)

    def _check_training(self) -> None:
        """Check options against sizes that playing does not need, and try out the weights."""
        self.options.check_training(self.storage.num_envs)
        if self._weights is not None:  # tried out, as the first update comes after a whole rollout
            self._weights.complete()

    def process_env_step(
        self, obs: TensorDict, rewards: torch.Tensor, dones: torch.Tensor, extras: dict
    ) -> None:
        """Store the step and clear the states of finished episodes.

        The normaliser learns at the end of ``update()`` only (as in rsl_rl 5.5, for all versions),
        so the replay sees what the rollout saw.

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
        self._store_step(self.transition, extras)
        self.student.reset(dones)
        self.teacher.reset(dones)

    def update(self) -> dict[str, float]:
        """Train the student on the rollout and clear the storage, whole or not at all.

        Returns:
            What the runner logs under ``Loss/``; README and docs/health.md list it. In a runner the
            losses alone; the others reach its logger by ``health_log``. ``metrics`` has all.

        Raises:
            ValueError: If a loss, gradient or result is NaN or inf and ``non_finite`` does not skip
                that. Parameters, optimiser and normaliser are then as before the update.
        """
        self._schedule_rate()
        self.transaction.fit_budget(self.memory_plan)
        for update in self.transaction:
            with update:
                with update.alone():
                    self.experience.take()
                self.experience.plan()
                sums, drawn, end_states = UpdateSums(), [], []
                for _ in range(self.options.num_learning_epochs):
                    drawn, end_states = list(self.experience.draw()), []
                    for batch in drawn:
                        rollout, state = cast("Rollout", None), None
                        with update.alone():  # if this fails, what uses it fails, up to ``commit``
                            rollout, state = self.experience.of(batch)
                        divisor = self._divisor(batch, rollout, sums)
                        newest = slice(len(batch.envs))
                        for group in self._schedule:
                            has_loss = group[-1].num_loss_steps > 0
                            self._zero_grad()
                            reported, first = {}, not sums.grad_norms
                            with update.alone(), self._first_replay.watching(first=first):
                                if not has_loss:  # at the end, where the past has nothing to say
                                    rollout = rollout.envs(newest)
                                    state = hidden_state.select_envs(state, newest)
                                state, reported = self._student.accumulate(
                                    group,
                                    rollout,
                                    state,
                                    self.loss,
                                    divisor,
                                    num_micro_batches=update.num_micro_batches,
                                )
                            if has_loss:
                                sums.reported.append(reported)
                                sums.grad_norms.append(self._optimizer_step())
                        end_states.append(hidden_state.select_envs(state, newest))
                health = self._health()
                stored = self.storage.observations
                update_normalization([self._raw_student], stored, self._step_batches)
                metrics = update.commit({**self._means(sums), **health})
                update.log(self._advance(metrics, _in_order(end_states, drawn)))
        return self._conclude()

    def _schedule_rate(self) -> None:
        """Set the learning rate by ``num_updates``, which checkpoints hold."""
        last_update = self.options.learning_rate_updates
        if last_update is not None:
            share = max(LAST_SHARE, 1.0 - self.num_updates / last_update)
            self.learning_rate = self.options.learning_rate * share  # which the runner logs
            for group in self.optimizer.param_groups:  # auxiliary heads follow it
                group["lr"] = self.learning_rate

    @property
    def _steps_in_mean(self) -> int:
        """What M counts of each sequence: the steps of a full group, or 1 for a sum over them."""
        return self._steps_per_group if self.options.loss_reduction == "mean" else 1

    def _divisor(
        self, batch: MiniBatch, sequences: Rollout | Segments, sums: UpdateSums
    ) -> int | torch.Tensor:
        """Return M of a mini-batch's groups, over all ranks, which exchange weights.

        A sequence counts by the mean weight of its steps, so that a robot-step has its weight in
        whichever group of windows it falls.
        """
        if self._weights is None:
            return self._steps_in_mean * batch.num_sequences
        weights = self._weights.values.new_zeros(2)
        with self.transaction.alone():
            weights = weights_of(sequences, len(batch.envs), self._num_loss_steps)
        sums.reported.append({_NEWEST: weights[0], _PAST: weights[1]})
        num_sequences = or_one(self._ranks.sum_tensor(weights.sum()) / self._num_loss_steps)
        return self._steps_in_mean * num_sequences

    def _optimizer_step(self) -> torch.Tensor:
        """Sum gradients over ranks, clip once, step once; return the norm before clipping, ()."""
        max_norm = self.options.max_grad_norm
        self._ranks.sum_gradients(self._parameters, self.options.grad_reduce_bucket_mb)
        norm = nn.utils.clip_grad_norm_(self._student.parameters, max_norm or math.inf)
        self.optimizer.step()
        self._heads.step(self.optimizer.param_groups[0]["lr"], max_norm)
        return norm

    def _health(self) -> dict[str, torch.Tensor]:
        """Return what is only watched, before the normaliser learns. Shape: () each."""
        models = {"student": self._raw_student, "teacher": self._raw_teacher}
        scales = obs_scales(models, self.storage.observations[0])
        return finite({**self._first_replay.metrics(), **scales})

    def _means(self, sums: UpdateSums) -> dict[str, torch.Tensor]:
        """Return what is logged of an update's sums. Shape: () each."""
        num_envs, dones = self._num_envs_of_ranks, self.experience.dones().float()
        num_steps = self.options.num_learning_epochs * self._num_loss_steps
        of_weights = () if self._weights is None else (_NEWEST, _PAST)
        names = (*self._means_of, *self._per_teacher.names, *of_weights)
        total = sums.totals(names, sums.grad_norms[0].new_zeros(()), self._ranks)
        newest, past = num_steps * num_envs, num_steps * (self.experience.num_sequences - num_envs)
        means = {}
        if self._weights is not None:
            means[OPTION] = total[_NEWEST] / newest
            newest, past = or_one(total[_NEWEST]), or_one(total[_PAST])
        means |= {n: total[n] / (past if n == BUFFER else newest) for n in self._means_of}
        if self.experience.num_drawn == 0:
            del means[BUFFER]
        return {
            **means,
            "grad_norm": torch.stack(sums.grad_norms).mean(),
            **self._per_teacher.metrics(total),
            "done_rate": self._ranks.mean(dones, len(dones) * num_envs),
            **self._dagger.metrics(),
        }

    def _advance(self, metrics: dict[str, float], end_state: HiddenState) -> dict[str, float]:
        """Let the student go on from the state after the replay; return what is logged."""
        experience = self.experience
        if experience.buffer is not None:
            experience.buffer.keep_newest(self._num_loss_steps)
        set_state(self._raw_student, end_state, experience.dones()[-1])
        self.num_updates += 1
        num_passes = self.options.num_learning_epochs * experience.num_mini_batches
        num_steps = sum(group[-1].num_loss_steps > 0 for group in self._schedule)
        return {
            **self._per_teacher.logged(metrics),
            "optimizer_steps": float(num_passes * num_steps),
            "flushed_steps": float(self._num_loss_steps % self._steps_per_group),
        }

    def _add_gradients_of(self, envs: slice, num_micro_batches: int) -> None:
        """Compute the gradient of an epoch of this rank on some environments, into ``.grad``."""
        rollout, state = self.experience.of_envs(envs)
        divisor = self._steps_in_mean * rollout.num_envs
        self._zero_grad()
        for group in self._schedule:
            state, _ = self._student.accumulate(
                group, rollout, state, self.loss, divisor, num_micro_batches=num_micro_batches
            )

    def _inputs(self) -> Inputs:
        """Return what an update reads."""
        stored = self.storage.observations
        seen = observed_groups(self._raw_student, stored)
        targets = {*observed_groups(self._raw_teacher, stored), *self._heads.observed_groups()}
        others = {group: values for group, values in stored.items() if group in targets - {*seen}}
        recorded: dict[str, Any] = {
            **{f"observation group '{group}'": values for group, values in others.items()},
            **self._labels.recorded(),
        }
        weights = {}
        if self._weights is not None:
            given = self._weights.given
            weights = {OPTION: given[: self._num_loss_steps]}
            # The loss leaves out samples of weight 0: 0 stands for them.
            recorded = {n: v.index_put((given == 0,), v.new_zeros(())) for n, v in recorded.items()}
        return Inputs(seen, recorded, weights)

    def save(self) -> dict:
        """Return rsl_rl's checkpoint, with this algorithm's own part under "rsl_tbptt".

        That is the number of updates, what models are configured with, auxiliary heads, and with
        ``save_buffer`` the replay buffer. rsl_rl ignores that key, so the checkpoint loads there
        too.
        """
        models = {"student": self._raw_student, **models_by_role(self._raw_teacher)}
        described = describe_all(models, self.storage.observations, self.model_configs)
        own = {"num_updates": self.num_updates, "models": described}
        past = self.experience.past() if self.options.save_buffer else None
        if past is not None:
            own["buffer"] = past
        if self.options.auxiliary:
            own["auxiliary"] = self._heads.state_dict()
        return {**super().save(), "rsl_tbptt": own}

    def load(self, loaded_dict: dict, load_cfg: dict | None, strict: bool) -> bool:
        """Load a checkpoint as rsl_rl does, after checking that all of it fits.

        A PPO checkpoint loads the teacher; a distillation checkpoint loads student, teacher,
        optimiser and iteration. With the student come its number of updates (0 if rsl_rl wrote the
        checkpoint), so that schedules go on, its auxiliary heads, and with ``save_buffer`` the
        replay buffer; otherwise that is empty.

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
            self.lazy_teacher.check(teacher_state_dict(loaded_dict, "The checkpoint"), *source)
        own = loaded_dict.get("rsl_tbptt", {})
        heads = own.get("auxiliary", {})
        buffer = own.get("buffer") if self.options.save_buffer else None
        if wants.get("student"):
            if strict:
                parameters = student_state_dict(loaded_dict)
                check_fits(self._raw_student, parameters, "student", obs, *source)
            self._heads.check(heads)
            self.experience.check(buffer)
        load_iteration = super().load(loaded_dict, load_cfg, strict)
        if wants.get("teacher"):
            self.lazy_teacher.is_loaded = True
        if wants.get("student"):
            self.num_updates = own.get("num_updates", 0)
            with_optimizer = load_cfg is None or bool(load_cfg.get("optimizer"))
            self._heads.load_state_dict(heads, with_optimizer=with_optimizer)
            self.experience.restore(buffer)
        if load_iteration:
            self.emergency_save.go_on_from(loaded_dict)
        return load_iteration


def _in_order(end_states: list[HiddenState], drawn: list[MiniBatch]) -> HiddenState:
    """Join the last states of an epoch's mini-batches in the order of the environments."""
    order = torch.cat([batch.envs for batch in drawn]).argsort()
    return hidden_state.select_envs(hidden_state.concatenate_envs(end_states), order)

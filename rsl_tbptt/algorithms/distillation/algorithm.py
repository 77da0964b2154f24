"""Distillation of a teacher into a (recurrent) student by truncated BPTT."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from rsl_rl.algorithms import Distillation
from rsl_rl.env import VecEnv
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.algorithms.distillation.awaited_teacher import AwaitedTeacher
from rsl_tbptt.algorithms.distillation.dagger import draw_envs, scheduled_share
from rsl_tbptt.algorithms.distillation.labels import RolloutLabels
from rsl_tbptt.algorithms.distillation.losses import GAUSSIAN_ROLES, resolve_behavior_loss
from rsl_tbptt.algorithms.distillation.options import DistillationOptions
from rsl_tbptt.algorithms.update.memory_plan import MemoryPlan, plan_memory
from rsl_tbptt.algorithms.update.non_finite import (
    NonFiniteUpdates,
    find_source,
    take_over_nan_check,
)
from rsl_tbptt.algorithms.update.optimizers import use_fused_kernels
from rsl_tbptt.algorithms.update.replay import (
    action_head,
    gaussian_head,
    make_replay,
    observed_groups,
)
from rsl_tbptt.algorithms.update.rollback import UpdateGuard
from rsl_tbptt.algorithms.update.step_batches import step_batches
from rsl_tbptt.checkpoints.reading import (
    check_matches,
    read_checkpoint,
    student_state_dict,
    teacher_state_dict,
)
from rsl_tbptt.checkpoints.trained_models import check_configured_alike, describe
from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.accumulate import accumulate_group
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.env_blocks import bytes_per_sample, num_env_blocks
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.rollout import Rollout
from rsl_tbptt.core.scan.cuda_graphs import recordings_aside
from rsl_tbptt.core.windows import Group, num_steps_of_full_group, tbptt_schedule


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
            NotImplementedError: If the loss needs a Gaussian that a model does not have.
        """
        if rnd_cfg is not None or symmetry_cfg is not None:
            raise ValueError(
                "rnd_cfg and symmetry_cfg have no meaning in distillation: remove them."
            )
        self.options = DistillationOptions.parse(options)
        self.options.check_rollout(storage.num_transitions_per_env)
        # The parent's warning about dropped steps does not hold here: it is given a divisor. Its
        # loss is replaced below.
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
        self._ranks = Ranks(together=self.is_multi_gpu)
        self.gradient_length = self.options.gradient_length
        self.use_mixed_precision = self.options.use_mixed_precision
        self._raw_student, self._raw_teacher = self.student, self.teacher  # rsl_rl 5.0 lacks them
        self._guard = UpdateGuard([student], [self.optimizer], self._ranks)
        self._non_finite = NonFiniteUpdates(
            self.options.non_finite, self.options.max_skipped_updates
        )
        num_actions = storage.privileged_actions.shape[-1]
        self.loss_fn = resolve_behavior_loss(self.options.loss_type, student, teacher, num_actions)
        self._teacher_std = (
            torch.zeros_like(storage.privileged_actions) if self.options.loss_type == "kl" else None
        )
        self._rollout_labels = (
            RolloutLabels(teacher, storage, with_std=self._teacher_std is not None)
            if self.options.batch_teacher_labels
            else None
        )
        self._teacher_acts: torch.Tensor | None = None  # where, this rollout; None if never
        self._replay = make_replay(
            student,
            head=gaussian_head if self.options.loss_type in GAUSSIAN_ROLES else action_head,
            scan_engine=self.options.scan_engine,
            operand_dtype=torch.bfloat16 if self.use_mixed_precision else None,
        )
        self._no_loss = torch.full((), torch.nan, device=device)
        self._plan_update()
        self._started = False
        self._awaited_teacher: AwaitedTeacher | None = AwaitedTeacher(
            self.options.teacher_checkpoint, self._load_teacher_together
        )
        self.teacher_loaded = self._awaited_teacher  # type: ignore[assignment]

    @staticmethod
    def construct_algorithm(obs: TensorDict, env: VecEnv, cfg: dict, device: str) -> Distillation:
        """Build models, storage and algorithm from the runner's config, as rsl_rl does.

        Args:
            obs: Observations of the environment.
            env: The environment.
            cfg: The runner's config. Isaac Lab puts its ``--checkpoint`` into "load_checkpoint".
                "check_for_nan" is set to False where ``non_finite`` skips updates.
            device: Device of the update.

        Returns:
            The algorithm.
        """
        algorithm = Distillation.construct_algorithm(obs, env, cfg, device)
        algorithm.checkpoint_path = cfg.get("load_checkpoint")  # type: ignore[attr-defined]
        take_over_nan_check(algorithm.options.non_finite, cfg)  # type: ignore[attr-defined]
        return algorithm

    def _plan_update(self) -> None:
        """Fix the windows and the divisor of every update."""
        num_steps, num_envs = self.storage.num_transitions_per_env, self.storage.num_envs
        lengths = (self.options.gradient_length, self.options.update_length)
        self._schedule = tbptt_schedule(num_steps, *lengths, tail=self.options.tail)
        self._steps_per_group = num_steps_of_full_group(num_steps, *lengths)
        steps_in_mean = self._steps_per_group if self.options.loss_reduction == "mean" else 1
        num_envs_of_ranks = self._ranks.sum_count(num_envs, self.device)
        self._divisor = steps_in_mean * num_envs_of_ranks
        # Normalisers may exchange sums: on every rank as often.
        self._step_batches = step_batches(num_steps, num_envs_of_ranks, self.device)
        self._num_env_chunks = max(self.options.num_env_chunks, self._num_blocks())

    def _start_training(self) -> None:
        """Check what playing does not need, and fix the environment chunks of every update.

        Raises:
            ValueError: If an option does not suit the number of environments, on any rank, or the
                file of a teacher that is still awaited cannot be loaded.
        """
        if self._awaited_teacher is not None:  # nobody asks in a caller's own loop
            self._awaited_teacher.read()
        num_envs, budget = self.storage.num_envs, self.options.memory_budget_gb
        self._ranks.run_together(lambda: self.options.check_training(num_envs))
        if budget is not None:
            chunks = self._ranks.run_together(
                lambda: self.memory_plan().num_env_chunks(budget * 1e9)
            )
            self._num_env_chunks = max(chunks, self._num_blocks())
        self._started = True

    def _num_blocks(self) -> int:
        """Return the environment chunks that are made in any case."""
        num_steps, num_envs = self.storage.num_transitions_per_env, self.storage.num_envs
        window_steps = min(self.options.gradient_length, num_steps)
        device = torch.device(self.device)
        return num_env_blocks(num_envs, window_steps, bytes_per_sample(self._raw_student), device)

    def memory_plan(self) -> MemoryPlan:
        """Predict what ``update()`` will take, from its gradient on a few environments.

        Parameters, states and storage are left as they are; gradients are dropped.
        """
        live_state = self.student.get_hidden_state()
        if self.last_hidden_states[0] is None:  # before the first rollout
            self.last_hidden_states = (self._blank_state(), None)
        sizes = (self.storage.num_envs, self._num_blocks())
        plan = plan_memory(self._gradient_of_first, *sizes, self.student.parameters())
        self.optimizer.zero_grad()
        self.student.reset(hidden_state=live_state)
        return plan

    def _blank_state(self) -> HiddenState:
        """Return the student's state before the first step of all environments."""
        first_step = self._rollout().steps(0, 1)
        with torch.no_grad(), recordings_aside():
            _, state = self._replay(first_step.obs, None, first_step.episode_starts)
        return hidden_state.apply(torch.zeros_like, state)

    def _gradient_of_first(self, num_envs: int, num_env_chunks: int) -> None:
        """Compute the gradient of an epoch on the first environments."""
        self._gradient_of(slice(0, num_envs), num_env_chunks)

    def act(self, obs: TensorDict) -> torch.Tensor:
        """Sample the student's actions, record the teacher's labels and choose who acts.

        The student runs forward in every environment, so its state is continuous also where the
        teacher acts. The environments of the teacher are drawn at the first step of a rollout.

        Args:
            obs: Observations of all environments, batch size (N,).

        Returns:
            The actions to execute, shape (N, A): the teacher's label in the environments drawn for
            it, elsewhere the student's sample.
        """
        if self.storage.step == 0:
            self._start_rollout()
        self.transition.observations = obs
        actions = self.student(obs, stochastic_output=True).detach()
        labels = self.transition.privileged_actions = self._labels(obs)
        if self._teacher_acts is not None:
            actions = torch.where(self._teacher_acts, labels, actions)
        self.transition.actions = actions
        return actions

    def _labels(self, obs: TensorDict) -> torch.Tensor:
        """Return the teacher's actions at this step, shape (N, A), to be stored."""
        step = self.storage.step
        if self._rollout_labels is not None:  # update() computes them; until then, what is there
            return self.storage.privileged_actions[step]
        if self._teacher_std is None:
            return self.teacher(obs).detach()
        self.teacher(obs, stochastic_output=True)
        self._teacher_std[step].copy_(self._raw_teacher.output_std)
        return self._raw_teacher.output_mean.detach()

    def _start_rollout(self) -> None:
        """Keep the state the rollout starts with and draw where the teacher acts."""
        if not self._started:
            with torch.inference_mode(False):  # the runner's rollout has no gradients
                self._start_training()
        self.last_hidden_states = (hidden_state.clone(self.student.get_hidden_state()), None)
        share, last_update = self.options.teacher_action_share, self.options.teacher_action_updates
        if share > 0:
            share = scheduled_share(share, self.num_updates, last_update)
            self._teacher_acts = draw_envs(share, self.storage.num_envs, self.device)

    def process_env_step(
        self,
        obs: TensorDict,
        rewards: torch.Tensor,
        dones: torch.Tensor,
        extras: dict,
    ) -> None:
        """Store the step and clear the states of finished episodes.

        The normaliser is left alone until the end of ``update()`` (as in rsl_rl 5.5, for all
        versions), so that the replay sees what the rollout saw.

        Args:
            obs: Next observations, unused.
            rewards: Rewards, shape (N,).
            dones: Which episodes ended with this step, shape (N,).
            extras: Further information of the environment, unused.
        """
        self.transition.rewards = rewards
        self.transition.dones = dones
        self.storage.add_transition(self.transition)
        self.transition.clear()
        self.student.reset(dones)
        self.teacher.reset(dones)

    def train_mode(self) -> None:
        """Set the student to training, and drop a rollout that an error or Ctrl+C broke off."""
        super().train_mode()
        self.storage.clear()

    def update(self) -> dict[str, float]:
        """Train the student on the rollout and clear the storage, whole or not at all.

        Returns:
            What the runner logs under ``Loss/``: ``behavior`` (mean per-sample loss), ``grad_norm``
            (mean over optimiser steps, before clipping), ``optimizer_steps``, ``flushed_steps``
            (steps per epoch in a last, shorter group), ``episode_start_rate``, ``skipped_updates``
            (all so far; alone where this is one) and, where the option is used,
            ``teacher_action_share`` (of the environments, in this rollout).

        Raises:
            ValueError: If a loss, gradient or result is NaN or inf and ``non_finite`` does not skip
                that. Parameters, optimiser and normaliser are then as before the update.
        """
        live_state = self.student.get_hidden_state()
        self._guard.keep()
        try:
            metrics, state = self._train()
        except BaseException:
            self._guard.restore()
            self._drop_rollout(live_state)
            raise
        if metrics is None:
            return self._skip_update(live_state)
        self._non_finite.passed()
        self.num_updates += 1
        self.student.reset(hidden_state=hidden_state.clear(state, self._dones()[-1]))
        self.storage.clear()
        return metrics

    def _train(self) -> tuple[dict[str, float] | None, HiddenState]:
        """Go through all epochs and groups; return the metrics and the state after the rollout.

        Metrics are None if anything that the update made is not finite.
        """
        rollout = self._rollout()
        if self._rollout_labels is not None:
            self._guard.attempt(partial(self._rollout_labels.fill, *rollout.labels), otherwise=None)
        state, loss_sums, grad_norms = None, [], []
        for _ in range(self.num_learning_epochs):
            state = hidden_state.clone(self.last_hidden_states[0])
            for group in self._schedule:
                self.optimizer.zero_grad()
                state, loss_sum = self._guard.attempt(
                    partial(self._accumulate, group, rollout, state, self._num_env_chunks),
                    otherwise=(state, self._no_loss),
                )
                if group[-1].num_loss_steps > 0:
                    loss_sums.append(loss_sum)
                    grad_norms.append(self._optimizer_step())
        for steps in self._step_batches:
            self.student.update_normalization(self.storage.observations[steps].flatten(0, 1))
        return self._metrics(rollout, torch.stack(loss_sums), torch.stack(grad_norms)), state

    def _rollout(self) -> Rollout:
        """View the storage as a rollout."""
        labels = (self.storage.privileged_actions,)
        if self._teacher_std is not None:
            labels = (*labels, self._teacher_std)
        stored = self.storage.observations
        obs = stored.select(*observed_groups(self._raw_student, stored))
        return Rollout.from_dones(obs, labels, self._dones())

    def _dones(self) -> torch.Tensor:
        """Return which episodes ended with which step, shape (T, N), bool."""
        return self.storage.dones.squeeze(-1).bool()

    def _accumulate(
        self, group: Group, rollout: Rollout, state: HiddenState, num_env_chunks: int
    ) -> tuple[HiddenState, torch.Tensor]:
        """Add one optimiser step's gradient; return the carried state and the sum of the losses."""
        return accumulate_group(
            group, rollout, state, self._replay, self.loss_fn, self._divisor, num_env_chunks
        )

    def _optimizer_step(self) -> torch.Tensor:
        """Sum gradients over processes, clip once, step once; return the norm before clipping."""
        self.reduce_parameters()
        threshold = math.inf if self.max_grad_norm is None else self.max_grad_norm
        grad_norm = nn.utils.clip_grad_norm_(self.student.parameters(), threshold)
        self.optimizer.step()
        return grad_norm

    def reduce_parameters(self) -> None:
        """Sum the gradients over processes; the divisor already counts all of them."""
        self._ranks.sum_gradients(self.student.parameters(), self.options.grad_reduce_bucket_mb)

    def _metrics(
        self, rollout: Rollout, loss_sums: torch.Tensor, grad_norms: torch.Tensor
    ) -> dict[str, float] | None:
        """Average the metrics on the device and fetch them in one transfer."""
        trained = sum(window.num_loss_steps for group in self._schedule for window in group)
        num_samples = self.num_learning_epochs * trained * rollout.num_envs
        means = {
            "behavior": loss_sums.sum() / num_samples,
            "grad_norm": grad_norms.mean(),
            "episode_start_rate": self._dones().float().mean(),
        }
        if self._teacher_acts is not None:
            means["teacher_action_share"] = self._teacher_acts.float().mean()
        fetched = self._guard.fetch(torch.stack(list(means.values())))
        if fetched is None:
            return None
        return {
            **dict(zip(means, fetched, strict=True)),
            "optimizer_steps": float(len(grad_norms)),
            "flushed_steps": float(trained % self._steps_per_group),
            "skipped_updates": float(self._non_finite.num_skipped),
        }

    def _skip_update(self, live_state: HiddenState) -> dict[str, float]:
        """Undo the update, drop the rollout, and say where NaN or inf came from.

        Raises:
            ValueError: If training shall not go on.
        """
        self._guard.restore()
        stored, labels = self.storage.observations, self.storage.privileged_actions
        models = (self._raw_student, self._raw_teacher)
        groups = {group for model in models for group in observed_groups(model, stored)}
        read = {"teacher actions": labels}
        try:
            self._guard.raise_error()
            source = find_source(stored, groups, read, self._add_gradients, self._ranks)
        finally:
            self._drop_rollout(live_state)
        self._non_finite.met(source)
        return {"skipped_updates": float(self._non_finite.num_skipped)}

    def _drop_rollout(self, live_state: HiddenState) -> None:
        """Let the environments go on from the state they acted with, cleared if not finite."""
        self.optimizer.zero_grad()
        self.student.reset(hidden_state=hidden_state.clear_non_finite(live_state))
        taught = self.teacher.get_hidden_state()
        self.teacher.reset(hidden_state=hidden_state.clear_non_finite(taught))
        self.storage.clear()

    def _add_gradients(self) -> None:
        self._gradient_of(slice(None), self._num_env_chunks)

    def _gradient_of(self, envs: slice, num_env_chunks: int) -> None:
        """Compute the current parameters' gradient of an epoch on some environments."""
        rollout = self._rollout().envs(envs)
        state = hidden_state.select_envs(hidden_state.clone(self.last_hidden_states[0]), envs)
        self.optimizer.zero_grad()
        for group in self._schedule:
            state, _ = self._accumulate(group, rollout, state, num_env_chunks)

    def save(self) -> dict:
        """Return rsl_rl's checkpoint, with this algorithm's own under "rsl_tbptt".

        That is the number of updates, and what models are configured with. rsl_rl ignores that key,
        so the checkpoint loads there too.
        """
        models = {"student": self._raw_student, "teacher": self._raw_teacher}
        obs = self.storage.observations
        own = {
            "num_updates": self.num_updates,
            "models": {role: describe(model, obs) for role, model in models.items()},
        }
        return {**super().save(), "rsl_tbptt": own}

    def load(self, loaded_dict: dict, load_cfg: dict | None, strict: bool) -> bool:
        """Load a checkpoint as rsl_rl does, after checking that all of it fits.

        A PPO checkpoint loads the teacher; a distillation checkpoint loads student, teacher,
        optimiser and iteration. With the student comes its number of updates, 0 where rsl_rl wrote
        the checkpoint, so that the schedule of ``teacher_action_share`` goes on.

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
            check_matches(self._raw_teacher, state_dict, "teacher")
            check_configured_alike(self._raw_teacher, obs, "teacher", *source)
        if strict and wants.get("student"):
            check_matches(self._raw_student, student_state_dict(loaded_dict), "student")
            check_configured_alike(self._raw_student, obs, "student", *source)
        load_iteration = super().load(loaded_dict, load_cfg, strict)
        if wants.get("teacher"):
            self._awaited_teacher = None
        if wants.get("student"):
            self.num_updates = loaded_dict.get("rsl_tbptt", {}).get("num_updates", 0)
        return load_iteration

    def _load_teacher_together(self, path: str) -> None:
        self._ranks.run_together(lambda: self._load_teacher(path))

    def _load_teacher(self, path: str) -> None:
        checkpoint = read_checkpoint(path, self.device)
        state_dict = teacher_state_dict(checkpoint, f"The teacher_checkpoint '{path}'")
        check_matches(self._raw_teacher, state_dict, "teacher")
        obs = self.storage.observations
        check_configured_alike(self._raw_teacher, obs, "teacher", checkpoint, path)
        self._raw_teacher.load_state_dict(state_dict)
        self.teacher_loaded = True

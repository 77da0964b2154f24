"""The teacher's labels: at each step, or of one without memory for the whole rollout later."""

from __future__ import annotations

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from rsl_tbptt.algorithms.distillation.losses import ACTIONS, STD
from rsl_tbptt.algorithms.distillation.teacher_layers import TeacherLayers
from rsl_tbptt.algorithms.update.replay import (
    action_head,
    gaussian_head,
    make_replay,
    observed_groups,
)
from rsl_tbptt.algorithms.update.step_batches import step_batches
from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.core.rollout import Labels


class StepLabels:
    """Labels each step as it happens, so that a teacher with memory keeps it."""

    def __init__(self, storage: RolloutStorage, with_std: bool, layers: TeacherLayers) -> None:
        """Take where labels are stored, and what of the teacher: its standard deviation, layers."""
        self._storage, self._layers = storage, layers
        self._std = torch.zeros_like(storage.privileged_actions) if with_std else None

    def of_step(self, teacher: MLPModel, obs: TensorDict, step: int) -> torch.Tensor:
        """Return the teacher's actions at a step, shape (N, A), which the storage shall keep.

        Args:
            teacher: The teacher, compiled where it is.
            obs: Observations of all environments, batch size (N,).
            step: Step of the rollout.
        """
        if self._std is None:
            actions = teacher(obs).detach()
        else:
            teacher(obs, stochastic_output=True)
            self._std[step].copy_(teacher.output_std)
            actions = teacher.output_mean.detach()
        self._layers.keep(step)
        return actions

    def of_rollout(self) -> Labels:
        """Return the labels of the stored rollout."""
        return _named(self._storage.privileged_actions, self._std)

    def complete(self) -> None:
        """Do nothing: every step has its label."""


class RolloutLabels:
    """Labels stored observations instead of each step, which takes fewer and larger operations."""

    def __init__(
        self, teacher: MLPModel, storage: RolloutStorage, with_std: bool, layers: TeacherLayers
    ) -> None:
        """Take the teacher and where it finds its observations.

        Args:
            teacher: The teacher.
            storage: Storage of the rollouts.
            with_std: Whether labels include the standard deviation of the teacher's Gaussian.
            layers: The teacher's layers that are recorded.

        Raises:
            ValueError: If the teacher has memory, or the storage lacks what it observes.
        """
        if teacher.is_recurrent:
            raise ValueError(
                "batch_teacher_labels is True, expected False with a recurrent teacher: its labels"
                " need the steps in order."
            )
        stored = list(storage.observations.keys())
        self._obs_groups = observed_groups(teacher, storage.observations)
        for group in self._obs_groups:
            if group not in stored:
                raise ValueError(
                    f"batch_teacher_labels is True, expected False while the storage lacks the"
                    f" teacher's observation group '{group}', it holds {stored}: the labels are"
                    " computed from stored observations."
                )
        head = gaussian_head if with_std else action_head
        self._replay = make_replay(teacher, head=head, scan_engine="auto", operand_dtype=None)
        self._storage, self._layers = storage, layers
        self._std = torch.zeros_like(storage.privileged_actions) if with_std else None

    def of_step(self, teacher: MLPModel, obs: TensorDict, step: int) -> torch.Tensor:
        """Return what the storage holds at a step, shape (N, A), until ``complete``."""
        return self._storage.privileged_actions[step]

    def of_rollout(self) -> Labels:
        """Return the labels of the stored rollout, once it is complete."""
        return _named(self._storage.privileged_actions, self._std)

    @torch.no_grad()
    def complete(self) -> None:
        """Label the stored rollout."""
        observations = self._storage.observations.select(*self._obs_groups)
        starts = torch.zeros_like(self._storage.dones.squeeze(-1), dtype=torch.bool)
        num_steps, num_envs = starts.shape
        labels = self.of_rollout().values()
        for steps in step_batches(num_steps, num_envs, starts.device):
            outputs, _ = self._replay(observations[steps], None, starts[steps])
            for label, output in zip(labels, outputs, strict=True):
                label[steps].copy_(output)
            self._layers.keep(steps.start)


def teacher_labels(
    teacher: MLPModel,
    storage: RolloutStorage,
    with_std: bool,
    in_batches: bool,
    layers: TeacherLayers,
) -> StepLabels | RolloutLabels:
    """Return what labels the rollouts.

    Args:
        teacher: The teacher.
        storage: Storage of the rollouts.
        with_std: Whether labels include the standard deviation of the teacher's Gaussian.
        in_batches: Whether whole rollouts are labelled at once.
        layers: The teacher's layers that are recorded.

    Raises:
        ValueError: If they cannot be.
    """
    if in_batches:
        return RolloutLabels(teacher, storage, with_std, layers)
    return StepLabels(storage, with_std, layers)


def _named(actions: torch.Tensor, std: torch.Tensor | None) -> Labels:
    return {ACTIONS: actions} if std is None else {ACTIONS: actions, STD: std}

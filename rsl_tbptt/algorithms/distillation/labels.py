"""The teacher's labels: at each step, or of one without memory for the whole rollout later."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from rsl_tbptt.algorithms.distillation.losses import ACTIONS, STD
from rsl_tbptt.algorithms.distillation.per_teacher import TEACHER
from rsl_tbptt.algorithms.distillation.teacher_layers import TeacherLayers
from rsl_tbptt.algorithms.replay import (
    Replay,
    action_head,
    gaussian_head,
    observed_groups,
)
from rsl_tbptt.algorithms.update.step_batches import step_batches
from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.core.accumulate import Outputs
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.rollout import Labels
from rsl_tbptt.models.selected_teachers import SelectedTeachers, selected_by
from rsl_tbptt.models.selector import NONE


class StoredLabels:
    """Where the labels of a rollout lie, whenever they are made."""

    def __init__(
        self, teacher: MLPModel, storage: RolloutStorage, with_std: bool, layers: TeacherLayers
    ) -> None:
        """Take where labels are stored.

        Args:
            teacher: The teacher, or several.
            storage: Storage of the rollouts.
            with_std: Whether labels include the standard deviation of the teacher's Gaussian.
            layers: The teacher's layers that are recorded.
        """
        self._storage, self._layers = storage, layers
        self._std = torch.zeros_like(storage.privileged_actions) if with_std else None
        self._teachers = teacher if isinstance(teacher, SelectedTeachers) else None
        steps = storage.dones.squeeze(-1)
        self._selected = torch.zeros_like(steps, dtype=torch.int16) if self._teachers else None

    @property
    def teacher_names(self) -> tuple[str, ...]:
        """Several teachers in the order of their numbers; none where there is only one."""
        return self._teachers.names if self._teachers else ()

    def of_rollout(self) -> Labels:
        """Return the labels of the stored rollout, once it is complete."""
        named = {
            ACTIONS: self._storage.privileged_actions,
            STD: self._std,
            TEACHER: self._selected,
        }
        return {name: label for name, label in named.items() if label is not None}

    def recorded(self) -> dict[str, torch.Tensor]:
        """Return what may be NaN, by what messages call it, shape (T, N, D) each."""
        actions = {"teacher actions": self._storage.privileged_actions}
        if self._teachers is None or self._selected is None:
            return actions
        selector = self._teachers.selector
        kind = (
            f"the choice of a teacher by {selector.described}, which is none of"
            f" {selector.expected},"
        )
        chosen = self._selected.to(self._storage.privileged_actions.dtype).unsqueeze(-1)
        return {kind: chosen.masked_fill(chosen == NONE, torch.nan), **actions}


class StepLabels(StoredLabels):
    """Labels each step as it happens, so that a teacher with memory keeps it."""

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
        if self._selected is not None:
            self._selected[step].copy_(selected_by(teacher))
        self._layers.keep(step)
        return actions

    def complete(self) -> None:
        """Do nothing: every step has its label."""


class RolloutLabels(StoredLabels):
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
        super().__init__(teacher, storage, with_std, layers)
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
        make = partial(Replay, head=head)
        self._replay = _replay_selected(self._teachers, make) if self._teachers else make(teacher)

    def of_step(self, teacher: MLPModel, obs: TensorDict, step: int) -> torch.Tensor:
        """Return what the storage holds at a step, shape (N, A), until ``complete``."""
        return self._storage.privileged_actions[step]

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
    return StepLabels(teacher, storage, with_std, layers)


def _replay_selected(
    teachers: SelectedTeachers, make: Callable[[MLPModel], Replay]
) -> Callable[[TensorDict, HiddenState, torch.Tensor], tuple[Outputs, HiddenState]]:
    """Make a replay of teachers without memory of which one labels each sample.

    Its outputs are theirs, shape (K, n, A) each, and the number of the teacher, (K, n).
    """
    models: dict[str, Any] = dict(teachers.teachers.items())
    replays = {name: make(model) for name, model in models.items()}

    def run(name: str, rows: TensorDict) -> list[torch.Tensor]:
        starts = torch.zeros(1, len(rows), dtype=torch.bool, device=rows.device)
        outputs, _ = replays[name](rows.unsqueeze(0), None, starts)
        return [output.squeeze(0) for output in outputs]

    def replay(
        obs: TensorDict, state: HiddenState, episode_starts: torch.Tensor
    ) -> tuple[Outputs, HiddenState]:
        outputs = teachers.run(obs.flatten(0, 1), run)
        found = (*outputs, selected_by(teachers))
        return tuple(output.unflatten(0, episode_starts.shape) for output in found), None

    return replay

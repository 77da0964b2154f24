"""The labels of a teacher without memory, computed for a whole rollout after it."""

from __future__ import annotations

import torch
from rsl_rl.storage import RolloutStorage

from rsl_tbptt.algorithms.update.replay import (
    action_head,
    gaussian_head,
    make_replay,
    observed_groups,
)
from rsl_tbptt.algorithms.update.step_batches import step_batches
from rsl_tbptt.compat.versions import MLPModel


class RolloutLabels:
    """Labels stored observations instead of each step, which takes fewer and larger operations."""

    def __init__(self, teacher: MLPModel, storage: RolloutStorage, with_std: bool) -> None:
        """Take the teacher and where it finds its observations.

        Args:
            teacher: The teacher.
            storage: Storage of the rollouts.
            with_std: Whether labels include the standard deviation of the teacher's Gaussian.

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
        self._teacher = make_replay(teacher, head=head, scan_engine="auto", operand_dtype=None)
        self._storage = storage

    @torch.no_grad()
    def fill(self, *labels: torch.Tensor) -> None:
        """Label the stored rollout.

        Args:
            *labels: Where the action means go, and the standard deviations if they are part of the
                labels. Shape: (T, N, A) each.
        """
        observations = self._storage.observations.select(*self._obs_groups)
        starts = torch.zeros_like(self._storage.dones.squeeze(-1), dtype=torch.bool)
        num_steps, num_envs = starts.shape
        for steps in step_batches(num_steps, num_envs, starts.device):
            outputs, _ = self._teacher(observations[steps], None, starts[steps])
            for label, output in zip(labels, outputs, strict=True):
                label[steps].copy_(output)

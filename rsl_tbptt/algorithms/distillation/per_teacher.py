"""The behaviour loss of each of several teachers, logged beside their common one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from rsl_tbptt.algorithms.distillation.rollout_memory import NEWEST
from rsl_tbptt.algorithms.distillation.update_sums import or_one
from rsl_tbptt.core.accumulate import Loss, Outputs, SampleLosses
from rsl_tbptt.core.rollout import Labels

TEACHER = "teacher"
"""Label: the number of the sample's teacher, of several. Shape: (T, N), int16."""


class LossPerTeacher:
    """Sums up loss and samples of each teacher in the newest rollout, on the device.

    Sums do not depend on micro-batches; what is logged is their quotient after the update.
    """

    def __init__(self, names: Sequence[str], slices: Iterable[str]) -> None:
        """Choose what is reported.

        Args:
            names: The teachers in the order of their numbers; none where there is only one.
            slices: What slices of the action are reported as.

        Raises:
            ValueError: If a slice has the name of a teacher.
        """
        self._losses = {f"behavior/{name}": f"num_samples/{name}" for name in names}
        for index, tag in enumerate(slices):
            if tag in self._losses:
                raise ValueError(
                    f"loss_type[{index}]['name'] is '{tag.removeprefix('behavior/')}', expected"
                    f" another name than those of the teachers, {list(names)}: the losses of both"
                    f" are logged as Loss/{tag}."
                )

    @property
    def names(self) -> list[str]:
        """Names of the sums."""
        return [*self._losses, *self._losses.values()]

    def reported_by(self, loss: Loss) -> Loss:
        """Return a loss that reports the sums, too."""
        return self._with_sums(loss) if self._losses else loss

    def metrics(self, totals: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return losses and numbers of samples of an update's sums, shape () each."""
        total = {name: totals[name] for name in self.names}
        means = {name: total[name] / or_one(total[number]) for name, number in self._losses.items()}
        return {**total, **means}

    def logged(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return what is logged: no number of samples, and no loss of a teacher without any."""
        unused = {name for name, number in self._losses.items() if metrics[number] == 0}
        dropped = unused.union(self._losses.values())
        return {name: value for name, value in metrics.items() if name not in dropped}

    def _with_sums(self, loss: Loss) -> Loss:
        def reporting(outputs: Outputs, labels: Labels) -> SampleLosses:
            losses = loss(outputs, labels)
            reported, behavior = dict(losses.reported), losses.reported["behavior"]
            for index, (name, number) in enumerate(self._losses.items()):
                own = labels[TEACHER] == index
                own = own & labels[NEWEST] if NEWEST in labels else own
                reported[name] = torch.where(own, behavior, 0.0)
                reported[number] = own.to(behavior.dtype)
            return replace(losses, reported=reported)

        return reporting

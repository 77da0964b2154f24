"""What an update of the distillation sums up on its way, and the means that are logged of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from rsl_tbptt.algorithms.distillation.losses import MEMORY
from rsl_tbptt.algorithms.distillation.sample_weights import OPTION
from rsl_tbptt.core.distributed import Ranks

_WEIGHTS = ("weight of newest", "weight of past")


@dataclass(frozen=True)
class UpdateSums:
    """Sums over samples, on the device until the update ends."""

    losses: list[dict[str, torch.Tensor]] = field(default_factory=list)
    """Of what the loss reports, by name, one per optimiser step. Shape: () each."""

    weights: list[torch.Tensor] = field(default_factory=list)
    """Of the samples' weights, of the newest rollout and of the past, one per mini-batch; none
    where all weigh the same. Shape: (2,) each."""

    grad_norms: list[torch.Tensor] = field(default_factory=list)
    """Gradient norms before clipping, one per optimiser step. Shape: () each."""

    def totals(self, names: Iterable[str], ranks: Ranks) -> dict[str, torch.Tensor]:
        """Return sums over all optimiser steps and processes (one exchange). Shape: () each.

        Args:
            names: Names of what the loss may report, the same for all processes; 0 stands for what
                it does not.
            ranks: The processes that train together.
        """
        zero = torch.zeros_like(next(iter(self.losses[0].values())))
        own = {
            name: torch.stack([sums.get(name, zero) for sums in self.losses]).sum()
            for name in names
        }
        if self.weights:
            weights = torch.stack(self.weights).sum(0)
            own |= dict(zip(_WEIGHTS, weights, strict=True))
        return ranks.sum_named(own)

    def means(
        self,
        totals: Mapping[str, torch.Tensor],
        reported: tuple[str, ...],
        num_newest: int,
        num_past: int | torch.Tensor | None,
    ) -> dict[str, torch.Tensor]:
        """Return what is logged of the sums.

        Args:
            totals: What :meth:`totals` returned.
            reported: Names of what the loss reports.
            num_newest: Samples of the newest rollout in all passes, of all processes.
            num_past: Samples of the past in all of them; with None their mean is left out.

        Returns:
            The weighted means of the losses over their samples, and the mean weight if there are
            weights. Shape: () each.
        """
        divisors: dict[str, Any] = {MEMORY: num_past} if num_past is not None else {}
        newest, own = num_newest, {}
        if self.weights:
            newest, past = (or_one(totals[name]) for name in _WEIGHTS)
            divisors = dict.fromkeys(divisors, past)
            own = {OPTION: totals[_WEIGHTS[0]] / num_newest}
        means = {
            name: totals[name] / divisors.get(name, newest)
            for name in reported
            if name != MEMORY or name in divisors
        }
        return {**means, **own, "grad_norm": torch.stack(self.grad_norms).mean()}


def or_one(sums: torch.Tensor) -> torch.Tensor:
    """Return sums of weights as divisors, of any shape: where they are 0, all is 0 and not NaN."""
    return torch.where(sums == 0, 1.0, sums)

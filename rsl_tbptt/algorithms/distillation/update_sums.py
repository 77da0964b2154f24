"""What an update of the distillation sums up on its way, and the means that are logged of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from rsl_tbptt.algorithms.distillation.losses import MEMORY
from rsl_tbptt.algorithms.distillation.sample_weights import OPTION


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

    def means(
        self, reported: tuple[str, ...], num_newest: int, num_past: int
    ) -> dict[str, torch.Tensor]:
        """Return what is logged of the sums.

        Args:
            reported: Names of what the loss reports.
            num_newest: Samples of the newest rollout in all passes.
            num_past: Samples of the past in all of them; without any their mean is left out.

        Returns:
            The weighted means of the losses over their samples, and the mean weight if there are
            weights. Shape: () each.
        """
        newest, past, own = num_newest, num_past, {}
        if self.weights:
            sums = torch.stack(self.weights).sum(0)
            newest, past = or_one(sums)
            own = {OPTION: sums[0] / num_newest}
        means = {
            name: torch.stack([sums[name] for sums in self.losses]).sum()
            / (past if name == MEMORY else newest)
            for name in reported
            if name != MEMORY or num_past > 0
        }
        return {**means, **own, "grad_norm": torch.stack(self.grad_norms).mean()}


def or_one(sums: torch.Tensor) -> torch.Tensor:
    """Return sums of weights as divisors, of any shape: where they are 0, all is 0 and not NaN."""
    return torch.where(sums == 0, 1.0, sums)

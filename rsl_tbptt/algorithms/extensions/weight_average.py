"""The average of a student's weights over updates, which acts and is deployed.

An update in the middle of running episodes fits those episodes, so the newest weights are worse on
fresh ones than an average over updates. ``t`` counts updates, ``w`` are the trained weights::

    average += (k + 1) / (t + k) * (w - average)        k = 8: the newest ninth weighs about 2/3

    rollout     update                              rollout, checkpoint, export
    average     trained weights, optimiser steps    average

So outside of an update the model's parameters are the average, and all that reads them is right.

References:
    Shamir and Zhang (2013), arXiv 1212.1824: averaging with polynomial decay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import distributed, nn

from rsl_tbptt.algorithms.extensions import Extension

DECAY = 8
"""k: a higher one forgets earlier updates faster. The study in docs compares 4, 8 and 16."""


class WeightAverage(Extension):
    """Keeps the trained weights while models hold the average, and puts them back for an update."""

    name, loaded_with = "weight_average", ("student",)

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        """Take the models, whose parameters are the average from the first update on.

        Args:
            models: Models and heads by the names that checkpoints use.
        """
        self._parameters = {
            f"{role}.{name}": parameter
            for role, model in models.items()
            for name, parameter in model.named_parameters()
        }
        self.trained: dict[str, torch.Tensor] = {}
        """The newest trained weights by parameter; empty before the first update."""
        self._average = self._live()
        self.num_updates = 0
        """Updates in the average, t."""

    def _live(self) -> dict[str, torch.Tensor]:
        """Return copies of the models' parameters."""
        return {name: each.detach().clone() for name, each in self._parameters.items()}

    @torch.no_grad()
    def begin_update(self) -> None:
        """Put the trained weights into the models, except where somebody has set parameters."""
        kept, self._average = self._average, self._live()
        for name, trained in self.trained.items():
            live = self._average[name]
            self._parameters[name].copy_(torch.where(live == kept[name], trained, live))

    @torch.no_grad()
    def advance(self, metrics: dict[str, float]) -> None:
        """Add the trained weights to the average, and put it into the models."""
        self.trained, self.num_updates = self._live(), self.num_updates + 1
        average, trained = ([*each.values()] for each in (self._average, self.trained))
        torch._foreach_lerp_(average, trained, (DECAY + 1) / (self.num_updates + DECAY))
        torch._foreach_copy_([*self._parameters.values()], average)

    def broadcast(self) -> None:
        """Copy the first process's trained weights to all processes, whose models are the same."""
        for trained in self.trained.values():
            distributed.broadcast(trained, src=0)
        self._average = self._live()

    def state_dict(self) -> dict[str, Any]:
        """Return the trained weights by parameter and the number of updates; empty before any."""
        if not self.trained:
            return {}
        return {"trained": dict(self.trained), "num_updates": self.num_updates}

    def load_state_dict(self, saved: Mapping[str, Any], *, with_optimizer: bool) -> None:
        """Go on with the average of a checkpoint, whose models are loaded; without, begin one."""
        self._average = self._live()
        loaded = saved.get("trained", {})
        self.trained = {
            name: loaded[name].detach().to(live, copy=True) if name in loaded else live.clone()
            for name, live in (self._average.items() if loaded else ())
        }
        self.num_updates = saved.get("num_updates", 0)

"""The average of a student's weights over updates: what is saved, exported and played.

An update in the middle of running episodes fits those episodes, so on fresh ones the newest weights
are worse than an average over updates. With the newest weights w of update t::

    average += (k + 1) / (t + k) * (w - average)        k = 8: the newest ninth weighs about 2/3

The newest weights act and are trained. Between an update and the next rollout, when runners log,
save and export, the model holds the average::

    rollout    update    save, log, export    rollout
    newest     newest    average              newest

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
"""k: a higher one forgets earlier updates faster; docs/studies/distillation.md compares some."""


class WeightAverage(Extension):
    """Puts the newest weights into models for each rollout, and the average after each update."""

    name, loaded_with = "weight_average", ("student",)

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        """Take the models.

        Args:
            models: Models and heads by the names that checkpoints use.
        """
        self._parameters = {
            f"{role}.{name}": parameter
            for role, model in models.items()
            for name, parameter in model.named_parameters()
        }
        self.newest: dict[str, torch.Tensor] = {}
        """The newest weights by parameter; empty before the first update."""
        self._average = self._live()
        self._acts = False
        """Whether the models hold the newest weights."""
        self.num_updates = 0
        """Updates in the average, t."""

    def _live(self) -> dict[str, torch.Tensor]:
        """Return copies of the models' parameters."""
        return {name: each.detach().clone() for name, each in self._parameters.items()}

    @torch.no_grad()
    def begin_rollout(self) -> None:
        """Put the newest weights into the models, except where somebody has set parameters."""
        if self._acts:  # an error ended the last rollout in its first step
            return
        kept, self._average, self._acts = self._average, self._live(), True
        for name, newest in self.newest.items():
            live = self._average[name]
            self._parameters[name].copy_(torch.where(live == kept[name], newest, live))

    @torch.no_grad()
    def advance(self, metrics: dict[str, float]) -> None:
        """Add the newest weights to the average, and put it into the models."""
        self.newest, self.num_updates = self._live(), self.num_updates + 1
        share = (DECAY + 1) / (self.num_updates + DECAY)
        names = self._average.keys()
        self._average = {n: self._average[n].lerp(self.newest[n], share) for n in names}
        self._put_average()

    def drop_rollout(self, num_steps: int) -> None:
        """Put the average into the models again."""
        self._put_average()

    @torch.no_grad()
    def _put_average(self) -> None:
        # By .data: some releases of rsl_rl log a view of the noise, made in inference mode.
        for name, parameter in self._parameters.items():
            parameter.data.copy_(self._average[name])
        self._acts = False

    def broadcast(self) -> None:
        """Copy the first process's newest weights to all processes, whose models are the same."""
        for newest in self.newest.values():
            distributed.broadcast(newest, src=0)
        self._average = self._live()

    def state_dict(self) -> dict[str, Any]:
        """Return the newest weights by parameter and the number of updates; empty before any."""
        if not self.newest:
            return {}
        return {"newest": dict(self.newest), "num_updates": self.num_updates}

    def load_state_dict(self, saved: Mapping[str, Any], *, with_optimizer: bool) -> None:
        """Go on with the average of a checkpoint, whose models are loaded; without, begin one."""
        self._average, self._acts, loaded = self._live(), False, saved.get("newest", {})
        self.newest = {
            name: loaded[name].detach().to(live, copy=True) if name in loaded else live.clone()
            for name, live in (self._average.items() if loaded else ())
        }
        self.num_updates = saved.get("num_updates", 0)

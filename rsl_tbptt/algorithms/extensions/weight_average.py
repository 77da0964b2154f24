"""The average of a student's weights over updates: what is saved, exported and played.

An update in the middle of running episodes fits those episodes, so on fresh ones the newest weights
are worse than an average over updates. With the newest weights w of update t::

    average += (k + 1) / (t + k) * (w - average)        k = 8: the newest ninth weighs about 2/3

The newest weights act and are trained. Between an update and the next rollout, when runners log,
save and export, the model holds the average::

    rollout    update    save, log, export    rollout
    newest     newest    average              newest

A rollout may break off at any time, so saving and playing ask for the average, and an update for
the newest weights.

References:
    Shamir and Zhang (2013), arXiv 1212.1824: averaging with polynomial decay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed, nn

from rsl_tbptt.algorithms.extensions import Extension
from rsl_tbptt.algorithms.option_checks import OptionGroup

DECAY = 8
"""k: a higher one forgets earlier updates faster; docs/studies/distillation.md compares some."""


@dataclass(kw_only=True)
class AverageOptions(OptionGroup):
    """The option of :class:`WeightAverage`."""

    weight_average: bool = True
    """Whether the student that is saved has the average of its weights; the newest ones act.

    See docs/reference/distillation.md#weight-average.
    """


class WeightAverage(Extension):
    """Puts the newest weights into models for each rollout, and the average after each update."""

    name, loaded_with = "weight_average", ("student",)

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        """Take the models.

        Args:
            models: Models and heads by the names that checkpoints use; empty averages nothing.
        """
        self._parameters = {
            f"{role}.{name}": parameter
            for role, model in models.items()
            for name, parameter in model.named_parameters()
        }
        self.newest: dict[str, torch.Tensor] = {}
        """The newest weights by parameter; empty before the first update."""
        self._average = self._live()
        self._holds_newest = False
        self.num_updates = 0
        """Updates in the average, t."""

    def _live(self) -> dict[str, torch.Tensor]:
        """Return copies of the models' parameters."""
        return {name: each.detach().clone() for name, each in self._parameters.items()}

    def _put(self, name: str, weights: torch.Tensor) -> None:
        # By .data: some releases of rsl_rl log a view of the noise, made in inference mode.
        self._parameters[name].data.copy_(weights)

    def put_newest(self) -> None:
        """Put the newest weights into the models, except where somebody has set parameters."""
        if self._holds_newest:
            return
        kept, self._average, self._holds_newest = self._average, self._live(), True
        for name, newest in self.newest.items():
            average = self._average[name]
            self._put(name, torch.where(average == kept[name], newest, average))

    def put_average(self) -> None:
        """Put the average into the models, if they hold the newest weights."""
        if self._holds_newest:
            for name, average in self._average.items():
                self._put(name, average)
            self._holds_newest = False

    def advance(self, metrics: dict[str, float]) -> None:
        """Add the newest weights to the average, and put it into the models."""
        self.newest, self.num_updates = self._live(), self.num_updates + 1
        share = (DECAY + 1) / (self.num_updates + DECAY)
        self._average = {n: w.lerp(self.newest[n], share) for n, w in self._average.items()}
        self.put_average()

    def drop_rollout(self, num_steps: int) -> None:
        """Put the average into the models again."""
        self.put_average()

    def broadcast(self) -> None:
        """Copy the first process's newest weights to all processes, whose models are the same."""
        for newest in self.newest.values():
            distributed.broadcast(newest, src=0)
        self._average = self._live()  # training begins with it

    def state_dict(self) -> dict[str, Any]:
        """Return the newest weights by parameter and the number of updates; empty before any."""
        if not self.newest:
            return {}
        return {"newest": dict(self.newest), "num_updates": self.num_updates}

    def load_state_dict(self, saved: Mapping[str, Any], *, with_optimizer: bool) -> None:
        """Go on with the average of a checkpoint, whose models are loaded; without, begin one."""
        self._average, self._holds_newest, loaded = self._live(), False, saved.get("newest", {})
        self.newest = {
            name: loaded[name].detach().to(live, copy=True) if name in loaded else live.clone()
            for name, live in (self._average.items() if loaded else ())
        }
        self.num_updates = saved.get("num_updates", 0)

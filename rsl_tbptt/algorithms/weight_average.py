"""The average of a student's weights over updates: what is saved, exported and played.

An update in the middle of running episodes fits those episodes, so on fresh ones the newest weights
are worse than an average over updates. With the newest weights w of update t::

    average += (k + 1) / (t + k) * (w - average)        k = 8: the newest ninth weighs about 2/3

The average is a model of its own, which shares the buffers, such as normalisers, of the one that
acts and is trained.

References:
    Shamir and Zhang (2013), arXiv 1212.1824: averaging with polynomial decay.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rsl_tbptt.extensions import OptionGroup

DECAY = 8
"""k: a higher one forgets earlier updates faster; docs/studies/distillation.md compares some."""


@dataclass(kw_only=True)
class AverageOptions(OptionGroup):
    """The option of :class:`WeightAverage`."""

    weight_average: bool = True
    """Whether the student that is saved has the average of its weights; the newest ones act.

    See docs/reference/distillation.md#weight-average.
    """


class WeightAverage:
    """Averages of some modules; without averaging they are the newest weights."""

    def __init__(self, modules: Mapping[str, nn.Module], *, averages: bool) -> None:
        """Copy the modules.

        Args:
            modules: Modules by the names that checkpoints use.
            averages: The option ``weight_average``.
        """
        self._modules, self._averages = dict(modules), averages
        self.modules = {name: _copy_of(module) for name, module in modules.items()}
        """The averages by name."""
        self.num_updates = 0
        """Updates in the average, t."""

    def of(self, module: nn.Module) -> nn.Module:
        """Return the average of a module, before any update its own weights; itself without one."""
        self.follow()
        for name, newest in self._modules.items():
            if newest is module and self._averages:
                return self.modules[name]
        return module

    def follow(self) -> None:
        """Take the modules' weights if there was no update yet: they may have been set since."""
        if self.num_updates == 0:
            self.load({})

    @torch.no_grad()
    def advance(self) -> None:
        """Add the newest weights to the average."""
        self.num_updates += 1
        share = (DECAY + 1) / (self.num_updates + DECAY) if self._averages else 1.0
        _, newest, averages = zip(*self.parameters(), strict=True)
        torch._foreach_lerp_(averages, newest, share)

    def saved(self) -> dict[str, Any]:
        """Return the newest weights by parameter and the number of updates; empty before any."""
        if self.num_updates == 0 or not self._averages:
            return {}
        newest = {name: parameter.detach().clone() for name, parameter, _ in self.parameters()}
        return {"newest": newest, "num_updates": self.num_updates}

    @torch.no_grad()
    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on with the average that the modules have loaded; without one, begin it.

        Args:
            saved: The result of ``saved``, whose newest weights the modules get.
        """
        newest = saved.get("newest", {}) if self._averages else {}
        for name, live, average in self.parameters():
            average.copy_(live)
            if name in newest:
                live.data.copy_(newest[name])
        self.num_updates = saved.get("num_updates", 0) if newest else 0

    def parameters(self) -> Iterator[tuple[str, nn.Parameter, nn.Parameter]]:
        """Yield the name of each parameter, the newest one and its average."""
        for role, module in self._modules.items():
            averages = self.modules[role].parameters()
            for (name, newest), average in zip(module.named_parameters(), averages, strict=True):
                yield f"{role}.{name}", newest, average


def _copy_of(module: nn.Module) -> nn.Module:
    """Return a copy that is not trained and shares the module's buffers."""
    copied = copy.deepcopy(module).requires_grad_(False).eval()
    for part, of_module in zip(copied.modules(), module.modules(), strict=True):
        part._buffers = of_module._buffers
    return copied

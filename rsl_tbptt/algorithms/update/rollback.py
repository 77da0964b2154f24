"""What an update changes, kept so that it can be undone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import torch
from torch import nn


class Rollback:
    """Copy of models and optimisers to go back to; its memory serves one update after another.

    Optimisers must change their tensors in place, as torch's do.
    """

    def __init__(
        self, modules: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        """Take what an update changes.

        Args:
            modules: Their parameters and buffers.
            optimizers: Their state and options.
        """
        self._modules, self._optimizers = modules, optimizers
        self._copies: list[torch.Tensor] = []

    @torch.no_grad()
    def keep(self) -> None:
        """Copy everything as it is now."""
        self._states = [
            {key: dict(entries) for key, entries in optimizer.state.items()}
            for optimizer in self._optimizers
        ]
        self._groups = [
            [dict(group) for group in optimizer.param_groups] for optimizer in self._optimizers
        ]
        live = [*self._of_modules(), *_tensors(self._states)]
        if _forms(self._copies) != _forms(live):
            self._copies = [torch.empty_like(tensor) for tensor in live]
        torch._foreach_copy_(self._copies, live)

    @torch.no_grad()
    def restore(self) -> None:
        """Set everything back to what was kept and drop the gradients."""
        # Buffers are asked for anew: rsl_rl's normaliser puts other tensors in their place.
        live = [*self._of_modules(), *_tensors(self._states)]
        torch._foreach_copy_(live, self._copies)
        for optimizer, state, groups in zip(
            self._optimizers, self._states, self._groups, strict=True
        ):
            optimizer.state.clear()
            optimizer.state.update({key: dict(kept) for key, kept in state.items()})
            for group, kept in zip(optimizer.param_groups, groups, strict=True):
                group.update(kept)
            optimizer.zero_grad()

    @torch.no_grad()
    def is_finite(self) -> torch.Tensor:
        """Return whether everything is finite as it is now. Shape: (), bool."""
        states = _tensors(optimizer.state for optimizer in self._optimizers)
        # Step counts, of no dimension, may live elsewhere.
        tensors = [*self._of_modules(), *(tensor for tensor in states if tensor.dim() > 0)]
        # A sum is as telling as each element, and takes a tenth of the time.
        sums = [tensor.sum() for tensor in tensors if tensor.is_floating_point()]
        return torch.isfinite(torch.stack(sums)).all()

    def _of_modules(self) -> list[torch.Tensor]:
        """Return parameters and buffers; those of a shared encoder once."""
        parameters = chain.from_iterable(module.parameters() for module in self._modules)
        buffers = chain.from_iterable(module.buffers() for module in self._modules)
        return list(dict.fromkeys([*parameters, *buffers]))


def _tensors(states: Iterable[Mapping]) -> list[torch.Tensor]:
    """Return the tensors in the states of optimisers."""
    entries = (entry for state in states for entry in state.values())
    values = (value for entry in entries for value in entry.values())
    return [value for value in values if isinstance(value, torch.Tensor)]


def _forms(tensors: Iterable[torch.Tensor]) -> list[tuple[torch.Size, torch.dtype, torch.device]]:
    return [(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors]

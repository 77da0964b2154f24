"""An update is whole or not at all: keep what it changes, check what it made, or go back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TypeVar

import torch
from torch import nn

from rsl_tbptt.core.distributed import Ranks

Result = TypeVar("Result")


class UpdateGuard:
    """Copy of models and optimisers to go back to; its buffers serve one update after another.

    ::

        keep -> gradients (``attempt``) and steps -> normalisers -> ``fetch`` -> go on, or restore

    With several processes no one leaves in the middle: the others would wait for it. One whose
    gradient fails goes on with what it has, and ``fetch`` tells all of them at the end.

    Optimisers must change their tensors in place, as torch's do.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        ranks: Ranks,
    ) -> None:
        """Take what an update changes, and the processes that train together.

        Args:
            modules: Their parameters and buffers.
            optimizers: Their state and options.
            ranks: Who comes to the same end.
        """
        self._modules, self._optimizers, self._ranks = modules, optimizers, ranks
        self._kept_state: list[list[torch.Tensor]] = []
        self._copies: list[torch.Tensor] = []
        self._error: Exception | None = None

    @torch.no_grad()
    def keep(self) -> None:
        """Copy everything as it is now."""
        self._error = None
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
        torch._foreach_copy_(self._copies, live)  # pyright: ignore[reportPrivateImportUsage]

    @torch.no_grad()
    def restore(self) -> None:
        """Set everything back to what was kept and drop the gradients."""
        # Buffers are asked for anew: rsl_rl's normaliser puts other tensors in their place.
        live = [*self._of_modules(), *_tensors(self._states)]
        torch._foreach_copy_(live, self._copies)  # pyright: ignore[reportPrivateImportUsage]
        for optimizer, state, groups in zip(
            self._optimizers, self._states, self._groups, strict=True
        ):
            optimizer.state.clear()
            optimizer.state.update({key: dict(kept) for key, kept in state.items()})
            for group, kept in zip(optimizer.param_groups, groups, strict=True):
                group.update(kept)
            optimizer.zero_grad()

    def attempt(self, compute: Callable[[], Result], otherwise: Result) -> Result:
        """Run what only this process does between two exchanges with others.

        Args:
            compute: Adds to the gradients.
            otherwise: What stands for its result if it fails and others have to be told first.

        Returns:
            Its result.

        Raises:
            Exception: What ``compute`` raised, in one process.
        """
        if not self._ranks.together:
            return compute()
        try:
            return compute()
        except Exception as error:
            self._error = self._error or error
            return otherwise

    def fetch(self, values: torch.Tensor) -> list[float] | None:
        """Fetch metrics from the device, in the update's one transfer.

        Args:
            values: Metrics. Shape: (M,).

        Returns:
            The metrics; None if in any process they or anything the guard keeps is not finite.
        """
        finite = self.is_finite() & torch.isfinite(values).all()
        broken = torch.full_like(finite, self._error is not None) | ~finite
        broken = self._ranks.sum_tensor(broken.to(values.dtype).view(1))
        *fetched, broken = torch.cat((values, broken)).tolist()
        return None if broken else fetched

    @torch.no_grad()
    def is_finite(self) -> torch.Tensor:
        """Return whether everything is finite as it is now, in this process. Shape: (), bool."""
        states = _tensors(optimizer.state for optimizer in self._optimizers)
        # Step counts, of no dimension, may live elsewhere.
        tensors = [*self._of_modules(), *(tensor for tensor in states if tensor.dim() > 0)]
        # A sum is as telling as each element, and takes a tenth of the time.
        sums = [tensor.sum() for tensor in tensors if tensor.is_floating_point()]
        return torch.isfinite(torch.stack(sums)).all()

    def raise_error(self) -> None:
        """Raise on every rank what stopped the update on one, if anything did.

        Raises:
            Exception: What stopped it on this rank.
            RuntimeError: Naming what stopped it on another one.
        """
        reason = f"{type(self._error).__name__}: {self._error}" if self._error else None
        reasons = self._ranks.gather(reason)
        if self._error is not None:
            raise self._error
        for rank, other in enumerate(reasons):
            if other is not None:
                raise RuntimeError(
                    f"Rank {rank} could not compute its part of the update ({other}), which was"
                    " undone on all ranks."
                )

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

"""Inputs of a scan of which some columns stay the same for several steps.

A slow camera shows a frame for m steps. Its features are multiplied with the input weights once and
not m times, and so are their gradients, if the scan is told which steps share them::

    step                   0  1  2  3  4  5
    rows, env 0            0  0  0  1  1  1      W_ih [x_t | rows[places_t]]
    rows, env 1            2  2  3  3  3  4        = W_x x_t + (W_held rows)[places_t]
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Held:
    """Columns of inputs that several steps share."""

    rows: torch.Tensor
    """What steps show, each once. Shape: (R, D)."""
    places: torch.Tensor
    """Which of the rows a step shows. Shape: (T, N), int64."""

    def at_steps(self, values: torch.Tensor) -> torch.Tensor:
        """Return what belongs to the rows, (R, ...), at the steps that show them, (T, N, ...)."""
        return values.index_select(0, self.places.flatten()).unflatten(0, self.places.shape)


@dataclass(frozen=True)
class HeldInputs:
    """Inputs (T, N, D) in parts: columns of every step, then those that are held."""

    own: torch.Tensor
    """Columns that every step has for itself, none perhaps. Shape: (T, N, D0)."""
    held: tuple[Held, ...]
    """The columns after them, in order."""

    def __len__(self) -> int:
        """Return the number of steps T."""
        return len(self.own)

    def __getitem__(self, steps: slice) -> HeldInputs:
        """Return the inputs of some steps."""
        held = tuple(Held(each.rows, each.places[steps]) for each in self.held)
        return HeldInputs(self.own[steps], held)

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.own.device

    @property
    def widths(self) -> list[int]:
        """Columns of each part."""
        return [self.own.shape[-1], *(held.rows.shape[-1] for held in self.held)]

    @property
    def shape(self) -> torch.Size:
        """(T, N, D)."""
        return torch.Size((*self.own.shape[:2], sum(self.widths)))

    def to(self, dtype: torch.dtype) -> HeldInputs:
        """Return them in another dtype."""
        held = tuple(Held(each.rows.to(dtype), each.places) for each in self.held)
        return HeldInputs(self.own.to(dtype), held)

    def joined(self) -> torch.Tensor:
        """Return them as one tensor. Shape: (T, N, D)."""
        return torch.cat((self.own, *(held.at_steps(held.rows) for held in self.held)), dim=-1)

    def multiplied(
        self, w_ih: torch.Tensor, operand_dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Multiply what is held with its part of the input weights.

        Args:
            w_ih: Input weights of a layer. Shape: (G, D).
            operand_dtype: Of the factors.

        Returns:
            The weights of the columns that every step has for itself, shape (G, D0), and what all
            others add to the product of each step, shape (T, N, G).
        """
        w_own, *w_held = w_ih.split(self.widths, dim=1)
        added = [
            each.at_steps((each.rows.to(operand_dtype) @ w.to(operand_dtype).t()).to(w_ih.dtype))
            for each, w in zip(self.held, w_held, strict=True)
        ]
        return w_own, functools.reduce(torch.add, added)

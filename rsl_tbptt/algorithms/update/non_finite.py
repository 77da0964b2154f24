"""What follows when an update met NaN or inf: where it came from, and whether training goes on."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from tensordict import TensorDict

from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.scan import recordings_aside

_MAX_NAMED = 8


@dataclass(frozen=True)
class Source:
    """Where a NaN or inf came from."""

    kind: str
    """What was not finite, such as "observation group 'policy'"."""

    details: str = ""
    """In which environments and since when, and what to do."""

    event: str = "met NaN or inf in"
    """What an update did there, before ``kind``."""

    def __str__(self) -> str:
        """Return a clause for a message."""
        return f"{self.event} {self.kind}{self.details}"


class NonFiniteUpdates:
    """Counts the updates that met NaN or inf, and ends training where that is asked for."""

    def __init__(self, non_finite: str, max_skipped_updates: int) -> None:
        """Take the options of the same names."""
        self._skips, self._max_in_a_row = non_finite == "skip", max_skipped_updates
        self._in_a_row = 0
        self._warned: set[str] = set()
        self.num_skipped = 0
        """All of them so far."""

    def passed(self) -> None:
        """Take note of an update without any."""
        self._in_a_row = 0

    def met(self, source: Source) -> None:
        """Take note of an update that was undone; warn once per kind of source.

        Raises:
            ValueError: If none may be skipped, or too many were in a row.
        """
        undone = "Parameters, optimiser and normaliser are as before the update and the rollout was"
        resume = "repair the source, then call learn() again or resume from the last checkpoint."
        if not self._skips:
            raise ValueError(f"The update {source}. {undone} dropped: {resume}")
        self.num_skipped += 1
        self._in_a_row += 1
        if self._in_a_row >= self._max_in_a_row:
            self._in_a_row = 0
            raise ValueError(
                f"{self._max_in_a_row} updates in a row met values they cannot use, as many as"
                f" max_skipped_updates allows. The last {source}. {undone} dropped: {resume}"
            )
        if source.kind not in self._warned:
            self._warned.add(source.kind)
            warnings.warn(
                f"An update {source}. It is skipped. {undone} dropped; training"
                " goes on. Loss/skipped_updates counts such updates, and"
                f" {self._max_in_a_row} in a row end the training (max_skipped_updates).",
                stacklevel=4,
            )


def check_nan(obs: TensorDict, rewards: torch.Tensor, dones: torch.Tensor) -> None:
    """Check what a step of the environment gave (waits for the device, as rsl_rl's check does).

    Args:
        obs: Observations, batch size (N,).
        rewards: Shape (N,).
        dones: Which episodes ended. Shape: (N,).

    Raises:
        ValueError: If anything is NaN; names it and the environments.
    """
    groups = {f"observation group '{key}'": value for key, value in obs.items()}
    for name, values in {**groups, "rewards": rewards, "dones": dones}.items():
        bad = torch.isnan(values)
        if bad.any():
            raise ValueError(
                f"The step of the environment gave NaN in {name} of"
                f" {_environments(bad[None, ..., None])}: repair the environment, or let"
                " non_finite 'skip' drop such rollouts."
            )


def find_source(
    observations: TensorDict,
    groups: Container[str],
    recorded: Mapping[str, torch.Tensor],
    weights: Mapping[str, torch.Tensor],
    add_gradients: Callable[[], object],
    ranks: Ranks,
) -> Source:
    """Find where an update's NaN or inf came from: what it read first, then whose gradients.

    Slow, with host synchronisation and one more gradient of the whole rollout: only for messages.
    Several processes search together and find the same.

    Args:
        observations: Observations of the rollout, batch size (T, N).
        groups: The groups that the update reads.
        recorded: What else the update reads, by name, each (T, N, D); what follows from others
            stands behind them.
        weights: What samples weigh, by option, each (T, N).
        add_gradients: Computes the gradient of the update's loss on the whole rollout.
        ranks: The processes that search together.

    Returns:
        The first of: what is not finite, what is too large to be squared, what cannot be a weight,
        environments whose own gradients are not finite, divergence.
    """
    seen = {key: value for key, value in observations.items() if key in groups}
    named = {f"observation group '{key}'": value for key, value in seen.items()}
    found = _of_any_rank(_in_what_was_read({**named, **recorded}) or _in_weights(weights), ranks)
    if found is None:  # in all of them, so that all compute gradients, which exchange sums
        found = _of_any_rank(_in_gradients(list(seen.values()), add_gradients), ranks)
    return found or _DIVERGENCE


_DIVERGENCE = Source(
    "the gradients after an optimiser step of this update",
    ": it diverged, so lower learning_rate or max_grad_norm",
)


def _of_any_rank(source: Source | None, ranks: Ranks) -> Source | None:
    """Return what the first rank found that found anything, and name that rank."""
    of_ranks = ranks.gather(source)
    found = [(rank, source) for rank, source in enumerate(of_ranks) if source is not None]
    if not found or len(of_ranks) == 1:
        return source
    rank, source = found[0]
    return replace(source, details=f"{source.details}, on rank {rank}")


def _in_what_was_read(named: Mapping[str, Any]) -> Source | None:
    """Return the first that is not finite, else the first that is too large."""
    for name, values in named.items():
        bad = ~torch.isfinite(values)
        if bad.any():
            return Source(name, _where(bad))
    for name, values in named.items():
        if values.is_floating_point():
            bad = values.abs() > math.sqrt(torch.finfo(values.dtype).max / values.numel())
            if bad.any():
                value = values[bad][0].item()
                return Source(name, f"{_where(bad)} ({value:g}, too large to be squared)")
    return None


def _in_weights(named: Mapping[str, torch.Tensor]) -> Source | None:
    """Return the first that is not finite or below 0."""
    for name, values in named.items():
        bad = ~(torch.isfinite(values) & (values >= 0))
        if bad.any():
            rule = f"is {values[bad][0].item():g}, expected a finite number of at least 0,"
            in_envs = _where(bad.unsqueeze(-1)).replace(" of", " in", 1)
            return Source(name, f" {rule}{in_envs}", "was refused:")
    return None


def _in_gradients(observations: list[Any], add_gradients: Callable[[], object]) -> Source | None:
    """Return the environments whose gradient is not finite.

    The gradient with respect to the observations tells them all at once: no environment's reaches
    another one's.
    """
    leaves = [value for value in observations if value.is_floating_point()]
    try:
        for leaf in leaves:
            leaf.requires_grad_()
        with recordings_aside():  # windows of all environments are of no use later
            add_gradients()
        gradients = [leaf.grad.flatten(2) for leaf in leaves if leaf.grad is not None]
    finally:
        for leaf in leaves:
            leaf.requires_grad_(False).grad = None
    bad = ~torch.isfinite(torch.cat(gradients, dim=-1)) if gradients else torch.zeros(1, 1, 1)
    if not bad.any():
        return None
    return Source("the gradients", f" of {_environments(bad)} (what was recorded is finite)")


def _where(bad: torch.Tensor) -> str:
    """Say where ``bad`` (T, N, ...), bool, is True."""
    first_step = int(bad.flatten(1).any(1).nonzero()[0])
    return f" of {_environments(bad)}, first at step {first_step} of the rollout"


def _environments(bad: torch.Tensor) -> str:
    envs = bad.flatten(2).any(-1).any(0).nonzero().flatten().tolist()
    more = f" and {len(envs) - _MAX_NAMED} more" if len(envs) > _MAX_NAMED else ""
    return f"environments {envs[:_MAX_NAMED]}{more}"

"""The search for the source of a NaN or inf: in a step of the environment, or after an update."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from tensordict import TensorDict

from rsl_tbptt.core.distributed import Ranks

_MAX_NAMED = 8


@dataclass(frozen=True)
class Source:
    """The source of a NaN or inf."""

    kind: str
    """Name of the value that was not finite, such as "observation group 'policy'"."""

    details: str = ""
    """Environments, first step, and the fix."""

    def __str__(self) -> str:
        """Return a clause for a message."""
        return f"met NaN or inf in {self.kind}{self.details}"


def check_nan(obs: TensorDict, rewards: torch.Tensor, dones: torch.Tensor) -> None:
    """Check the results of an environment step (waits for the device, as rsl_rl's check does).

    Args:
        obs: Observations, batch size (N,).
        rewards: Shape (N,).
        dones: Which episodes ended. Shape: (N,).

    Raises:
        ValueError: If anything is NaN; it names the value and the environments.
    """
    groups = {f"observation group '{key}'": value for key, value in obs.items()}
    for name, values in {**groups, "rewards": rewards, "dones": dones}.items():
        bad = torch.isnan(values)
        if bad.any():
            raise ValueError(
                f"The step of the environment gave NaN in {name} of"
                f" {_environments(bad[None])}: repair the environment, or let"
                " non_finite 'skip' drop such rollouts."
            )


@dataclass(frozen=True)
class Inputs:
    """Values of a rollout that an update reads."""

    groups: Container[str]
    """Observation groups."""

    recorded: Mapping[str, torch.Tensor]
    """Other values by name, each (T, N, D); values derived from others come after them."""


def find_source(
    observations: TensorDict, inputs: Inputs, add_gradients: Callable[[], object], ranks: Ranks
) -> Source:
    """Find the source of an update's NaN or inf: first in its inputs, then in gradients.

    Slow, with host synchronisation and one more gradient of the whole rollout: only for messages.
    Several processes search together and find the same.

    Args:
        observations: Observations of the rollout, batch size (T, N).
        inputs: The update's inputs.
        add_gradients: Computes the gradient of the update's loss on the whole rollout.
        ranks: The processes that search together.

    Returns:
        The first of: a value that is not finite, one too large to be squared, environments whose
        own gradients are not finite, divergence.
    """
    read_groups = {key: value for key, value in observations.items() if key in inputs.groups}
    named = {f"observation group '{key}'": value for key, value in read_groups.items()}
    read = _in_what_was_read({**named, **inputs.recorded})
    findings = _of_any_rank(read, ranks)
    if findings is None:  # on all ranks, so that all compute gradients, which exchange sums
        findings = _of_any_rank(_in_gradients(list(read_groups.values()), add_gradients), ranks)
    return findings or _DIVERGENCE


_DIVERGENCE = Source(
    "the gradients after an optimiser step of this update",
    ": it diverged, so lower learning_rate or max_grad_norm",
)


def _of_any_rank(source: Source | None, ranks: Ranks) -> Source | None:
    """Return the finding of the first rank that found something, with the rank's number."""
    of_ranks = ranks.gather(source)
    findings = [(rank, source) for rank, source in enumerate(of_ranks) if source is not None]
    if not findings or len(of_ranks) == 1:
        return source
    rank, source = findings[0]
    return replace(source, details=f"{source.details}, on rank {rank}")


def _in_what_was_read(named: Mapping[str, Any]) -> Source | None:
    """Return the first value that is not finite, otherwise the first that is too large."""
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


def _in_gradients(observations: list[Any], add_gradients: Callable[[], object]) -> Source | None:
    """Return the environments whose gradient is not finite.

    The gradient with respect to the observations shows all of them at once, since no environment
    contributes to another one's gradient.
    """
    leaves = [value for value in observations if value.is_floating_point()]
    try:
        for leaf in leaves:
            leaf.requires_grad_()
            add_gradients()
        gradients = [
            leaf.grad.reshape(*leaf.shape[:2], -1) for leaf in leaves if leaf.grad is not None
        ]
    finally:
        for leaf in leaves:
            leaf.requires_grad_(False).grad = None
    bad = ~torch.isfinite(torch.cat(gradients, dim=-1)) if gradients else torch.zeros(1, 1, 1)
    if not bad.any():
        return None
    return Source("the gradients", f" of {_environments(bad)} (what was recorded is finite)")


def _where(bad: torch.Tensor) -> str:
    """Describe where ``bad`` (T, N, ...), bool, is True."""
    first_step = int(bad.flatten(1).any(1).nonzero()[0])
    return f" of {_environments(bad)}, first at step {first_step} of the rollout"


def _environments(bad: torch.Tensor) -> str:
    envs = bad.reshape(*bad.shape[:2], -1).any(-1).any(0).nonzero().flatten().tolist()
    more = f" and {len(envs) - _MAX_NAMED} more" if len(envs) > _MAX_NAMED else ""
    return f"environments {envs[:_MAX_NAMED]}{more}"

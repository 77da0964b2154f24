"""What the auxiliary heads of a checkpoint predict, held against the truth while a policy acts."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.algorithms.auxiliary.networks import saved_heads
from rsl_tbptt.algorithms.auxiliary.options import PREFIX, TEACHER
from rsl_tbptt.compat.versions import MLPModel


class _HeadError:
    """Sums the squared errors of a head over the first episode of each environment."""

    def __init__(self, network: nn.Module, meaning: Mapping[str, Any]) -> None:
        self._network, self._target = network, meaning["target"]
        self._columns = meaning["columns"]
        self._predictions: deque[torch.Tensor] = deque(maxlen=meaning["delay"] + 1)
        self._sum: torch.Tensor | float = 0.0
        self._samples = 0

    def add(self, latents: torch.Tensor, obs: TensorDict, running: torch.Tensor) -> None:
        """Hold a prediction against its target, which may be of a later step.

        Args:
            latents: What the heads read. Shape: (N, H).
            obs: Observations of this step, batch size (N,).
            running: Environments in their first episode. Shape: (N,), bool.
        """
        self._predictions.append(self._network(latents))
        if len(self._predictions) < (self._predictions.maxlen or 1):
            return
        target = obs[self._target]
        if self._columns is not None:
            target = target[:, self._columns]
        squares = (self._predictions[0] - target).square().double()
        self._sum = self._sum + squares[running].sum(0)
        self._samples += int(running.sum())

    def summary(self) -> dict[str, Any] | None:
        """Return root mean square errors in the target's unit, over all columns and of each.

        None where every episode ended before a target came.
        """
        if self._samples == 0:
            return None
        squares = torch.as_tensor(self._sum / self._samples)
        return {"rmse": squares.mean().sqrt().item(), "rmse_by_column": squares.sqrt().tolist()}


class WatchedHeads:
    """A policy that acts as it did, and heads whose errors are summed while it does.

    Each environment counts until its first episode ends, like its return. A head whose target is
    a layer of the teacher, which does not act here, or a group that the environment does not give
    is left out.
    """

    def __init__(
        self,
        policy: MLPModel,
        auxiliary: Mapping[str, Any],
        obs: TensorDict,
        latents: list[torch.Tensor],
    ) -> None:
        """Take the policy and its heads.

        Args:
            policy: The policy.
            auxiliary: What a checkpoint holds of the heads.
            obs: Observations of the environments, batch size (N,).
            latents: Grows by what the policy's own head reads, (N, H), whenever it acts.
        """
        self._policy, self._latents = policy, latents
        self._running = torch.ones(obs.batch_size, dtype=torch.bool, device=obs.device)
        self._errors = {
            name.removeprefix(PREFIX): _HeadError(network.to(obs.device), meaning)
            for (name, network), meaning in zip(
                saved_heads(auxiliary).items(), auxiliary.get("heads", {}).values(), strict=True
            )
            if not meaning["target"].startswith(TEACHER) and meaning["target"] in obs
        }

    def __call__(self, obs: TensorDict) -> torch.Tensor:
        """Return the policy's actions, shape (N, A)."""
        actions = self._policy(obs)
        latents = self._latents.pop()
        for error in self._errors.values():
            error.add(latents, obs, self._running)
        return actions

    def reset(self, dones: torch.Tensor | None = None) -> None:
        """Clear the policy's memory where an episode ended, shape (N,), bool, or everywhere."""
        self._policy.reset(dones)
        if dones is not None:
            self._running &= dones == 0

    def summary(self) -> dict[str, dict[str, Any]]:
        """Return the errors of each head by its name; see :meth:`_HeadError.summary`."""
        summaries = {name: error.summary() for name, error in self._errors.items()}
        return {name: summary for name, summary in summaries.items() if summary is not None}

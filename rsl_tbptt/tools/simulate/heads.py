"""Auxiliary heads of a checkpoint, run with its policy."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.algorithms.extensions.heads import LAYER, PREFIX, build_head
from rsl_tbptt.compat.versions import MLPModel


def saved_heads(saved: Mapping[str, Any]) -> dict[str, nn.Module]:
    """Build the heads of a checkpoint, to run with its model.

    Args:
        saved: The result of ``AuxiliaryHeads.state_dict``, or nothing.

    Returns:
        Modules by the names of their outputs. They map latents, (rows, H), to predictions,
        (rows, D); for a head with the loss "bce" these are probabilities.
    """
    heads: dict[str, nn.Module] = {}
    for name, head in saved.get("heads", {}).items():
        weights = [value for value in head["state_dict"].values() if value.dim() == 2]
        num_inputs, num_outputs = weights[0].shape[1], weights[-1].shape[0]
        network = build_head(num_inputs, tuple(head["hidden_dims"]), num_outputs)
        network.load_state_dict(head["state_dict"])
        if head["loss"] == "bce":
            network.append(nn.Sigmoid())
        heads[PREFIX + name] = network.eval()
    return heads


class _HeadError:
    """Sums the squared errors of a head over the first episode of each environment."""

    def __init__(self, network: nn.Module, meaning: Mapping[str, Any]) -> None:
        self._network, self._target = network, meaning["target"]
        self._columns = meaning["columns"]
        self._predictions: deque[torch.Tensor] = deque(maxlen=meaning["delay"] + 1)
        self._sum: torch.Tensor | float = 0.0
        self._samples = 0

    def add(self, latents: torch.Tensor, obs: TensorDict, running: torch.Tensor) -> None:
        """Compare a prediction with its target, which may be of a later step.

        Args:
            latents: Inputs of the heads. Shape: (N, H).
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
        """Return root mean square errors in the target's unit: of all columns and of each.

        None if every episode ended before a target came.
        """
        if self._samples == 0:
            return None
        squares = torch.as_tensor(self._sum / self._samples)
        return {"rmse": squares.mean().sqrt().item(), "rmse_by_column": squares.sqrt().tolist()}


class WatchedHeads:
    """A policy with unchanged actions, and heads whose errors are summed while it acts.

    Each environment counts until its first episode ends, like its return. A head is left out if its
    target is a layer of the teacher, which does not run, or a group that the environment lacks.
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
            auxiliary: A checkpoint's entry of the heads.
            obs: Observations of the environments, batch size (N,).
            latents: Receives the latent, (N, H), that the policy's own head reads in each step.
        """
        self._policy, self._latents = policy, latents
        self._running = torch.ones(obs.batch_size, dtype=torch.bool, device=obs.device)
        self._errors = {
            name.removeprefix(PREFIX): _HeadError(network.to(obs.device), meaning)
            for (name, network), meaning in zip(
                saved_heads(auxiliary).items(), auxiliary.get("heads", {}).values(), strict=True
            )
            if not meaning["target"].startswith(LAYER) and meaning["target"] in obs
        }

    def __call__(self, obs: TensorDict) -> torch.Tensor:
        """Return the policy's actions, shape (N, A)."""
        actions = self._policy(obs)
        latents = self._latents.pop()
        for error in self._errors.values():
            error.add(latents, obs, self._running)
        return actions

    def reset(self, dones: torch.Tensor | None = None) -> None:
        """Clear the policy's state where an episode ended, shape (N,), bool, or everywhere."""
        self._policy.reset(dones)
        if dones is not None:
            self._running &= dones == 0

    def summary(self) -> dict[str, dict[str, Any]]:
        """Return the errors of each head by its name; see :meth:`_HeadError.summary`."""
        summaries = {name: error.summary() for name, error in self._errors.items()}
        return {name: summary for name, summary in summaries.items() if summary is not None}

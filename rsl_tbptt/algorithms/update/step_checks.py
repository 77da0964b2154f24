"""What the environment gives, against what training was set up with: shapes, types and devices.

All of it is known on the host, so nothing waits for the device. Values are looked at where an
update met NaN or inf; see ``non_finite.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

_FIX = "repair the environment's step() and get_observations()"


def check_observations(obs: TensorDict, storage: RolloutStorage) -> None:
    """Check observations of all environments, batch size (N,), before a model sees them.

    Args:
        obs: What the environment gave.
        storage: Made from the first observations.

    Raises:
        ValueError: If a group is missing, or of another shape, type or device than at first.
    """
    for group, stored in storage.observations.items():
        values = obs.get(group, None)
        if values is None:
            raise ValueError(
                f"Observation group '{group}' is missing among {sorted(obs.keys())}, expected as"
                f" when training was set up: {_FIX}."
            )
        name, shape = f"Observation group '{group}'", stored.shape[1:]
        _check(name, values, shape, stored.device, "as when training was set up")
        if values.dtype != stored.dtype:
            raise ValueError(
                f"{name} is of type {values.dtype}, expected {stored.dtype}, as when training was"
                f" set up: {_FIX}."
            )


def check_step(rewards: torch.Tensor, dones: torch.Tensor, storage: RolloutStorage) -> None:
    """Check what else a step gave, before it is stored.

    Args:
        rewards: Shape (N,).
        dones: Which episodes ended. Shape: (N,).
        storage: Where they go.

    Raises:
        ValueError: If one has another shape, or lies on another device than the storage.
    """
    for name, values in (("rewards", rewards), ("dones", dones)):
        _check(name, values, (storage.num_envs,), storage.dones.device, "one per environment")


def _check(
    name: str, values: Any, shape: tuple[int, ...], device: torch.device | None, why: str
) -> None:
    """Check one tensor.

    Raises:
        ValueError: If it is none, or has another shape or device.
    """
    if not isinstance(values, torch.Tensor):
        raise ValueError(f"{name} is a {type(values).__name__}, expected a tensor: {_FIX}.")
    if values.shape != shape:
        raise ValueError(
            f"{name} is of shape {tuple(values.shape)}, expected {tuple(shape)}, {why}: {_FIX}."
        )
    if values.device != device:
        raise ValueError(
            f"{name} is on {values.device}, expected {device}, where the rollout is stored: call"
            f" .to('{device}') on what the environment gives."
        )

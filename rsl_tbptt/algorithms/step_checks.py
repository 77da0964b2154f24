"""What the environment gives, against what training was set up with: shapes, types and devices.

All of it is known on the host, so nothing waits for the device but the check for NaN, which stands
in for that of rsl_rl's runner. What else is not finite an update finds; see ``transaction.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from rsl_tbptt.algorithms.transaction import check_nan

_FIX = "repair the environment's step() and get_observations()"


class StepChecks:
    """Checks each step of the environment."""

    nan: bool = False
    """Whether also for NaN, in rsl_rl's runner's place, which names no environments."""

    def __init__(self, storage: RolloutStorage) -> None:
        """Check nothing yet.

        Args:
            storage: Made from the first observations.
        """
        self._storage = storage

    def take_over_nan_check(self, non_finite: str, runner_cfg: dict[str, Any]) -> None:
        """Do what rsl_rl's runner by default does at every step, or leave it to the update.

        The algorithm shares the runner's config, and nothing else reaches that check.

        Args:
            non_finite: The option of that name.
            runner_cfg: The runner's config, in which ``check_for_nan`` is turned off.
        """
        self.nan = bool(runner_cfg.get("check_for_nan", True)) and non_finite == "raise"
        runner_cfg["check_for_nan"] = False

    def check_observations(self, obs: TensorDict) -> None:
        """Check observations of all environments, batch size (N,), before a model sees them.

        Raises:
            ValueError: If a group is missing, or of another shape, type or device than at first.
        """
        for group, stored in self._storage.observations.items():
            values = obs.get(group, None)
            if values is None:
                raise ValueError(
                    f"Observation group '{group}' is missing among {sorted(obs.keys())}, expected"
                    f" as when training was set up: {_FIX}."
                )
            name, shape = f"Observation group '{group}'", stored.shape[1:]
            _check(name, values, shape, stored.device, "as when training was set up")
            if values.dtype != stored.dtype:
                raise ValueError(
                    f"{name} is of type {values.dtype}, expected {stored.dtype}, as when training"
                    f" was set up: {_FIX}."
                )

    def check_step(self, obs: TensorDict, rewards: torch.Tensor, dones: torch.Tensor) -> None:
        """Check what a step gave before it is stored.

        Args:
            obs: Next observations, batch size (N,): only for NaN.
            rewards: Shape (N,).
            dones: Which episodes ended. Shape: (N,).

        Raises:
            ValueError: If one has another shape, or lies on another device than the storage; or if
                anything is NaN and that is to be checked.
        """
        storage = self._storage
        for name, values in (("rewards", rewards), ("dones", dones)):
            _check(name, values, (storage.num_envs,), storage.dones.device, "one per environment")
        if self.nan:
            check_nan(obs, rewards, dones)


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

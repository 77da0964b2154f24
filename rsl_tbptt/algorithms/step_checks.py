"""Checks of the environment's outputs against the form that training was set up with.

Shapes, types and devices are known on the host, so only the check for NaN waits for the device; it
replaces the check of rsl_rl's runner. The update finds other non-finite values: ``transaction.py``.
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
    """Whether to check for NaN, in place of rsl_rl's runner, which does not name environments."""

    def __init__(self, storage: RolloutStorage) -> None:
        """Prepare the checks.

        Args:
            storage: The storage, made from the first observations.
        """
        self._storage = storage

    def take_over_nan_check(self, non_finite: str, runner_cfg: dict[str, Any]) -> None:
        """Take over the NaN check that rsl_rl's runner makes at every step, or drop it.

        The update finds NaN as well. The runner shares its config, the only way to reach its check.

        Args:
            non_finite: The option of that name.
            runner_cfg: The runner's config, in which ``check_for_nan`` is turned off.
        """
        self.nan = bool(runner_cfg.get("check_for_nan", True)) and non_finite == "raise"
        runner_cfg["check_for_nan"] = False

    def check_observations(self, obs: TensorDict) -> None:
        """Check observations of all environments, batch size (N,), before a model sees them.

        Raises:
            ValueError: If a group is missing, or has not its first shape, type or device.
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
        """Check the results of a step before they are stored.

        Args:
            obs: Next observations, batch size (N,); checked for NaN only.
            rewards: Shape (N,).
            dones: Which episodes ended. Shape: (N,).

        Raises:
            ValueError: If rewards or dones have another shape, or another device than the storage;
                or if anything is NaN and :attr:`nan` is set.
        """
        storage = self._storage
        for name, values in (("rewards", rewards), ("dones", dones)):
            _check(name, values, (storage.num_envs,), storage.dones.device, "one per environment")
        if self.nan:
            check_nan(obs, rewards, dones)


def _check(
    name: str, values: Any, shape: tuple[int, ...], device: torch.device | None, why: str
) -> None:
    """Check that a value is a tensor of the right form.

    Raises:
        ValueError: If it is not a tensor, or has another shape or device.
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
            f" .to('{device}') on what the environment returns."
        )

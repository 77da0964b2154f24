"""The door for what the environment gives: a step is checked, converted and copied here.

An environment may reuse or change its tensors as soon as a call returns. So the algorithms keep
their own copies, made here, of all that outlives a call.

Shapes, types and devices are known on the host, so only the check for NaN waits for the device; it
replaces the check of rsl_rl's runner. The update finds other non-finite values: ``find_nan.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from rsl_tbptt.algorithms.find_nan import check_nan
from rsl_tbptt.compat.versions import OWN_MODELS

_JOINING = [model.get_latent for model in OWN_MODELS]
_FIX = "repair the environment's step() and get_observations()"
_AS_FIRST = "as when training was set up"


def check_types(models: Mapping[str, Any], obs: TensorDict) -> None:
    """Check the types of the observation groups that rsl_rl's models read.

    They join their vectors, and the result and every image have to be of their parameters' type. A
    model with an encoder of its own may convert its groups.

    Args:
        models: Models by role.
        obs: Observations of any batch size.

    Raises:
        ValueError: If a model cannot read a group.
    """
    for role, model in models.items():
        parameter = next(model.parameters(), None)  # a teacher may have none
        if parameter is None or getattr(type(model), "get_latent", None) not in _JOINING:
            continue
        types = {name: obs[name].dtype for name in getattr(model, "obs_groups_2d", ())}
        if vectors := [obs[name].dtype for name in model.obs_groups]:
            types[", ".join(model.obs_groups)] = reduce(torch.promote_types, vectors)
        expected = parameter.dtype
        for name, found in types.items():
            if found != expected:
                raise ValueError(
                    f"obs_groups['{role}'] is of type {found} in '{name}', expected {expected},"
                    f" that of the {role}'s parameters: convert it in the environment, by .float()."
                )


def tensor_groups(obs: TensorDict, obs_groups: Mapping[str, Sequence[str]]) -> TensorDict:
    """Return the observation groups that can be stored, which are tensors.

    Isaac Lab's ``concatenate_terms=False`` makes groups of several tensors, which no model of
    rsl_rl reads; an environment may also describe itself in text.

    Args:
        obs: Observations of any batch size.
        obs_groups: Observation groups by set, from the runner's config.

    Raises:
        ValueError: If a set has a group that is no tensor.
    """
    tensors = [name for name, values in obs.items() if isinstance(values, torch.Tensor)]
    for name, groups in obs_groups.items():
        for group in groups:
            if group in obs.keys() and group not in tensors:  # noqa: SIM118
                raise ValueError(
                    f"obs_groups['{name}'] has '{group}', a {type(obs[group]).__name__}, expected a"
                    " tensor: join its terms (concatenate_terms=True in Isaac Lab), or take it out."
                )
    return obs.select(*tensors)


class StepChecks:
    """Checks each step of the environment, and copies it in the form that algorithms use."""

    nan: bool = False
    """Whether to check for NaN, in place of rsl_rl's runner, which does not name environments."""

    read_groups: Collection[str] = ()
    """The observation groups that anything reads; the others may be missing or of any form."""

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

    def observations(self, obs: TensorDict | Mapping[str, Any]) -> TensorDict:
        """Copy observations of all environments, batch size (N,), before a model sees them.

        Args:
            obs: Observation groups by name.

        Returns:
            The stored groups. One that nothing reads is left out if its form has changed.

        Raises:
            ValueError: If a group that is read is missing, or has not its first shape, type or
                device.
        """
        storage, own = self._storage, {}
        stored_groups: Any = storage.observations.items()
        for group, stored in stored_groups:
            values: Any = obs.get(group, None)
            if group not in self.read_groups:
                if _form(values) == _form(stored[0]):
                    own[group] = values.clone()
                continue
            if values is None:
                raise ValueError(
                    f"Observation group '{group}' is missing among {sorted(obs.keys())}, expected"
                    f" {_AS_FIRST}: {_FIX}."
                )
            form = stored.shape[1:], _AS_FIRST, stored.device, stored.dtype
            own[group] = checked(f"Observation group '{group}'", values, *form).clone()
        return TensorDict(own, batch_size=[storage.num_envs])

    def step(self, obs: TensorDict, rewards: Any, dones: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Convert the results of a step before they are stored.

        Args:
            obs: Next observations, batch size (N,); checked for NaN only.
            rewards: Numbers or booleans. Shape: (N,).
            dones: Which episodes ended: 0 where none did, any other number where one did. Shape:
                (N,).

        Returns:
            Rewards of the storage's type, and dones of 0 and 1, int64. Shape: (N,) each.

        Raises:
            ValueError: If rewards or dones have another shape, or another device than the storage;
                or if anything is NaN and :attr:`nan` is set.
        """
        storage = self._storage
        form = (storage.num_envs,), "one per environment", storage.dones.device
        rewards, dones = checked("rewards", rewards, *form), checked("dones", dones, *form)
        if self.nan:
            check_nan(obs.select(*self.read_groups, strict=False), rewards, dones)
        return rewards.to(storage.rewards.dtype), (dones != 0).long()


def _form(values: Any) -> tuple[Any, ...] | None:
    """Return what a copy into the storage needs to agree; None if ``values`` is no tensor."""
    is_tensor = isinstance(values, torch.Tensor)
    return (values.shape, values.dtype, values.device) if is_tensor else None


def checked(
    name: str,
    values: Any,
    shape: Sequence[int],
    why: str,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return a tensor unchanged, and an array, such as numpy's, as a tensor.

    Args:
        name: Name of the value, for the message.
        values: A tensor or an array.
        shape: The expected shape.
        why: What the shape means, for the message.
        device: The expected device; None allows any.
        dtype: The expected type; None allows any.

    Raises:
        ValueError: If it is neither, or not as expected.
    """
    if not isinstance(values, torch.Tensor):
        try:
            values = torch.as_tensor(values.__array__(), device=device)
        except (AttributeError, TypeError) as error:  # no array, or one of objects
            raise ValueError(
                f"{name} is a {type(values).__name__}, expected a tensor of numbers: {_FIX}."
            ) from error
    found = tuple(values.shape), values.device, values.dtype
    expected = tuple(shape), device or values.device, dtype or values.dtype
    if found != expected:
        of_found, of_expected = ("shape {} on {}, {}".format(*each) for each in (found, expected))
        raise ValueError(f"{name} is of {of_found}, expected {of_expected}, {why}: {_FIX}.")
    return values

"""Check, convert and copy each step of the environment; bootstrap values for truncated episodes.

An environment may reuse or change its tensors as soon as a call returns. So the algorithms keep
their own copies, made here, of all that outlives a call.

Shapes, types and devices are known on the host, so only the check for NaN waits for the device; it
replaces the check of rsl_rl's runner. The update finds other non-finite values: ``find_nan.py``.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from rsl_tbptt.algorithms.find_nan import check_nan
from rsl_tbptt.algorithms.replay import observed_groups
from rsl_tbptt.compat.versions import OWN_MODELS, MLPModel

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
        for name, dtype in types.items():
            if dtype != expected:
                raise ValueError(
                    f"obs_groups['{role}'] is of type {dtype} in '{name}', expected {expected},"
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
        storage, copies = self._storage, {}
        stored_groups: Any = storage.observations.items()
        for group, stored in stored_groups:
            values: Any = obs.get(group, None)
            if group not in self.read_groups:
                if _form(values) == _form(stored[0]):
                    copies[group] = values.clone()
                continue
            if values is None:
                raise ValueError(
                    f"Observation group '{group}' is missing among {sorted(obs.keys())}, expected"
                    f" {_AS_FIRST}: {_FIX}."
                )
            form = stored.shape[1:], _AS_FIRST, stored.device, stored.dtype
            copies[group] = checked(f"Observation group '{group}'", values, *form).clone()
        return TensorDict(copies, batch_size=[storage.num_envs])

    def step(self, obs: TensorDict, rewards: Any, dones: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Convert the results of a step before they are stored.

        Args:
            obs: Next observations, batch size (N,); checked for NaN only.
            rewards: Numbers or booleans. Shape: (N,).
            dones: Which episodes ended: 0 where none did, any other number where one did. Shape:
                (N,).

        Returns:
            Rewards of the storage's type, and dones, bool. Shape: (N,) each.

        Raises:
            ValueError: If rewards or dones have another shape, or another device than the storage;
                or if anything is NaN and :attr:`nan` is set.
        """
        storage = self._storage
        form = (storage.num_envs,), "one per environment", storage.dones.device
        rewards, dones = checked("rewards", rewards, *form), checked("dones", dones, *form)
        if self.nan:
            check_nan(obs.select(*self.read_groups, strict=False), rewards, dones)
        return rewards.to(storage.rewards.dtype), dones != 0


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
    form = tuple(values.shape), values.device, values.dtype
    expected = tuple(shape), device or values.device, dtype or values.dtype
    if form != expected:
        described = ("shape {} on {}, {}".format(*parts) for parts in (form, expected))
        raise ValueError("{} is of {}, expected {}, {}: {}.".format(name, *described, why, _FIX))
    return values


_TIME_OUTS = "extras['time_outs']"


class TruncationBootstrap:
    """Bootstrap values for truncated episodes; it warns once if they are approximations."""

    def __init__(self, critic: MLPModel, storage: RolloutStorage) -> None:
        """Take the critic, before it is compiled, and the storage of rollouts."""
        self._stored = storage.observations.select(*observed_groups(critic, storage.observations))
        self._shape, self._device = (storage.num_envs,), storage.dones.device
        self._warned = False
        self._without_final_obs: torch.Tensor | None = None
        self._held: Any = None
        self._marks: list[Any] = []

    def __call__(
        self, critic: MLPModel, values: torch.Tensor, extras: Mapping[str, Any]
    ) -> torch.Tensor | float:
        """Return the bootstrap value where time ran out, 0 elsewhere, shape (N,).

        Args:
            critic: The critic, in the state after this step's observation; the state is kept.
            values: Its values before the step, shape (N, 1): rsl_rl's approximation.
            extras: May have "time_outs", shape (N,) or (N, 1): not 0 where time ran out; without
                them all is 0. It may have "final_obs" (or "time_out_bootstrap_obs"), the critic's
                observation groups at the end of the step, before any reset. Those of an earlier
                step are ignored: Isaac Lab keeps them until the next episode ends.

        Raises:
            ValueError: If time-outs have another shape, or new final observations are no mapping,
                lack a group of the critic or have another shape.
        """
        time_outs = extras.get("time_outs")
        if time_outs is None:
            return 0.0
        if getattr(time_outs, "shape", ()) == (*self._shape, 1):
            time_outs = time_outs.squeeze(-1)
        time_outs = checked(_TIME_OUTS, time_outs, self._shape, "one per environment")
        time_outs = time_outs.to(self._device) != 0
        final_obs = extras.get("final_obs", extras.get("time_out_bootstrap_obs"))  # in UniLab
        if not isinstance(final_obs, Mapping | None):
            raise ValueError(
                f"extras['final_obs'] is a {type(final_obs).__name__}, expected observation groups"
                " by name, of all environments."
            )
        if final_obs is not None and self._is_new(final_obs):
            beyond = value_without_advancing(critic, self._observations(final_obs))
            return torch.where(time_outs, beyond, 0.0)
        if not self._warned:
            # Recorded on the device, since reading it here would wait. A step without time-outs is
            # no reason to warn: Isaac Lab gives no final observations before its first reset.
            before, now = self._without_final_obs, time_outs.any()
            self._without_final_obs = now if before is None else before | now
        return torch.where(time_outs, values.squeeze(-1), 0.0)

    def _observations(self, final_obs: Mapping[str, Any]) -> TensorDict:
        """Return the critic's groups of all environments as they are stored, batch size (N,).

        Raises:
            ValueError: If a group is missing or has another shape.
        """
        groups = {}
        for group, stored in self._stored.items():
            if group not in final_obs.keys():  # noqa: SIM118, a TensorDict is no mapping
                raise ValueError(
                    f"extras['final_obs'] has the groups {sorted(final_obs.keys())}, expected all"
                    f" that the critic reads, {sorted(self._stored.keys())}: add '{group}', or"
                    " leave 'final_obs' out, which values time-outs by the step before."
                )
            name = f"extras['final_obs']['{group}']"
            values = checked(name, final_obs[group], stored.shape[1:], "of all environments")
            groups[group] = values.to(stored.device, stored.dtype)
        return TensorDict(groups, batch_size=self._shape)

    def _is_new(self, final_obs: Mapping[str, Any]) -> bool:
        """Return whether these may be of this step: Isaac Lab keeps those of an earlier one.

        They are compared by identity, so no value is read. Tensors changed in place count as new:
        torch counts their versions. It does not for tensors made in inference mode, and arrays have
        none, so these may always be new.
        """
        groups = list(final_obs.values())
        counted = all(isinstance(g, torch.Tensor) and not g.is_inference() for g in groups)
        marks = [id(final_obs), *map(id, groups), *(g._version for g in groups if counted)]
        is_new = marks != self._marks or not counted
        self._held, self._marks = (final_obs, groups), marks  # held, or their ids might be reused
        return is_new

    def warn_once(self) -> None:
        """Warn if a time-out had no final observation. Before it has, this reads the device."""
        if not self._warned and self._without_final_obs is not None and self._without_final_obs:
            self._warned = True
            warnings.warn(
                "Time-outs are bootstrapped with the value before the last step, because the"
                " environment gives no new extras['final_obs']. In Isaac Lab 3.0 turn it on with"
                " env.compute_final_obs=true. In your own environment put the observations there"
                " from before it is reset.",
                stacklevel=4,
            )


def value_without_advancing(critic: MLPModel, obs: TensorDict) -> torch.Tensor:
    """Return the critic's value of ``obs`` (N,) without changing its hidden state."""
    state = critic.get_hidden_state()
    values = critic(obs).detach().squeeze(-1)
    critic.reset(hidden_state=state)
    return values

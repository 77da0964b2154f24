"""Bootstrap values for truncated episodes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from rsl_tbptt.algorithms.replay import observed_groups
from rsl_tbptt.algorithms.step_checks import checked
from rsl_tbptt.compat.versions import MLPModel

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
        given = extras.get("time_outs")
        if given is None:
            return 0.0
        if getattr(given, "shape", ()) == (*self._shape, 1):
            given = given.squeeze(-1)
        time_outs = checked(_TIME_OUTS, given, self._shape, "one per environment")
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
        found = {}
        for group, stored in self._stored.items():
            if group not in final_obs.keys():  # noqa: SIM118, a TensorDict is no mapping
                raise ValueError(
                    f"extras['final_obs'] has the groups {sorted(final_obs.keys())}, expected all"
                    f" that the critic reads, {sorted(self._stored.keys())}: add '{group}', or"
                    " leave 'final_obs' out, which values time-outs by the step before."
                )
            name = f"extras['final_obs']['{group}']"
            values = checked(name, final_obs[group], stored.shape[1:], "of all environments")
            found[group] = values.to(stored.device, stored.dtype)
        return TensorDict(found, batch_size=self._shape)

    def _is_new(self, final_obs: Mapping[str, Any]) -> bool:
        """Return whether these may differ from the last ones, by identity: no value is read.

        Tensors changed in place count as new: torch counts their versions. It does not for tensors
        made in inference mode, and arrays have none, so these may always be new.
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

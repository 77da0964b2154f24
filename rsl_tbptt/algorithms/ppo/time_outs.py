"""What an episode that time alone ended is worth beyond its end."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict

from rsl_tbptt.compat.versions import MLPModel


class TimeOutValues:
    """Values of the observations at the end of a step, with one warning where there are none."""

    def __init__(self) -> None:
        """Start without a warning given."""
        self._warned = False
        self._without_final_obs: torch.Tensor | None = None
        self._held: Any = None
        self._marks: list[Any] = []

    def __call__(
        self,
        critic: MLPModel,
        values: torch.Tensor,
        extras: Mapping[str, Any],
    ) -> torch.Tensor:
        """Return the value of going on where time ran out, 0 elsewhere, shape (N,).

        Args:
            critic: The critic in the state after this step's observation; it is left in it.
            values: Its values before the step, shape (N, 1): rsl_rl's approximation.
            extras: Has "time_outs", shape (N,), which environments' time ran out; and may have
                "final_obs", observation groups at the end of the step, before any reset. Those of
                an earlier step count as none: Isaac Lab keeps them until the next episode ends.
        """
        time_outs, final_obs = extras["time_outs"].to(values.device).bool(), extras.get("final_obs")
        if final_obs is None or not self._is_new(final_obs):
            self._note(time_outs)
            return torch.where(time_outs, values.squeeze(-1), 0.0)
        obs = TensorDict(dict(final_obs), batch_size=values.shape[:1]).to(values.device)
        return torch.where(time_outs, value_without_advancing(critic, obs), 0.0)

    def _is_new(self, final_obs: Mapping[str, Any]) -> bool:
        """Return whether these are others than last time, by identity: no value is read.

        Tensors changed in place count as others if torch counts their versions, which it does not
        for those made in inference mode.
        """
        groups = list(final_obs.values())
        marks = [id(final_obs), *((id(group), _version(group)) for group in groups)]
        is_new = marks != self._marks
        self._held, self._marks = (final_obs, groups), marks  # held: else their ids might recur
        return is_new

    def _note(self, time_outs: torch.Tensor) -> None:
        """Remember on the device whether any time ran out: asking it here would wait for it.

        Isaac Lab gives no final observations before its first reset either, with the option on, so
        a step without them is nothing to warn of.
        """
        if not self._warned:
            before, now = self._without_final_obs, time_outs.any()
            self._without_final_obs = now if before is None else before | now

    def warn_once(self) -> None:
        """Warn if a time-out had no final observation; until it has, this reads the device."""
        if not self._warned and self._without_final_obs is not None and self._without_final_obs:
            self._warned = True
            warnings.warn(
                "Time-outs are bootstrapped with the value before the last step, because the"
                " environment gives no new extras['final_obs']. In Isaac Lab 3.0 turn it on with"
                " env.compute_final_obs=true.",
                stacklevel=4,
            )


def _version(group: Any) -> int | None:
    """Return how often a tensor was changed in place, None where torch does not count."""
    counts = isinstance(group, torch.Tensor) and not group.is_inference()
    return group._version if counts else None


def value_without_advancing(critic: MLPModel, obs: TensorDict) -> torch.Tensor:
    """Return the critic's value of ``obs`` (N,), and leave its hidden state as it is."""
    state = critic.get_hidden_state()
    values = critic(obs).detach().squeeze(-1)
    critic.reset(hidden_state=state)
    return values

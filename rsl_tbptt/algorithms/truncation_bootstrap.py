"""What rewards are worth beyond the end of an episode, and what whole episodes returned."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict

from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.core.distributed import Ranks

NUM_EPISODES = 100
"""At least so many are averaged, as in the reward that rsl_rl's runner logs."""


class TruncationBootstrap:
    """Bootstrap values for truncated episodes, with one warning if they are approximations."""

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
        if final_obs is not None and self._is_new(final_obs):
            obs = TensorDict(dict(final_obs), batch_size=values.shape[:1]).to(values.device)
            return torch.where(time_outs, value_without_advancing(critic, obs), 0.0)
        if not self._warned:
            # Noted on the device, as asking it here would wait for it. A step without time-outs is
            # nothing to warn of: Isaac Lab gives no final observations before its first reset.
            before, now = self._without_final_obs, time_outs.any()
            self._without_final_obs = now if before is None else before | now
        return torch.where(time_outs, values.squeeze(-1), 0.0)

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


class EpisodeReturns:
    """Mean undiscounted return of the episodes that ended in the newest rollouts.

    These are the fewest rollouts in which together ``NUM_EPISODES`` episodes ended, on all ranks.
    """

    def __init__(self, num_envs: int, device: torch.device | str) -> None:
        """Start in the middle of nothing: an episode counts from the first step that is seen."""
        self.running = torch.zeros(num_envs, device=device)
        """Returns so far of the episodes that have not ended. Shape: (N,)."""
        self._ended = torch.zeros(2, device=device)
        self._rollouts: list[list[float]] = []

    @property
    def mean(self) -> float | None:
        """The mean, None before an episode ended."""
        if not self._rollouts:
            return None
        total, count = map(sum, zip(*self._rollouts, strict=True))
        return total / count

    def begin_rollout(self) -> None:
        """Forget what ended in a rollout that no update took."""
        self._ended = torch.zeros_like(self._ended)

    def add(self, rewards: torch.Tensor, dones: torch.Tensor) -> None:
        """Take a step.

        An episode with a reward that is NaN or inf does not count.

        Args:
            rewards: Rewards of the environments. Shape: (N,).
            dones: Which episodes ended with this step. Shape: (N,).
        """
        running, dones = self.running + rewards, dones.bool()
        counts = dones & torch.isfinite(running)
        ended = torch.where(counts, running, 0.0).sum(), counts.sum()
        # New tensors: those of a rollout in inference mode cannot be changed outside of it.
        self._ended = self._ended + torch.stack(ended)
        self.running = torch.where(dones, 0.0, running)

    def metrics(self, ranks: Ranks) -> dict[str, torch.Tensor]:
        """Return sum and number of the returns of this rollout, on all ranks. Shape: () each."""
        return_sum, num_returns = ranks.sum_tensor(self._ended)
        return {"return_sum": return_sum, "num_returns": num_returns}

    def conclude(self, return_sum: float, num_returns: float) -> None:
        """Take what ``metrics`` returned, and drop the rollouts that are not needed any more."""
        if num_returns == 0:
            return
        self._rollouts.append([return_sum, num_returns])
        while sum(count for _, count in self._rollouts[1:]) >= NUM_EPISODES:
            del self._rollouts[0]

    def state_dict(self) -> list[list[float]]:
        """Return sums and numbers by rollout."""
        return [[*rollout] for rollout in self._rollouts]

    def load_state_dict(self, rollouts: Sequence[Sequence[float]]) -> None:
        """Go on with what ``state_dict`` returned."""
        self._rollouts = [[*rollout] for rollout in rollouts]

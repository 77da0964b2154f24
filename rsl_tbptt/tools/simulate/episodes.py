"""Statistics of how episodes end and of their reward terms, if an environment provides them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch


class EpisodeFacts:
    """Collects how the first episodes of environments end, and their reward by terms.

    Isaac Lab's and mjlab's managers provide both by name. Other environments mark the episodes that
    ended by time in ``extras["time_outs"]``. Any environment can mark in ``extras["success"]``,
    shape (N,), bool, which of the episodes that end with a step succeeded.
    """

    def __init__(self, env: Any) -> None:
        """Take an environment, in rsl_rl's form."""
        inner = getattr(env, "unwrapped", env)
        self._terminations = getattr(inner, "termination_manager", None)
        self._rewards = getattr(inner, "reward_manager", None)
        is_rate = getattr(self._rewards, "_scale_by_dt", True)  # mjlab's switch
        self._reward_seconds = inner.step_dt if self._rewards is not None and is_rate else 1.0
        self._ends: dict[str, Any] = defaultdict(int)
        self._sums: dict[str, Any] = defaultdict(float)

    def note(self, extras: Mapping[str, Any], running: torch.Tensor, dones: torch.Tensor) -> None:
        """Count one step of all environments.

        Args:
            extras: The environment's extras of the step.
            running: Whether the step belongs to a first episode. Shape: (N,), bool.
            dones: Whether the step ended an episode. Shape: (N,).
        """
        ended = running & (dones != 0)
        for name, happened in self._reasons(extras).items():
            self._ends[name] += (happened.to(ended.device).bool() & ended).sum()
        if self._rewards is not None:
            # Not times running: NaN of a later episode would stay.
            rewards = torch.where(running[:, None], self._rewards._step_reward, 0.0)
            sums = rewards.sum(0) * self._reward_seconds
            for name, value in zip(self._rewards.active_terms, sums, strict=True):
                self._sums[name] += value

    def _reasons(self, extras: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        found = {"success": extras["success"]} if "success" in extras else {}
        if self._terminations is not None:
            names = self._terminations.active_terms
            return found | {f"ended_by/{n}": self._terminations.get_term(n) for n in names}
        if "time_outs" in extras:
            by_time = extras["time_outs"].bool()
            return found | {"ended_by/time_out": by_time, "ended_by/termination": ~by_time}
        return found

    def summary(self, num_episodes: int) -> dict[str, Any]:
        """Return the statistics per episode.

        Args:
            num_episodes: Number N of first episodes.

        Returns:
            JSON values: ``ended_by``, the share of episodes that ended for each reason, by name;
            ``timed_out``, the share that ended by time; ``success_rate``; and ``reward_terms``, the
            mean sum of each term over an episode, by name. Unknown values are left out.
        """
        shares = {name: int(count) / num_episodes for name, count in self._ends.items()}
        found: dict[str, Any] = {}
        if "success" in shares:
            found["success_rate"] = shares.pop("success")
        if shares:
            found["ended_by"] = {n.removeprefix("ended_by/"): s for n, s in shares.items()}
            found["timed_out"] = sum(s for n, s in found["ended_by"].items() if self._is_limit(n))
        if self._sums:
            sums = self._sums.items()
            found["reward_terms"] = {name: float(value) / num_episodes for name, value in sums}
        return found

    def _is_limit(self, reason: str) -> bool:
        """Return whether a reason is a time limit."""
        if self._terminations is None:
            return reason == "time_out"
        return bool(self._terminations.get_term_cfg(reason).time_out)

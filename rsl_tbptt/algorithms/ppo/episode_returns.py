"""What the policy's last episodes returned, known to the host with an update's metrics."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rsl_tbptt.core.distributed import Ranks

NUM_EPISODES = 100
"""At least so many are averaged, as in the reward that rsl_rl's runner logs."""


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

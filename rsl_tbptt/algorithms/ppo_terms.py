"""Optional parts of PPO's loss: a penalty of the KL divergence, and equal weights of episodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from rsl_tbptt.algorithms.replay import Policy
from rsl_tbptt.core.rollout import WEIGHT, Rollout, Samples
from rsl_tbptt.extensions import Extension, Term


class KlPenalty(Extension):
    """The KL penalty of ``policy_loss="kl_penalty"``, whose coefficient follows ``desired_kl``.

    References:
        Schulman et al. (2017), arXiv 1707.06347, section 4.
    """

    name = "kl_penalty"

    def __init__(self, options: Any, algorithm: Any) -> None:
        """Begin with ``kl_penalty_coef``."""
        super().__init__(options, algorithm)
        self.state = {"kl_coef": options.kl_penalty_coef}
        # On the device: a recorded step reads it, and not the number of its recording.
        self._coef = algorithm.storage.rewards.new_zeros((), dtype=torch.float64)

    def labels(self) -> dict[str, Any]:
        """Set the coefficient of an update; there are no labels."""
        self._coef.fill_(self.state["kl_coef"])
        return {}

    def losses(self, policy: Policy, samples: Samples) -> Iterator[Term]:
        """Yield the penalty."""
        yield "kl", self._coef, policy.kl_from(samples["old"])

    def advance(self, metrics: dict[str, float]) -> None:
        """Log the coefficient and let it follow the KL divergence at the end of the update."""
        metrics["kl_coef"], kl = self.state["kl_coef"], metrics["kl_of_last_epoch"]
        if not self.algorithm.holds_actor:
            up, down = kl > self.options.desired_kl * 1.5, kl < self.options.desired_kl / 1.5
            self.state["kl_coef"] *= 2.0 if up else 0.5 if down else 1.0


class EpisodeWeights(Extension):
    """The weights of ``loss_reduction="episode_mean"``: all episodes of a rollout count equally."""

    name = "episode_weights"

    def labels(self) -> dict[str, torch.Tensor]:
        """Return the weights, whose mean over all processes is 1. Shape: (T, N)."""
        dones, ranks = self.algorithm.dones, self.algorithm.ranks
        episodes = Rollout.from_dones(None, {}, dones).episode_starts.cumsum(0)
        ones = torch.ones(dones.shape, device=dones.device)
        lengths = torch.zeros_like(ones).scatter_add(0, episodes, ones).gather(0, episodes)
        mean = ranks.mean(1.0 / lengths, self.algorithm.batches.num_samples)
        return {WEIGHT: 1.0 / lengths / mean}

"""Learn from what goes well: copy this file next to your task, and name it in the config.

``extensions=[{"class_name": "success_gating:SuccessGating", "other_weight": 0.2}]``
"""

from dataclasses import dataclass
from typing import Annotated, Any

import torch

from rsl_tbptt.extensions import Extension, OptionGroup, between


class SuccessGating(Extension):
    """Gives less weight to the samples of episodes whose rewards are below the usual ones.

    The mean weight of a rollout is 1, so that the size of gradients does not change.
    """

    @dataclass(kw_only=True)
    class Options(OptionGroup):
        """How samples are weighed."""

        other_weight: Annotated[float, between(0, 1)] = 0.2
        """Weight of the other samples, compared with those of successful episodes."""

        memory: Annotated[float, between(0, 1)] = 0.9
        """Share of the usual reward that an update keeps."""

    def __init__(self, options: Options, algorithm: Any) -> None:
        """Begin with a usual reward of 0."""
        super().__init__(options, algorithm)
        self.state = {"usual": algorithm.storage.rewards.new_zeros(())}

    def labels(self) -> dict[str, torch.Tensor]:
        """Return the weights. Shape: (T, N)."""
        rewards = self.algorithm.storage.rewards.squeeze(-1)
        dones = self.algorithm.dones
        episodes = torch.cat((torch.zeros_like(dones[:1]), dones[:-1])).cumsum(0)
        zeros = torch.zeros_like(rewards)
        totals = zeros.scatter_add(0, episodes, rewards)
        lengths = zeros.scatter_add(0, episodes, torch.ones_like(rewards))
        is_success = (totals / lengths).gather(0, episodes) >= self.state["usual"]
        weights = torch.where(is_success, 1.0, self.options.other_weight)
        return {"weight": weights / self._mean(weights).clamp(min=1e-6)}

    def advance(self, metrics: dict[str, float]) -> None:
        """Update the usual reward."""
        mean = self._mean(self.algorithm.storage.rewards)
        self.state["usual"] = torch.lerp(mean, self.state["usual"], self.options.memory)

    def _mean(self, values: torch.Tensor) -> torch.Tensor:
        """Return the mean over all processes. Shape: ()."""
        ranks = self.algorithm.ranks
        return ranks.sum_tensor(values.sum()) / ranks.sum_tensor(torch.ones_like(values).sum())

"""A distribution of discrete actions that follows rsl_rl's interface; rsl_rl itself has none."""

from typing import Any

import torch
from rsl_rl.modules.distribution import Distribution
from torch.distributions import Categorical, kl_divergence

NUM_CHOICES = 3
DISCRETE: dict[str, Any] = {"class_name": "support.discrete:DiscreteDistribution"}


class DiscreteDistribution(Distribution):
    """An index of 0, 1 or 2 per action, as a float; the network's outputs are their logits."""

    @property
    def input_dim(self) -> list[int]:
        """Logits of each action."""
        return [self.output_dim, NUM_CHOICES]

    def update(self, mlp_output: torch.Tensor) -> None:
        """Take the logits, (..., A, 3)."""
        self._choices = Categorical(logits=mlp_output, validate_args=False)

    def sample(self) -> torch.Tensor:
        """Draw indices, (..., A)."""
        return self._choices.sample().float()

    def deterministic_output(self, mlp_output: torch.Tensor) -> torch.Tensor:
        """Return the most probable indices, (..., A)."""
        return mlp_output.argmax(-1).float()

    @property
    def mean(self) -> torch.Tensor:
        """The most probable indices, (..., A)."""
        return self._choices.logits.argmax(-1).float()

    @property
    def std(self) -> torch.Tensor:
        """Zeros, (..., A)."""
        return torch.zeros_like(self.mean)

    @property
    def entropy(self) -> torch.Tensor:
        """Sum of the actions' entropies, (...)."""
        return self._choices.entropy().sum(-1)

    @property
    def params(self) -> tuple[torch.Tensor, ...]:
        """The logits, (..., A, 3)."""
        return (self._choices.logits,)

    def log_prob(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return log-probabilities of indices, (..., A) to (...)."""
        return self._choices.log_prob(outputs.long()).sum(-1)

    def kl_divergence(
        self, old_params: tuple[torch.Tensor, ...], new_params: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        """Return KL(old || new), (...)."""
        old, new = (
            Categorical(logits=logits, validate_args=False)
            for (logits,) in (old_params, new_params)
        )
        return kl_divergence(old, new).sum(-1)

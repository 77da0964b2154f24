"""The rollout storage of rsl_rl 3 under the names of rsl_rl 5."""

from __future__ import annotations

from collections.abc import Callable

import torch
from rsl_rl.storage import RolloutStorage


class ModelStorage(RolloutStorage):
    """rsl_rl 3's storage with what rsl_rl 5 renamed."""

    # What rsl_rl 5 has no more, by whose types this is checked.
    add_transitions: Callable[[RolloutStorage.Transition], None]
    mu: torch.Tensor
    sigma: torch.Tensor

    def add_transition(self, transition: RolloutStorage.Transition) -> None:
        """Store one step of all environments."""
        self.add_transitions(transition)

    @property
    def distribution_params(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and standard deviation of the actions, (T, N, A) each."""
        return self.mu, self.sigma

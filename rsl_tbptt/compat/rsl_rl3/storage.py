"""The rollout storage of rsl_rl 3 under the names of rsl_rl 5."""

from __future__ import annotations

import torch
from rsl_rl.storage import RolloutStorage


class ModelStorage(RolloutStorage):
    """rsl_rl 3's storage with what rsl_rl 5 renamed."""

    def add_transition(self, transition: RolloutStorage.Transition) -> None:
        """Store one step of all environments."""
        self.add_transitions(transition)  # type: ignore[attr-defined]

    @property
    def distribution_params(  # pyright: ignore[reportIncompatibleVariableOverride]
        self,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and standard deviation of the actions, (T, N, A) each."""
        return self.mu, self.sigma  # type: ignore[attr-defined]

"""Advantages and returns of a stored rollout."""

from __future__ import annotations

import torch
from rsl_rl.storage import RolloutStorage

from rsl_tbptt.algorithms.ppo.options import PpoOptions
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.returns import generalized_advantages


def store_advantages(
    storage: RolloutStorage, last_values: torch.Tensor, options: PpoOptions
) -> None:
    """Compute advantages and returns into a full storage.

    Args:
        storage: The storage.
        last_values: Values after the last step. Shape: (N,).
        options: Discount and lambda.
    """
    advantages = generalized_advantages(
        storage.rewards.squeeze(-1),
        storage.values.squeeze(-1),
        last_values,
        storage.dones.squeeze(-1).bool(),
        options.gamma,
        options.lam,
    ).unsqueeze(-1)
    # In place: the runner calls this in inference mode, whose new tensors autograd refuses.
    storage.returns.copy_(advantages + storage.values)
    storage.advantages.copy_(advantages)


def normalize_advantages(storage: RolloutStorage, count: int, ranks: Ranks) -> None:
    """Normalise the stored advantages over the rollouts of all processes.

    Args:
        storage: The storage.
        count: Number of samples in all processes.
        ranks: The processes that train together.
    """
    mean, scale = mean_and_scale(storage.advantages, count, ranks)
    storage.advantages.copy_((storage.advantages - mean) / scale)


def mean_and_scale(
    advantages: torch.Tensor, count: int, ranks: Ranks
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what advantages are shifted and divided by when they are normalised, as in rsl_rl.

    Args:
        advantages: Those of this process, of any shape.
        count: Their number in all processes.
        ranks: The processes that train together.
    """
    mean, std = ranks.mean_and_std(advantages, count)
    return mean, std + 1e-8

"""Losses as (sum, count): pure functions whose sums add up over windows, chunks and processes.

A sample is one robot-step. The divisor is chosen by the caller, once for the whole optimiser step.
Shapes: ``(..., A)`` with any leading shape and A actions.
"""

import math
from collections.abc import Callable

import torch
from torch.nn import functional

LossSum = tuple[torch.Tensor, int]
"""Sum of the per-sample losses (scalar, differentiable), and the number of samples."""


def mse(actions: torch.Tensor, labels: torch.Tensor) -> LossSum:
    """Squared error, averaged over actions. Arguments and labels: (..., A)."""
    return _sum_of_action_means(functional.mse_loss(actions, labels, reduction="none"))


def huber(actions: torch.Tensor, labels: torch.Tensor) -> LossSum:
    """Huber loss (1964) with threshold 1, averaged over actions. Arguments and labels: (..., A)."""
    return _sum_of_action_means(functional.huber_loss(actions, labels, reduction="none"))


def gaussian_kl(
    mean: torch.Tensor, std: torch.Tensor, label_mean: torch.Tensor, label_std: torch.Tensor
) -> LossSum:
    """KL(label || prediction) of diagonal Gaussians, summed over actions. Arguments: (..., A)."""
    ratio = (label_std / std).square()
    distance = ((mean - label_mean) / std).square()
    per_action = 0.5 * (ratio + distance - 1.0 - ratio.log())
    return per_action.sum(), per_action[..., 0].numel()


def gaussian_nll(mean: torch.Tensor, std: torch.Tensor, labels: torch.Tensor) -> LossSum:
    """Negative log-likelihood of a diagonal Gaussian, summed over actions. Arguments: (..., A)."""
    per_action = 0.5 * ((labels - mean) / std).square() + std.log() + 0.5 * math.log(2 * math.pi)
    return per_action.sum(), per_action[..., 0].numel()


def from_function(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Callable[[torch.Tensor, torch.Tensor], LossSum]:
    """Turn a user's element-wise loss into one that returns (sum, count).

    Args:
        function: Maps actions and labels, both (..., A), to losses (..., A), which are averaged
            over actions.

    Returns:
        A loss like ``mse``. It raises ValueError if ``function`` returns another shape: an already
        reduced loss cannot be weighted exactly.
    """

    def loss(actions: torch.Tensor, labels: torch.Tensor) -> LossSum:
        per_action = function(actions, labels)
        if per_action.shape != actions.shape:
            raise ValueError(
                f"The loss function returned shape {tuple(per_action.shape)}, expected"
                f" {tuple(actions.shape)}: return one loss per action, do not reduce."
            )
        return _sum_of_action_means(per_action)

    return loss


def _sum_of_action_means(per_action: torch.Tensor) -> LossSum:
    return per_action.sum() / per_action.shape[-1], per_action[..., 0].numel()

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


def clipped_surrogate(
    log_prob: torch.Tensor,
    old_log_prob: torch.Tensor,
    advantages: torch.Tensor,
    clip_low: float,
    clip_high: float,
) -> LossSum:
    """PPO's clipped surrogate loss, Schulman et al. (2017), equation 7. Arguments: (...).

    Args:
        log_prob: Log-probability of the action under the current policy.
        old_log_prob: The same under the policy that acted.
        advantages: Advantages.
        clip_low: How far the probability ratio may fall below 1.
        clip_high: How far it may rise above 1; larger than ``clip_low`` for an asymmetric clip.

    Returns:
        Sum of the losses, and the number of samples.
    """
    ratio = (log_prob - old_log_prob).exp()
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    return torch.max(-advantages * ratio, -advantages * clipped).sum(), advantages.numel()


def value_error(
    values: torch.Tensor,
    returns: torch.Tensor,
    old_values: torch.Tensor,
    clip: float | None,
) -> LossSum:
    """Squared error of the value, at least that of the value clipped around the old one.

    Args:
        values: Predicted values. Shape: (...).
        returns: Targets, that shape.
        old_values: Values predicted in the rollout, that shape.
        clip: How far a value may move from the old one before it stops improving; None is off.

    Returns:
        Sum of the losses, and the number of samples.
    """
    error = (values - returns).square()
    if clip is not None:
        clipped = old_values + (values - old_values).clamp(-clip, clip)
        error = torch.max(error, (clipped - returns).square())
    return error.sum(), error.numel()


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

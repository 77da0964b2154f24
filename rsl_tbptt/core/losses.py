"""Losses: pure functions that return one loss per sample, which is one robot-step.

Their weighted sums add up over windows, micro-batches and processes. The caller chooses the
divisor, once for the whole optimiser step. Shapes: ``(..., A)``, any leading shape and A actions.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn import functional


class PolicyTerms(NamedTuple):
    """What PPO computes of a policy's samples. Shape: (K, n) each."""

    loss: torch.Tensor
    """The clipped surrogate loss."""

    entropy: torch.Tensor
    """Entropy of the policy."""

    kl: torch.Tensor
    """KL divergence from the policy that acted. No gradient."""

    is_clipped: torch.Tensor
    """1 where the probability ratio is outside the clip range, else 0."""

    log_prob: torch.Tensor
    """Log-probability of the actions. It has a gradient in the plain form only."""


def mse(actions: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the squared error, averaged over actions. Arguments: (..., A), result: (...)."""
    return functional.mse_loss(actions, labels, reduction="none").mean(-1)


def huber(actions: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return Huber's loss (1964) with threshold 1, averaged over actions: (..., A) to (...)."""
    return functional.huber_loss(actions, labels, reduction="none").mean(-1)


def bce(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of ``sigmoid(logits)``, averaged over actions: (..., A) to (...)."""
    return functional.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(-1)


def bce_of_signs(actions: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the binary cross-entropy of commands, averaged over actions: (..., A) to (...).

    An action is the logit that the command is positive; the label's sign says whether it is.
    """
    positive = (labels > 0).to(actions.dtype)
    return bce(actions, torch.where(labels.isnan(), labels, positive))  # NaN is no command


def gaussian_kl(
    mean: torch.Tensor, std: torch.Tensor, label_mean: torch.Tensor, label_std: torch.Tensor
) -> torch.Tensor:
    """Return KL(label || prediction) of diagonal Gaussians, summed over A: (..., A) to (...)."""
    ratio = (label_std / std).square()
    distance = ((mean - label_mean) / std).square()
    per_action = 0.5 * (ratio + distance - 1.0 - ratio.log())
    return per_action.sum(-1)


def gaussian_nll(mean: torch.Tensor, std: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the negative log-likelihood of a diagonal Gaussian: (..., A) to (...)."""
    per_action = 0.5 * ((labels - mean) / std).square() + std.log() + 0.5 * math.log(2 * math.pi)
    return per_action.sum(-1)


def nll(log_prob: Callable[[torch.Tensor], torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    """Return the negative log-likelihood of labels under any distribution: (..., A) to (...).

    Args:
        log_prob: Maps labels, (..., A), to their log-probabilities, (...). It never sees NaN, which
            a discrete distribution would take for the index of an action.
        labels: The labels. Where one is NaN the loss is NaN.
    """
    missing = labels.isnan()
    return -log_prob(labels.masked_fill(missing, 0.0)).masked_fill(missing.any(-1), math.nan)


def clipped_surrogate(
    log_prob: torch.Tensor, old_log_prob: torch.Tensor, advantages: torch.Tensor, clip: float
) -> torch.Tensor:
    """PPO's clipped surrogate loss, Schulman et al. (2017), equation 7. Arguments: (...).

    Args:
        log_prob: Log-probability of the action under the current policy.
        old_log_prob: The same under the policy that acted.
        advantages: Advantages.
        clip: Clip range of the probability ratio around 1.

    Returns:
        Per-sample losses. Shape: (...).
    """
    ratio, cost = (log_prob - old_log_prob).exp(), -advantages
    loss, bound = cost * ratio, cost * ratio.detach().clamp(1.0 - clip, 1.0 + clip)
    # The bound is larger only outside of the clip range, where it has no gradient.
    return torch.where(loss >= bound, loss, bound)


@torch.no_grad()
def is_clipped(log_prob: torch.Tensor, old_log_prob: torch.Tensor, clip: float) -> torch.Tensor:
    """Return 1 where the probability ratio is outside the clip range, else 0; shape (...)."""
    ratio = (log_prob - old_log_prob).exp()
    return (ratio != ratio.clamp(1.0 - clip, 1.0 + clip)).to(ratio.dtype)


def value_error(
    values: torch.Tensor, returns: torch.Tensor, old_values: torch.Tensor, clip: float | None
) -> torch.Tensor:
    """Return the value's squared error, at least that of the value clipped around the old one.

    Args:
        values: Predicted values. Shape: (...).
        returns: Targets, of the same shape.
        old_values: Values predicted in the rollout, of the same shape.
        clip: Distance from the old value at which the loss stops falling; None disables it.

    Returns:
        Per-sample losses. Shape: (...).
    """
    error = values - returns
    if clip is not None:
        clipped = old_values + (values - old_values).clamp(-clip, clip) - returns
        error = torch.where(error.detach().abs() >= clipped.detach().abs(), error, clipped)
    return error.square()


def from_function(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Turn a user's element-wise loss into one per sample.

    Args:
        function: Maps actions and labels, both (..., A), to losses (..., A), which are averaged
            over actions.

    Returns:
        A loss like ``mse``. It raises ValueError if ``function`` returns another shape: an already
        reduced loss cannot be weighted exactly.
    """

    def loss(actions: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        per_action = function(actions, labels)
        if per_action.shape != actions.shape:
            raise ValueError(
                f"The loss function returned shape {tuple(per_action.shape)}, expected"
                f" {tuple(actions.shape)}: return one loss per action, do not reduce."
            )
        return per_action.mean(-1)

    return loss

"""The behaviour losses of distillation by name.

Add or change a loss in ``BEHAVIOR_LOSSES``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from rsl_tbptt.algorithms.replay import Policy
from rsl_tbptt.compat.versions import GaussianDistribution, MLPModel, import_function
from rsl_tbptt.core import losses
from rsl_tbptt.core.rollout import ACTIONS, STD, Samples
from rsl_tbptt.models.controller import unwritten


@dataclass(frozen=True, kw_only=True)
class BehaviorLoss:
    """A loss between student and teacher."""

    per_sample: Callable[[Policy, Samples], torch.Tensor]
    """Maps what the student computes, and the labels, to one loss per sample, shape (K, n)."""

    of_distribution: bool = False
    """Whether it needs the student's distribution; a student that runs step by step gives that or
    its actions."""

    of_actions: bool = True
    """Whether the student's means are actions such as the teacher's; logits are not."""

    of_gaussian: bool = False
    """Whether the student's distribution has to be a Gaussian."""

    to_gaussian: bool = False
    """Whether it needs the standard deviations of the teacher's actions."""


def _of_actions(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> BehaviorLoss:
    """Make a loss from a function of the student's and the teacher's actions, (K, n, A) each."""
    return BehaviorLoss(per_sample=lambda policy, samples: function(policy.mean, samples[ACTIONS]))


BEHAVIOR_LOSSES = {
    "mse": _of_actions(losses.mse),
    "huber": _of_actions(losses.huber),
    "bce": replace(_of_actions(losses.bce_of_signs), of_actions=False),
    "kl": BehaviorLoss(
        per_sample=lambda policy, samples: losses.gaussian_kl(
            policy.mean, policy.std, label_mean=samples[ACTIONS], label_std=samples[STD]
        ),
        of_distribution=True,
        of_gaussian=True,
        to_gaussian=True,
    ),
    "nll": BehaviorLoss(
        per_sample=lambda policy, samples: losses.gaussian_nll(
            policy.mean, policy.std, labels=samples[ACTIONS]
        ),
        of_distribution=True,
        of_gaussian=True,
    ),
}

_NLL_OF_ANY = BehaviorLoss(
    per_sample=lambda policy, samples: losses.nll(policy.log_prob_of, samples[ACTIONS]),
    of_distribution=True,
    of_actions=False,
)
"""The negative log-likelihood of the teacher's actions under any distribution."""


def resolve_behavior_loss(
    loss_type: str | Callable[..., Any], student: MLPModel, teacher: MLPModel, num_actions: int
) -> BehaviorLoss:
    """Return the loss for ``loss_type``.

    Args:
        loss_type: A name in ``BEHAVIOR_LOSSES``, an element-wise loss of actions and labels, both
            (..., A), or its qualified name.
        student: The student.
        teacher: The teacher.
        num_actions: Number of actions A.

    Returns:
        The loss.

    Raises:
        ValueError: If the name is unknown or cannot be imported, the function fails on a few
            actions and labels.
        NotImplementedError: If the loss needs a Gaussian that a model does not have.
    """
    is_gaussian = _is_gaussian(student.distribution)
    if loss_type == "nll" and not is_gaussian:
        return _NLL_OF_ANY
    if isinstance(loss_type, str) and loss_type in BEHAVIOR_LOSSES:
        loss = BEHAVIOR_LOSSES[loss_type]
    else:
        parameter = next(student.parameters())
        function = own_loss("loss_type", loss_type, BEHAVIOR_LOSSES, num_actions, parameter)
        loss = _of_actions(function)
    fits = "mse" if is_gaussian else "nll"
    needed = {"student": (student, loss.of_gaussian), "teacher": (teacher, loss.to_gaussian)}
    for role, (model, needs_gaussian) in needed.items():
        if needs_gaussian and not isinstance(model.distribution, GaussianDistribution):
            raise NotImplementedError(
                f"loss_type is '{loss_type}', which needs a Gaussian, but the {role} has"
                f" distribution {model.distribution}: set '{role}.distribution_cfg' to a"
                f" GaussianDistribution or use '{fits}'."
            )
    return loss


def _is_gaussian(distribution: Any) -> bool:
    """Return whether a model is without a distribution, or it is one of rsl_rl's Gaussians."""
    log_prob = getattr(type(distribution), "log_prob", None)  # rsl_rl 3 has none
    return distribution is None or (
        isinstance(distribution, GaussianDistribution)
        and log_prob is getattr(GaussianDistribution, "log_prob", None)
    )


def own_loss(
    option: str, loss: Any, others: Iterable[str], num_columns: int, parameter: torch.Tensor
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return your own loss per sample, after one call that checks shapes.

    Args:
        option: Name of the loss in messages.
        loss: An element-wise function of predictions and labels, or its qualified name.
        others: Other values of the option, for messages.
        num_columns: Columns of predictions and labels, such as A.
        parameter: A tensor with their device and dtype.

    Returns:
        A function that maps both, (..., A), to losses, (...).

    Raises:
        ValueError: If the loss cannot be imported or called, returns another shape, or writes into
            its arguments.
    """
    function = losses.from_function(import_function(option, loss, others))
    labels = torch.linspace(-1.0, 1.0, 6 * num_columns).to(parameter).view(2, 3, num_columns)
    try:
        with unwritten("It", {"labels": labels, "predictions": (predictions := 0.5 * labels)}):
            function(predictions, labels)
    except Exception as error:  # a user's function can raise anything
        raise ValueError(
            f"{option} is {loss!r}, which fails on predictions and labels of shape"
            f" {tuple(labels.shape)} ({error}): expected a differentiable function of the two that"
            " returns one loss per column."
        ) from error
    return function

"""The behaviour losses of distillation by name: add or change one here."""

from collections.abc import Callable
from typing import Any

import torch

from rsl_tbptt.compat.versions import GaussianDistribution, MLPModel, resolve_callable
from rsl_tbptt.core import losses

BEHAVIOR_LOSSES: dict[str, Callable[..., losses.LossSum]] = {
    "mse": losses.mse,
    "huber": losses.huber,
    "kl": losses.gaussian_kl,
    "nll": losses.gaussian_nll,
}
"""Arguments: the student's action mean (and standard deviation for "kl" and "nll"), then the
teacher's action mean (and standard deviation for "kl")."""

GAUSSIAN_ROLES = {"kl": ("student", "teacher"), "nll": ("student",)}
"""Whose Gaussian a loss needs."""


def resolve_behavior_loss(
    loss_type: str | Callable[..., Any], student: MLPModel, teacher: MLPModel, num_actions: int
) -> Callable[..., losses.LossSum]:
    """Return the loss for ``loss_type``.

    Args:
        loss_type: A name in ``BEHAVIOR_LOSSES``, or an element-wise loss of actions and labels,
            both (..., A), or its qualified name.
        student: The student.
        teacher: The teacher.
        num_actions: A.

    Returns:
        A function to (sum, count).

    Raises:
        ValueError: If the name is unknown or cannot be imported, or the function fails on a few
            actions and labels.
        NotImplementedError: If the loss needs a Gaussian that a model does not have.
    """
    if isinstance(loss_type, str) and loss_type in BEHAVIOR_LOSSES:
        models = {"student": student, "teacher": teacher}
        for role in GAUSSIAN_ROLES.get(loss_type, ()):
            _check_gaussian(loss_type, role, models[role])
        return BEHAVIOR_LOSSES[loss_type]
    if isinstance(loss_type, str) and not {":", "."} & set(loss_type):
        raise ValueError(
            f"loss_type is '{loss_type}', expected one of {list(BEHAVIOR_LOSSES)} or a qualified"
            " name such as 'my_package.losses:my_loss'."
        )
    try:
        loss = losses.from_function(resolve_callable(loss_type))
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"loss_type is '{loss_type}', which cannot be imported ({error}): expected the"
            " qualified name of a function, such as 'my_package.losses:my_loss'."
        ) from error
    _try_out(loss_type, loss, num_actions, next(student.parameters()))
    return loss


def _try_out(
    loss_type: str | Callable[..., Any],
    loss: Callable[..., losses.LossSum],
    num_actions: int,
    parameter: torch.Tensor,
) -> None:
    """Take the gradient of a user's loss once: the first window comes after a whole rollout.

    Args:
        loss_type: Names the loss in the message.
        loss: The loss.
        num_actions: A.
        parameter: Has the device and dtype of actions.

    Raises:
        ValueError: If the loss cannot be called, returns another shape or has no gradient.
    """
    shape = (2, 3, num_actions)
    labels = torch.linspace(-1.0, 1.0, 6 * num_actions).to(parameter).view(shape)
    actions = (0.5 * labels).requires_grad_()
    try:
        torch.autograd.grad(loss(actions, labels)[0], actions)
    except Exception as error:  # a user's function can raise anything
        raise ValueError(
            f"loss_type is {loss_type!r}, which fails on actions and labels of shape {shape}"
            f" ({error}): expected a differentiable function of the two that returns one loss per"
            " action."
        ) from error


def _check_gaussian(loss_type: str, role: str, model: MLPModel) -> None:
    if not isinstance(model.distribution, GaussianDistribution):
        raise NotImplementedError(
            f"loss_type is '{loss_type}', which needs a Gaussian, but the {role} has distribution"
            f" {model.distribution}: set '{role}.distribution_cfg' to a GaussianDistribution or use"
            " loss_type 'mse'."
        )

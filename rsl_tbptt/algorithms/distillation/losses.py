"""The behaviour losses of distillation by name: add or change one here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from rsl_tbptt.algorithms.distillation.rollout_memory import NEWEST
from rsl_tbptt.algorithms.update.replay import Head, action_head, gaussian_head
from rsl_tbptt.compat.versions import GaussianDistribution, MLPModel, resolve_callable
from rsl_tbptt.core import losses
from rsl_tbptt.core.accumulate import Outputs, SampleLosses
from rsl_tbptt.core.rollout import Labels

ACTIONS, STD = "actions", "std"
"""Labels: the teacher's action means, and their standard deviations where a loss needs them.
Shape: (T, N, A) each."""


@dataclass(frozen=True, kw_only=True)
class BehaviorLoss:
    """A loss between student and teacher."""

    per_sample: Callable[[Outputs, Labels], torch.Tensor]
    """Maps the student's action means (and standard deviations), shape (K, n, A), and the labels to
    one loss per sample, shape (K, n)."""

    of_gaussian: bool = False
    """Whether it needs the standard deviations of the student's actions."""

    to_gaussian: bool = False
    """Whether it needs those of the teacher's."""

    @property
    def head(self) -> Head:
        """What of the student it sees."""
        return gaussian_head if self.of_gaussian else action_head

    def __call__(self, outputs: Outputs, labels: Labels) -> SampleLosses:
        """Return the losses of K steps of n environments.

        Reported are those of the newest rollout as ``behavior``, of the past as ``memory``.
        """
        per_sample = self.per_sample(outputs, labels)
        if NEWEST not in labels:
            return SampleLosses(per_sample, {"behavior": per_sample})
        newest = torch.where(labels[NEWEST], per_sample, 0.0)
        return SampleLosses(per_sample, {"behavior": newest, "memory": per_sample - newest})


def _of_actions(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> BehaviorLoss:
    """Make a loss of a function of the student's and the teacher's actions, (K, n, A) each."""
    return BehaviorLoss(per_sample=lambda outputs, labels: function(outputs[0], labels[ACTIONS]))


BEHAVIOR_LOSSES = {
    "mse": _of_actions(losses.mse),
    "huber": _of_actions(losses.huber),
    "kl": BehaviorLoss(
        per_sample=lambda outputs, labels: losses.gaussian_kl(
            *outputs, label_mean=labels[ACTIONS], label_std=labels[STD]
        ),
        of_gaussian=True,
        to_gaussian=True,
    ),
    "nll": BehaviorLoss(
        per_sample=lambda outputs, labels: losses.gaussian_nll(*outputs, labels=labels[ACTIONS]),
        of_gaussian=True,
    ),
}


def resolve_behavior_loss(
    loss_type: str | Callable[..., Any], student: MLPModel, teacher: MLPModel, num_actions: int
) -> BehaviorLoss:
    """Return the loss for ``loss_type``.

    Args:
        loss_type: A name in ``BEHAVIOR_LOSSES``, or an element-wise loss of actions and labels,
            both (..., A), or its qualified name.
        student: The student.
        teacher: The teacher.
        num_actions: A.

    Returns:
        The loss.

    Raises:
        ValueError: If the name is unknown or cannot be imported, or the function fails on a few
            actions and labels.
        NotImplementedError: If the loss needs a Gaussian that a model does not have.
    """
    if isinstance(loss_type, str) and loss_type in BEHAVIOR_LOSSES:
        loss = BEHAVIOR_LOSSES[loss_type]
        for role, model, needed in (
            ("student", student, loss.of_gaussian),
            ("teacher", teacher, loss.to_gaussian),
        ):
            if needed:
                _check_gaussian(loss_type, role, model)
        return loss
    if isinstance(loss_type, str) and not {":", "."} & set(loss_type):
        raise ValueError(
            f"loss_type is '{loss_type}', expected one of {list(BEHAVIOR_LOSSES)} or a qualified"
            " name such as 'my_package.losses:my_loss'."
        )
    try:
        function = losses.from_function(resolve_callable(loss_type))
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"loss_type is '{loss_type}', which cannot be imported ({error}): expected the"
            " qualified name of a function, such as 'my_package.losses:my_loss'."
        ) from error
    _try_out(loss_type, function, num_actions, next(student.parameters()))
    return _of_actions(function)


def _try_out(
    loss_type: str | Callable[..., Any],
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    num_actions: int,
    parameter: torch.Tensor,
) -> None:
    """Take the gradient of a user's loss once: the first window comes after a whole rollout.

    Args:
        loss_type: Names the loss in the message.
        function: The loss per sample.
        num_actions: A.
        parameter: Has the device and dtype of actions.

    Raises:
        ValueError: If the loss cannot be called, returns another shape or has no gradient.
    """
    shape = (2, 3, num_actions)
    labels = torch.linspace(-1.0, 1.0, 6 * num_actions).to(parameter).view(shape)
    actions = (0.5 * labels).requires_grad_()
    try:
        torch.autograd.grad(function(actions, labels).sum(), actions)
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

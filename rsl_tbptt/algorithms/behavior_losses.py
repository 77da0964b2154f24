"""The behaviour losses of distillation by name.

Add or change a loss in ``BEHAVIOR_LOSSES``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from rsl_tbptt.compat.versions import GaussianDistribution, MLPModel, import_function
from rsl_tbptt.core import losses
from rsl_tbptt.core.accumulate import Outputs, SampleLosses
from rsl_tbptt.core.rollout import Labels
from rsl_tbptt.models.protocol import Head, action_head, distribution_head, gaussian_head
from rsl_tbptt.user_functions import unwritten

ACTIONS, STD = "actions", "std"
"""Labels: the teacher's action means, and their standard deviations if a loss needs them.
Shape: (T, N, A) each."""

NEWEST = "newest"
"""Label: whether a sample belongs to the newest rollout. Shape: (T, C + N), bool."""

BEHAVIOR, BUFFER = "behavior", "buffer"
"""Names of the reported losses: on the newest rollout and on past ones."""


@dataclass(frozen=True, kw_only=True)
class BehaviorLoss:
    """A loss between student and teacher."""

    per_sample: Callable[[Outputs, Labels], torch.Tensor]
    """Maps the outputs of the student's head, shape (K, n, ...) each, and the labels to one loss
    per sample, shape (K, n)."""

    head: Head = action_head
    """Head that returns the student's outputs for this loss."""

    of_actions: bool = True
    """Whether the student's outputs are actions such as the teacher's; logits are not."""

    to_gaussian: bool = False
    """Whether it needs the standard deviations of the teacher's actions."""

    @property
    def of_gaussian(self) -> bool:
        """Whether it needs the standard deviations of the student's actions."""
        return self.head is gaussian_head

    def __call__(self, outputs: Outputs, labels: Labels) -> SampleLosses:
        """Return the losses of K steps of n environments.

        It reports the loss on the newest rollout as ``behavior`` and on past ones as ``buffer``.
        """
        per_sample = self.per_sample(outputs, labels)
        if NEWEST not in labels:
            return SampleLosses(per_sample, {BEHAVIOR: per_sample})
        newest = torch.where(labels[NEWEST], per_sample, 0.0)
        return SampleLosses(per_sample, {BEHAVIOR: newest, BUFFER: per_sample - newest})


def _of_actions(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> BehaviorLoss:
    """Make a loss from a function of the student's and the teacher's actions, (K, n, A) each."""
    return BehaviorLoss(per_sample=lambda outputs, labels: function(outputs[0], labels[ACTIONS]))


BEHAVIOR_LOSSES = {
    "mse": _of_actions(losses.mse),
    "huber": _of_actions(losses.huber),
    "bce": replace(_of_actions(losses.bce_of_signs), of_actions=False),
    "kl": BehaviorLoss(
        per_sample=lambda outputs, labels: losses.gaussian_kl(
            *outputs, label_mean=labels[ACTIONS], label_std=labels[STD]
        ),
        head=gaussian_head,
        to_gaussian=True,
    ),
    "nll": BehaviorLoss(
        per_sample=lambda outputs, labels: losses.gaussian_nll(*outputs, labels=labels[ACTIONS]),
        head=gaussian_head,
    ),
}


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
        return _nll_of(student)
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
    own = getattr(type(distribution), "log_prob", None)  # rsl_rl 3 has none
    return distribution is None or (
        isinstance(distribution, GaussianDistribution)
        and own is getattr(GaussianDistribution, "log_prob", None)
    )


def _nll_of(student: MLPModel) -> BehaviorLoss:
    """Return the negative log-likelihood of the teacher's actions under any distribution."""
    distribution: Any = student.distribution

    def per_sample(outputs: Outputs, labels: Labels) -> torch.Tensor:
        distribution.update(*outputs)
        return losses.nll(student.get_output_log_prob, labels[ACTIONS])

    return BehaviorLoss(per_sample=per_sample, head=distribution_head, of_actions=False)


def own_loss(
    option: str, loss: Any, known: Iterable[str], num_columns: int, parameter: torch.Tensor
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return your own loss per sample, after one call that checks shapes.

    Args:
        option: Name of the loss in messages.
        loss: An element-wise function of predictions and labels, or its qualified name.
        known: Other values of the option, for messages.
        num_columns: Columns of predictions and labels, such as A.
        parameter: A tensor with their device and dtype.

    Returns:
        A function that maps both, (..., A), to losses, (...).

    Raises:
        ValueError: If the loss cannot be imported or called, returns another shape, or writes into
            its arguments.
    """
    function = losses.from_function(import_function(option, loss, known))
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

"""The behaviour losses of distillation by name: add or change one here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from rsl_tbptt.algorithms.distillation.action_slices import ActionSlice, parse_slices
from rsl_tbptt.algorithms.distillation.rollout_memory import NEWEST
from rsl_tbptt.algorithms.replay import Head, action_head, gaussian_head
from rsl_tbptt.compat.versions import GaussianDistribution, MLPModel, resolve_callable
from rsl_tbptt.core import losses
from rsl_tbptt.core.accumulate import Outputs, SampleLosses
from rsl_tbptt.core.rollout import Labels

ACTIONS, STD = "actions", "std"
"""Labels: the teacher's action means, and their standard deviations where a loss needs them.
Shape: (T, N, A) each."""

BEHAVIOR, MEMORY = "behavior", "memory"
"""What is reported: the loss on the newest rollout, and on those of the past."""


@dataclass(frozen=True, kw_only=True)
class BehaviorLoss:
    """A loss between student and teacher."""

    per_sample: Callable[[Outputs, Labels], torch.Tensor]
    """Maps the student's action means (and standard deviations), shape (K, n, A), and the labels to
    one loss per sample, shape (K, n)."""

    of_gaussian: bool = False
    """Whether it needs the standard deviations of the student's actions."""

    of_actions: bool = True
    """Whether the student's outputs are actions such as the teacher's; logits are not."""

    to_gaussian: bool = False
    """Whether it needs those of the teacher's."""

    parts: Callable[[Outputs, Labels], Mapping[str, torch.Tensor]] | None = None
    """Where it is a sum of others: they, by the names they are reported under, likewise."""

    coefs: Mapping[str, float] = field(default_factory=dict)
    """What each part counts in the sum."""

    @property
    def head(self) -> Head:
        """What of the student it sees."""
        return gaussian_head if self.of_gaussian else action_head

    @property
    def reported_names(self) -> tuple[str, ...]:
        """What is reported; all but ``MEMORY`` is of the newest rollout."""
        return BEHAVIOR, MEMORY, *self.coefs

    def __call__(self, outputs: Outputs, labels: Labels) -> SampleLosses:
        """Return the losses of K steps of n environments.

        Reported are those of the newest rollout as ``behavior``, of the past as ``memory``, and
        parts of the former by their names. The sums of all are weighted as the loss is.
        """
        parts = {} if self.parts is None else self.parts(outputs, labels)
        per_sample = _total(parts, self.coefs) if parts else self.per_sample(outputs, labels)
        reported = {BEHAVIOR: per_sample, **parts}
        if NEWEST in labels:
            is_newest = labels[NEWEST]
            reported = {name: torch.where(is_newest, v, 0.0) for name, v in reported.items()}
            reported[MEMORY] = per_sample - reported[BEHAVIOR]
        return SampleLosses(per_sample, reported, weighs_reported=True)


def _of_slices(slices: Sequence[ActionSlice], losses: Sequence[BehaviorLoss]) -> BehaviorLoss:
    """Make a loss of those of slices of the action: their sum, times their coefficients."""
    coefs = {f"{BEHAVIOR}/{each.name}": each.coef for each in slices}

    def parts(outputs: Outputs, labels: Labels) -> Mapping[str, torch.Tensor]:
        found = {}
        for name, each, loss in zip(coefs, slices, losses, strict=True):
            columns = slice(each.first, each.stop)
            own = {key: labels[key][..., columns] for key in (ACTIONS, STD) if key in labels}
            found[name] = loss.per_sample(tuple(out[..., columns] for out in outputs), own)
        return found

    return BehaviorLoss(
        per_sample=lambda outputs, labels: _total(parts(outputs, labels), coefs),
        of_gaussian=any(loss.of_gaussian for loss in losses),
        of_actions=all(loss.of_actions for loss in losses),
        to_gaussian=any(loss.to_gaussian for loss in losses),
        parts=parts,
        coefs=coefs,
    )


def _total(parts: Mapping[str, torch.Tensor], coefs: Mapping[str, float]) -> torch.Tensor:
    """Return the sum of parts times their coefficients."""
    first, *others = (coefs[name] * part for name, part in parts.items())
    return sum(others, start=first)


def _of_actions(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> BehaviorLoss:
    """Make a loss of a function of the student's and the teacher's actions, (K, n, A) each."""
    return BehaviorLoss(per_sample=lambda outputs, labels: function(outputs[0], labels[ACTIONS]))


BEHAVIOR_LOSSES = {
    "mse": _of_actions(losses.mse),
    "huber": _of_actions(losses.huber),
    "bce": replace(_of_actions(losses.bce_of_signs), of_actions=False),
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
    loss_type: str | Callable[..., Any] | Sequence[Any],
    student: MLPModel,
    teacher: MLPModel,
    num_actions: int,
) -> BehaviorLoss:
    """Return the loss for ``loss_type``.

    Args:
        loss_type: A name in ``BEHAVIOR_LOSSES``, or an element-wise loss of actions and labels,
            both (..., A), or its qualified name; or a list of slices with such a loss each.
        student: The student.
        teacher: The teacher.
        num_actions: A.

    Returns:
        The loss.

    Raises:
        ValueError: If the name is unknown or cannot be imported, the function fails on a few
            actions and labels, or the slices are no such list.
        NotImplementedError: If the loss needs a Gaussian that a model does not have.
    """
    if isinstance(loss_type, list | tuple):
        slices = parse_slices(loss_type, num_actions)
        of_slices = [
            _resolve_one(f"loss_type[{i}]['loss']", each.loss, student, teacher, each.width)
            for i, each in enumerate(slices)
        ]
        return _of_slices(slices, of_slices)
    return _resolve_one("loss_type", loss_type, student, teacher, num_actions)


def _resolve_one(
    option: str, loss_type: Any, student: MLPModel, teacher: MLPModel, num_actions: int
) -> BehaviorLoss:
    """Return one loss for all actions; see ``resolve_behavior_loss``.

    Raises:
        ValueError: If it is none; the message names it as ``option``.
    """
    if isinstance(loss_type, str) and loss_type in BEHAVIOR_LOSSES:
        loss = BEHAVIOR_LOSSES[loss_type]
        for role, model, needed in (
            ("student", student, loss.of_gaussian),
            ("teacher", teacher, loss.to_gaussian),
        ):
            if needed:
                _check_gaussian(option, loss_type, role, model)
        return loss
    if not (callable(loss_type) or (isinstance(loss_type, str) and {":", "."} & set(loss_type))):
        raise ValueError(
            f"{option} is {loss_type!r}, expected one of {list(BEHAVIOR_LOSSES)} or a qualified"
            " name such as 'my_package.losses:my_loss'."
        )
    try:
        function = losses.from_function(resolve_callable(loss_type))
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"{option} is '{loss_type}', which cannot be imported ({error}): expected the"
            " qualified name of a function, such as 'my_package.losses:my_loss'."
        ) from error
    _try_out(f"{option} is {loss_type!r}", function, num_actions, next(student.parameters()))
    return _of_actions(function)


def _try_out(
    chosen: str,
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    num_actions: int,
    parameter: torch.Tensor,
) -> None:
    """Take the gradient of a user's loss once: the first window comes after a whole rollout.

    Args:
        chosen: Names the loss in the message.
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
            f"{chosen}, which fails on actions and labels of shape {shape}"
            f" ({error}): expected a differentiable function of the two that returns one loss per"
            " action."
        ) from error


def _check_gaussian(option: str, loss_type: str, role: str, model: MLPModel) -> None:
    if not isinstance(model.distribution, GaussianDistribution):
        raise NotImplementedError(
            f"{option} is '{loss_type}', which needs a Gaussian, but the {role} has distribution"
            f" {model.distribution}: set '{role}.distribution_cfg' to a GaussianDistribution or use"
            " loss_type 'mse'."
        )

"""The behaviour losses of distillation by name, and per slice of the action.

Add or change a loss in ``BEHAVIOR_LOSSES``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Annotated, Any

import torch

from rsl_tbptt.algorithms.option_checks import Rule, are_integers, between, parse_fields
from rsl_tbptt.compat.versions import GaussianDistribution, MLPModel, import_function
from rsl_tbptt.core import losses
from rsl_tbptt.core.accumulate import Outputs, SampleLosses
from rsl_tbptt.core.rollout import Labels
from rsl_tbptt.models.protocol import Head, action_head, distribution_head, gaussian_head
from rsl_tbptt.user_functions import unwritten, values_with_gradient

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

    parts: Callable[[Outputs, Labels], Mapping[str, torch.Tensor]] | None = None
    """If the loss is a sum: its terms, by the names they are reported under, in the same form."""

    coefs: Mapping[str, float] = field(default_factory=dict)
    """Coefficient of each term in the sum."""

    @property
    def of_gaussian(self) -> bool:
        """Whether it needs the standard deviations of the student's actions."""
        return self.head is gaussian_head

    @property
    def reported_names(self) -> tuple[str, ...]:
        """Names of the reported losses; all but ``BUFFER`` are of the newest rollout."""
        return BEHAVIOR, BUFFER, *self.coefs

    def __call__(self, outputs: Outputs, labels: Labels) -> SampleLosses:
        """Return the losses of K steps of n environments.

        It reports the loss on the newest rollout as ``behavior`` and on past ones as ``buffer``,
        and the terms of the former by their names. All sums are weighted like the loss.
        """
        parts = {} if self.parts is None else self.parts(outputs, labels)
        parts = {name: _of_envs(part) for name, part in parts.items()}
        per_sample = _total(parts, self.coefs) if parts else self.per_sample(outputs, labels)
        per_sample = _of_envs(per_sample)
        reported = {BEHAVIOR: per_sample, **parts}
        if NEWEST in labels:
            is_newest = labels[NEWEST]
            reported = {name: torch.where(is_newest, v, 0.0) for name, v in reported.items()}
            reported[BUFFER] = per_sample - reported[BEHAVIOR]
        return SampleLosses(per_sample, reported, weighs_reported=True)


def _of_envs(values: torch.Tensor) -> torch.Tensor:
    """Average losses over a robot and its mirror images, (K, n, I); (K, n) stays as it is."""
    return values.mean(2) if values.dim() > 2 else values


def _of_slices(slices: Sequence[ActionSlice], losses: Sequence[BehaviorLoss]) -> BehaviorLoss:
    """Sum the losses of slices of the action, times their coefficients."""
    coefs = {f"{BEHAVIOR}/{each.reported_as}": each.coef for each in slices}

    def parts(outputs: Outputs, labels: Labels) -> Mapping[str, torch.Tensor]:
        found = {}
        for name, each, loss in zip(coefs, slices, losses, strict=True):
            columns = slice(*each.actions)
            own = {key: labels[key][..., columns] for key in (ACTIONS, STD) if key in labels}
            found[name] = loss.per_sample(tuple(out[..., columns] for out in outputs), own)
        return found

    return BehaviorLoss(
        per_sample=lambda outputs, labels: _total(parts(outputs, labels), coefs),
        head=gaussian_head if any(loss.of_gaussian for loss in losses) else action_head,
        of_actions=all(loss.of_actions for loss in losses),
        to_gaussian=any(loss.to_gaussian for loss in losses),
        parts=parts,
        coefs=coefs,
    )


def _total(parts: Mapping[str, torch.Tensor], coefs: Mapping[str, float]) -> torch.Tensor:
    """Return the sum of the terms times their coefficients."""
    return reduce(torch.add, (coefs[name] * part for name, part in parts.items()))


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
    loss_type: str | Callable[..., Any] | Sequence[Any],
    student: MLPModel,
    teacher: MLPModel,
    num_actions: int,
) -> BehaviorLoss:
    """Return the loss for ``loss_type``.

    Args:
        loss_type: A name in ``BEHAVIOR_LOSSES``; or an element-wise loss of actions and labels,
            both (..., A), or its qualified name; or a list of slices, each with such a loss.
        student: The student.
        teacher: The teacher.
        num_actions: Number of actions A.

    Returns:
        The loss.

    Raises:
        ValueError: If the name is unknown or cannot be imported, the function fails on a few
            actions and labels, the list of slices is not valid, or no gradient reaches the student.
        NotImplementedError: If the loss needs a Gaussian that a model does not have.
    """
    if loss_type == "nll" and not _is_gaussian(student.distribution):
        return _nll_of(student)
    if not isinstance(loss_type, list | tuple):
        return _resolve_one("loss_type", loss_type, student, teacher, num_actions)
    slices = parse_slices(loss_type, num_actions, names_taken=getattr(teacher, "names", ()))
    of_slices = [
        _resolve_one(f"loss_type[{i}].loss", each.loss, student, teacher, each.width)
        for i, each in enumerate(slices)
    ]
    return _of_slices(slices, of_slices)


def _is_gaussian(distribution: Any) -> bool:
    """Return whether a model is without a distribution, or it is one of rsl_rl's Gaussians."""
    own = getattr(type(distribution), "log_prob", None)  # rsl_rl 3 has none
    return distribution is None or (
        isinstance(distribution, GaussianDistribution)
        and own is getattr(GaussianDistribution, "log_prob", None)
    )


def _nll_of(student: MLPModel) -> BehaviorLoss:
    """Return the negative log-likelihood of the teacher's actions under any distribution.

    Raises:
        ValueError: If no gradient reaches the student.
    """
    distribution: Any = student.distribution

    def per_sample(outputs: Outputs, labels: Labels) -> torch.Tensor:
        distribution.update(*outputs)
        return losses.nll(student.get_output_log_prob, labels[ACTIONS])

    if "log_prob" not in values_with_gradient(student):
        raise ValueError(
            "loss_type is 'nll', expected a log_prob with a gradient: that of the student's"
            f" {type(distribution).__name__} has none, so the student would learn nothing."
        )
    return BehaviorLoss(per_sample=per_sample, head=distribution_head, of_actions=False)


def _resolve_one(
    option: str, loss_type: Any, student: MLPModel, teacher: MLPModel, num_actions: int
) -> BehaviorLoss:
    """Return one loss for all actions; messages call it ``option``.

    Raises:
        ValueError: If it cannot be used, or no gradient reaches the student.
        NotImplementedError: If it needs a Gaussian that a model does not have.
    """
    distribution: Any = student.distribution
    if isinstance(loss_type, str) and loss_type in BEHAVIOR_LOSSES:
        loss = BEHAVIOR_LOSSES[loss_type]
    else:
        parameter = next(student.parameters())
        loss = _of_actions(own_loss(option, loss_type, BEHAVIOR_LOSSES, num_actions, parameter))
    fits = "'mse'" if _is_gaussian(distribution) else "'nll' for all actions"
    needed = {"student": (student, loss.of_gaussian), "teacher": (teacher, loss.to_gaussian)}
    for role, (model, needs_gaussian) in needed.items():
        if needs_gaussian and not isinstance(model.distribution, GaussianDistribution):
            raise NotImplementedError(
                f"{option} is '{loss_type}', which needs a Gaussian, but the {role} has"
                f" distribution {model.distribution}: set '{role}.distribution_cfg' to a"
                f" GaussianDistribution or use {fits}."
            )
    if loss.head is action_head and "actions" not in values_with_gradient(student):
        raise ValueError(
            f"{option} is {loss_type!r}, expected loss_type 'nll' with the student's"
            f" {type(distribution).__name__}: its actions have no gradient, like an argmax, so the"
            " student would learn nothing. 'nll' is -log p of the teacher's action."
        )
    return loss


def own_loss(
    option: str, loss: Any, known: Iterable[str], num_columns: int, parameter: torch.Tensor
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return your own loss per sample, after trying out its gradient once.

    Without the trial, a faulty loss would end the training after its first rollout, or train
    nothing.

    Args:
        option: Name of the loss in messages.
        loss: An element-wise function of predictions and labels, or its qualified name.
        known: Other values of the option, for messages.
        num_columns: Columns of predictions and labels, such as A.
        parameter: A tensor with their device and dtype.

    Returns:
        A function that maps both, (..., A), to losses, (...).

    Raises:
        ValueError: If the loss cannot be imported or called, returns another shape, writes into its
            arguments, or has no gradient but 0, NaN and inf.
    """
    function = losses.from_function(import_function(option, loss, known))
    shape = (2, 3, num_columns)
    labels = torch.linspace(-1.0, 1.0, 6 * num_columns).to(parameter).view(shape)
    try:
        gradients = []
        for factor in (0.5, -3.0):  # small and large errors: a loss may ignore the small ones
            predictions = (factor * labels).requires_grad_()
            with unwritten("It", {"labels": labels, "predictions": predictions.detach()}):
                total = function(predictions, labels).sum()
            gradients += torch.autograd.grad(total, predictions)
        if not torch.stack(gradients).nan_to_num(0.0, 0.0, 0.0).any():
            raise ValueError("its gradient is 0, NaN or inf everywhere")
    except Exception as error:  # a user's function can raise anything
        raise ValueError(
            f"{option} is {loss!r}, which fails on predictions and labels of shape {shape}"
            f" ({error}): expected a differentiable function of the two that returns one loss per"
            " column."
        ) from error
    return function


_BOUNDS = Rule(
    lambda value: are_integers(value, 0) and len(value) == 2 and value[0] < value[1],
    "[first, one past the last], counted from 0",
)
_NAME = Rule(lambda value: isinstance(value, str) and value != "", "a text")


@dataclass(frozen=True, kw_only=True)
class ActionSlice:
    """Consecutive actions with their own loss, an entry of ``loss_type``."""

    loss: str | Callable[..., Any]
    """The loss of these actions, in any form of ``loss_type`` for all actions."""

    actions: Annotated[Sequence[int], _BOUNDS]
    """First action, and one past the last."""

    coef: Annotated[float, between(0, math.inf)] = 1.0
    """Weight of the loss compared with the others'."""

    name: Annotated[str | None, _NAME] = None
    """Name under which the loss is reported; None makes one from the actions."""

    @property
    def width(self) -> int:
        """Number of actions."""
        return self.actions[1] - self.actions[0]

    @property
    def reported_as(self) -> str:
        """Name under which the loss is reported."""
        return self.name or "actions_{}_{}".format(*self.actions)


def parse_slices(
    listed: Sequence[Any], num_actions: int, names_taken: Iterable[str] = ()
) -> list[ActionSlice]:
    """Parse and check a list of slices.

    Args:
        listed: Fields of :class:`ActionSlice`, a dictionary per slice.
        num_actions: Number of actions A.
        names_taken: Names under which other losses are reported.

    Returns:
        The slices; no two share an action.

    Raises:
        ValueError: If an entry is not such a dictionary, goes beyond the actions, or shares an
            action or its name with another.
    """
    if not listed:
        raise ValueError("loss_type is [], expected at least one slice of the action.")
    slices: list[ActionSlice] = []
    names, free = {*names_taken}, {*range(num_actions)}
    for index, entry in enumerate(listed):
        where = f"loss_type[{index}]"
        if not isinstance(entry, Mapping) or not {"loss", "actions"} <= entry.keys():
            raise ValueError(
                f"{where} is {entry!r}, expected a dictionary with 'loss' and 'actions'."
            )
        found = parse_fields(ActionSlice, entry, where, prefix=f"{where}.")
        own = {*range(*found.actions)}
        if not own <= free:
            raise ValueError(
                f"{where}.actions is {found.actions!r}, expected some of {num_actions} actions that"
                " no earlier slice has."
            )
        if found.reported_as in names:
            raise ValueError(
                f"{where}.name is '{found.reported_as}', expected one that no other slice or"
                " teacher has: the losses of both would be logged under it."
            )
        free -= own
        names.add(found.reported_as)
        slices.append(found)
    return slices

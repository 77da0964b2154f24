"""The behaviour losses of distillation by name, per slice of the action, and weighted by sample.

Add or change a loss in ``BEHAVIOR_LOSSES``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from rsl_tbptt.algorithms.options import is_finite
from rsl_tbptt.algorithms.replay import Head, action_head, gaussian_head
from rsl_tbptt.compat.versions import GaussianDistribution, MLPModel, resolve_callable
from rsl_tbptt.core import losses
from rsl_tbptt.core.accumulate import Outputs, SampleLosses
from rsl_tbptt.core.rollout import Labels

ACTIONS, STD = "actions", "std"
"""Labels: the teacher's action means, and their standard deviations where a loss needs them.
Shape: (T, N, A) each."""

NEWEST = "newest"
"""Label: whether a sample is of the newest rollout. Shape: (T, C + N), bool."""

BEHAVIOR, BUFFER = "behavior", "buffer"
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
        """What is reported; all but ``BUFFER`` is of the newest rollout."""
        return BEHAVIOR, BUFFER, *self.coefs

    def __call__(self, outputs: Outputs, labels: Labels) -> SampleLosses:
        """Return the losses of K steps of n environments.

        Reported are those of the newest rollout as ``behavior``, of the past as ``buffer``, and
        parts of the former by their names. The sums of all are weighted as the loss is.
        """
        parts = {} if self.parts is None else self.parts(outputs, labels)
        per_sample = _total(parts, self.coefs) if parts else self.per_sample(outputs, labels)
        reported = {BEHAVIOR: per_sample, **parts}
        if NEWEST in labels:
            is_newest = labels[NEWEST]
            reported = {name: torch.where(is_newest, v, 0.0) for name, v in reported.items()}
            reported[BUFFER] = per_sample - reported[BEHAVIOR]
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
    return _of_actions(own_loss(option, loss_type, num_actions, next(student.parameters())))


def own_loss(
    option: str, loss: str | Callable[..., Any], width: int, parameter: torch.Tensor
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return a user's loss, tried out once: the first window comes after a whole rollout.

    Args:
        option: The option that it is given by.
        loss: An element-wise loss of predictions and labels, (..., D) each, or its qualified name.
        width: D.
        parameter: Has the device and dtype of predictions, any shape.

    Returns:
        The loss per sample, (...).

    Raises:
        ValueError: If it cannot be imported or called, returns another shape or has no gradient.
    """
    try:
        function = losses.from_function(resolve_callable(loss))
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"{option} is '{loss}', which cannot be imported ({error}): expected the qualified name"
            " of a function, such as 'my_package.losses:my_loss'."
        ) from error
    shape = (2, 3, width)
    labels = torch.linspace(-1.0, 1.0, 6 * width).to(parameter).view(shape)
    predictions = (0.5 * labels).requires_grad_()
    try:
        torch.autograd.grad(function(predictions, labels).sum(), predictions)
    except Exception as error:  # a user's function can raise anything
        raise ValueError(
            f"{option} is {loss!r}, which fails on predictions and labels of shape {shape}"
            f" ({error}): expected a differentiable function of the two that returns one loss per"
            " column."
        ) from error
    return function


def _check_gaussian(option: str, loss_type: str, role: str, model: MLPModel) -> None:
    if not isinstance(model.distribution, GaussianDistribution):
        raise NotImplementedError(
            f"{option} is '{loss_type}', which needs a Gaussian, but the {role} has distribution"
            f" {model.distribution}: set '{role}.distribution_cfg' to a GaussianDistribution or use"
            " loss_type 'mse'."
        )


KEYS = ("loss", "actions", "coef", "name")


@dataclass(frozen=True)
class ActionSlice:
    """Consecutive actions and what their loss counts."""

    loss: str | Callable[..., Any]
    """What ``loss_type`` would be for these actions alone."""

    first: int
    """First action."""

    stop: int
    """One past the last action."""

    coef: float
    """What the loss counts beside the others'."""

    name: str
    """Under which it is reported."""

    @property
    def width(self) -> int:
        """Number of actions."""
        return self.stop - self.first


def parse_slices(listed: Sequence[Any], num_actions: int) -> list[ActionSlice]:
    """Read and check the slices of a list.

    Args:
        listed: A dictionary per slice: "loss", "actions" (first, one past the last) and, where
            wanted, "coef" and "name".
        num_actions: A, how many actions there are.

    Returns:
        The slices, none of which share an action.

    Raises:
        ValueError: If one of them is no such dictionary, reaches beyond the actions, or shares an
            action or its name with an earlier one.
    """
    if not listed:
        raise ValueError("loss_type is [], expected at least one slice of the action.")
    slices: list[ActionSlice] = []
    for index, entry in enumerate(listed):
        where = f"loss_type[{index}]"
        found = _parse(where, entry, num_actions)
        for other_index, other in enumerate(slices):
            if found.first < other.stop and other.first < found.stop:
                raise ValueError(
                    f"{where}['actions'] is [{found.first}, {found.stop}], expected no action of"
                    f" loss_type[{other_index}], [{other.first}, {other.stop}]: each has one loss."
                )
            if found.name == other.name:
                raise ValueError(
                    f"{where}['name'] is '{found.name}', expected another one than"
                    f" loss_type[{other_index}] has: each is reported under its name."
                )
        slices.append(found)
    return slices


def _parse(where: str, entry: Any, num_actions: int) -> ActionSlice:
    if not isinstance(entry, Mapping) or not {"loss", "actions"} <= {*entry} <= {*KEYS}:
        raise ValueError(
            f"{where} is {entry!r}, expected a dictionary with 'loss', 'actions' and, where wanted,"
            " 'coef' and 'name'."
        )
    bounds = entry["actions"]
    integers = isinstance(bounds, Sequence) and all(type(bound) is int for bound in bounds)
    if not (integers and len(bounds) == 2 and 0 <= bounds[0] < bounds[1] <= num_actions):
        raise ValueError(
            f"{where}['actions'] is {bounds!r}, expected [first, one past the last] of"
            f" {num_actions} actions, counted from 0."
        )
    first, stop = bounds
    coef, name = entry.get("coef", 1.0), entry.get("name", f"actions_{first}_{stop}")
    if not (is_finite(coef) and coef >= 0):
        raise ValueError(f"{where}['coef'] is {coef!r}, expected a finite number of at least 0.")
    if not isinstance(name, str) or not name:
        raise ValueError(f"{where}['name'] is {name!r}, expected a text to report the loss under.")
    return ActionSlice(entry["loss"], first, stop, float(coef), name)


OPTION = "imitation_weight"


@dataclass(frozen=True)
class Transitions:
    """A rollout of T steps of N environments, as a function that weighs its steps sees it."""

    obs: TensorDict
    """All observation groups of the environment, before each step. Batch size (T, N)."""

    actions: torch.Tensor
    """The actions executed, the student's or the teacher's. Shape: (T, N, A)."""

    labels: torch.Tensor
    """The teacher's actions. Shape: (T, N, A)."""

    rewards: torch.Tensor
    """Rewards of each step. Shape: (T, N)."""

    dones: torch.Tensor
    """Which steps ended an episode. Shape: (T, N), bool."""

    episode_steps: torch.Tensor
    """Steps of the episode before this one, 0 at its first. Shape: (T, N), int64.

    They are counted over rollouts, from the first step of the training on.
    """


class SampleWeights:
    """Finds the weights of each rollout once it is complete."""

    def __init__(self, weight: str | Callable[..., Any], storage: RolloutStorage) -> None:
        """Find the observation group or the function.

        Args:
            weight: The option ``imitation_weight``.
            storage: Where rollouts are stored.

        Raises:
            ValueError: If the group does not exist or has more than one value, or the function
                cannot be imported.
        """
        self._storage, self._option = storage, weight
        self._group, self._function = None, None
        if isinstance(weight, str) and ":" not in weight:
            _check_group(weight, storage.observations)
            self._group = weight
        else:
            self._function = _resolve(weight)
        shape = storage.dones.shape[:2]
        self.given = torch.ones(shape, device=storage.dones.device, dtype=storage.rewards.dtype)
        """What the group or the function says. Shape: (T, N)."""
        self.values = torch.ones_like(self.given)
        """The same, with NaN where it is negative: no update goes on with NaN or inf."""
        self._episode_steps = torch.zeros(shape, device=self.given.device, dtype=torch.int64)
        self._steps_so_far = self._episode_steps[0].clone()

    def count_step(self, step: int, dones: torch.Tensor) -> None:
        """Count the steps of each episode.

        Args:
            step: Step of the rollout.
            dones: Which episodes ended with it. Shape: (N,).
        """
        self._episode_steps[step] = self._steps_so_far
        self._steps_so_far = torch.where(dones.bool(), 0, self._steps_so_far + 1)

    @torch.no_grad()
    def complete(self) -> None:
        """Weigh the stored rollout.

        Raises:
            ValueError: If the function fails or returns another shape.
        """
        if self._group is not None:
            self.given.copy_(self._storage.observations[self._group].view_as(self.given))
        else:
            self.given.copy_(self._computed())
        self.values.copy_(torch.where(self.given >= 0, self.given, torch.nan))

    def _computed(self) -> torch.Tensor:
        """Return what the function says of the stored rollout. Shape: (T, N).

        Raises:
            ValueError: If it fails or returns another shape.
        """
        assert self._function is not None
        storage, shape = self._storage, self.given.shape
        transitions = Transitions(
            obs=storage.observations,
            actions=storage.actions,
            labels=storage.privileged_actions,
            rewards=storage.rewards.squeeze(-1),
            dones=storage.dones.squeeze(-1).bool(),
            episode_steps=self._episode_steps,
        )
        expected = f"expected a function of the rollout that returns its weights, {tuple(shape)}"
        try:
            weights = self._function(transitions)
        except Exception as error:  # a user's function can raise anything
            raise ValueError(
                f"{OPTION} is {self._option!r}, which fails on a rollout"
                f" ({type(error).__name__}: {error}): {expected}."
            ) from error
        if not isinstance(weights, torch.Tensor) or weights.shape != shape:
            found = tuple(weights.shape) if isinstance(weights, torch.Tensor) else repr(weights)
            raise ValueError(f"{OPTION} is {self._option!r}, which returned {found}: {expected}.")
        return weights


def sample_weights(
    weight: str | Callable[..., Any] | None, storage: RolloutStorage
) -> SampleWeights | None:
    """Return what weighs the rollouts; None where all steps weigh the same.

    Raises:
        ValueError: If the option cannot be used.
    """
    return None if weight is None else SampleWeights(weight, storage)


def _check_group(group: str, observations: TensorDict) -> None:
    stored = sorted(map(str, observations.keys()))
    if group not in stored:
        raise ValueError(
            f"{OPTION} is '{group}', expected one of the observation groups {stored} or the"
            " qualified name of a function, such as 'my_package.weights:my_weight'."
        )
    shape = tuple(observations[group].shape[2:])
    if shape != (1,):
        raise ValueError(
            f"{OPTION} is '{group}', an observation group of shape {shape}, expected one of shape"
            " (1,): each robot-step has one weight."
        )


def _resolve(weight: str | Callable[..., Any]) -> Callable[[Transitions], torch.Tensor]:
    try:
        return resolve_callable(weight)
    except (ImportError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{OPTION} is {weight!r}, which cannot be imported ({error}): expected an observation"
            " group or the qualified name of a function, such as 'my_package.weights:my_weight'."
        ) from error


def or_one(sums: torch.Tensor) -> torch.Tensor:
    """Return sums of weights as divisors, of any shape: where they are 0, all is 0 and not NaN."""
    return torch.where(sums == 0, 1.0, sums)

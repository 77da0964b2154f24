"""PPO that continues from a distilled student: action noise, and a warm-up of the critic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from tensordict import TensorDict
from torch import nn

from rsl_tbptt.algorithms.extensions import Extension
from rsl_tbptt.algorithms.extensions.imitation import Imitation, ImitationOptions
from rsl_tbptt.algorithms.option_checks import count, positive, warn_all
from rsl_tbptt.checkpoints.describing import check_fits
from rsl_tbptt.compat.versions import MLPModel


@dataclass(kw_only=True)
class FineTuningOptions(ImitationOptions):
    """Options of :class:`FineTuning`."""

    student_action_std: Annotated[float | None, positive()] = None
    """Standard deviation of the actions after a student became the actor; None keeps its own."""

    critic_warmup_iterations: Annotated[int, count(0)] = 0
    """Updates that train the critic alone, after a distilled student became the actor."""


class FineTuning(Extension):
    """PPO's schedule after a student became the actor. Without a student it has no effect.

    ::

        updates    0 1 2 3 4 5 6      critic_warmup_iterations = 3
        actor      held  trained as in any training; the teacher's schedule begins
    """

    name = "fine_tuning"

    def __init__(
        self,
        actor: MLPModel,
        options: FineTuningOptions,
        imitation: Imitation,
        *,
        is_first_rank: bool,
    ) -> None:
        """Take the actor that a student may become.

        Args:
            actor: The actor.
            options: Options of the algorithm.
            imitation: Takes the teacher of a student and starts its schedule.
            is_first_rank: Whether this process prints for all.

        Raises:
            ValueError: If the actor would act with another noise than ``student_action_std``.
            NotImplementedError: If ``student_action_std`` finds no parameter to set.
        """
        if options.student_action_std is not None:
            _check_std(actor, options.student_action_std)
        self._actor, self._options, self._is_first_rank = actor, options, is_first_rank
        self._imitation = imitation
        self._num_updates: int | None = None

    @property
    def holds_actor(self) -> bool:
        """Whether this update trains only the critic."""
        warmup = self._options.critic_warmup_iterations
        return self._num_updates is not None and self._num_updates < warmup

    def advance(self, metrics: dict[str, float]) -> None:
        """Advance the warm-up."""
        if self._num_updates is not None:
            self._num_updates += 1

    def start(self, checkpoint: Mapping[str, Any], obs: TensorDict, strict: bool) -> None:
        """Make the student of a distillation checkpoint the actor, and take over its teacher.

        Args:
            checkpoint: Checkpoint of a distillation.
            obs: Observations of any batch size.
            strict: Whether the student's parameters must match exactly.

        Raises:
            ValueError: If the checkpoint does not fit. Nothing is changed then.
        """
        student = checkpoint["student_state_dict"]
        if strict:
            check_fits(self._actor, student, "actor", obs, checkpoint)
        teacher = {"teacher_state_dict": checkpoint.get("teacher_state_dict")}
        self._imitation.load_teacher(teacher, checkpoint if strict else None)  # first: may raise
        self._actor.load_state_dict(student, strict=strict)
        if self._options.student_action_std is not None:
            _set_std(self._actor, self._options.student_action_std)
        self._num_updates = 0
        # Printed, as rsl_rl prints its models: training scripts set up no logging, so anything
        # below a warning would be lost.
        if self._is_first_rank:
            options = self._options
            noise = options.student_action_std or "the student's own"
            print(  # noqa: T201
                "TbpttPPO: the checkpoint's student is the actor now, the critic is fresh. Action"
                f" noise: {noise} (student_action_std). Updates of the critic alone:"
                f" {options.critic_warmup_iterations} (critic_warmup_iterations). Weight of the"
                f" teacher: {options.teacher_coef or 'none'} (teacher_coef)."
            )

    def start_training(self) -> None:
        """Warn of options without effect if the training starts without a student."""
        if self._num_updates is None:
            names = "student_action_std critic_warmup_iterations"
            without = "a distilled student's checkpoint (--checkpoint FILE)"
            warn_all(self._options.without_effect(names, without))

    def state_dict(self) -> dict[str, Any]:
        """Return the values that the warm-up needs to continue; empty without a student."""
        return {} if self._num_updates is None else {"num_updates": self._num_updates}

    def load_state_dict(self, saved: Mapping[str, Any], *, with_optimizer: bool) -> None:
        """Restore the values of ``state_dict``."""
        self._num_updates = saved.get("num_updates")


def _set_std(actor: MLPModel, std: float) -> None:
    name, parameter = _std_parameter(actor)
    parameter.data.fill_(math.log(std) if name.startswith("log") else std)


def _check_std(actor: MLPModel, std: float) -> None:
    """Check that the actor can act with a standard deviation.

    Raises:
        ValueError: If it cannot: rsl_rl's distributions clamp theirs to ``std_range``.
        NotImplementedError: If the distribution has no such parameter.
    """
    _std_parameter(actor)
    low, high = getattr(actor.distribution, "std_range", (0.0, math.inf))  # rsl_rl 5.0 has none
    if not low <= std <= high:
        raise ValueError(
            f"student_action_std is {std}, expected {low:g} to {high:g}, the std_range of the"
            f" actor's {type(actor.distribution).__name__}: change one of them."
        )


def _std_parameter(actor: MLPModel) -> tuple[str, nn.Parameter]:
    """Return name and parameter, shape (A,), of the actions' (log) standard deviation.

    Raises:
        NotImplementedError: If the distribution has no such parameter.
    """
    if actor.distribution is not None:
        for name, parameter in actor.distribution.named_parameters():
            if name in ("std_param", "log_std_param"):
                return name, parameter
    raise NotImplementedError(
        f"student_action_std is set, but the actor's {type(actor.distribution).__name__} has no"
        " standard deviation of its own: use a GaussianDistribution or leave it at None."
    )

"""PPO that continues from a distilled student: action noise, and a warm-up of the critic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from torch import nn

from rsl_tbptt.algorithms.imitation import ImitationOptions
from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.extensions import Extension, count, positive, warn_all


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

    def __init__(self, options: FineTuningOptions, algorithm: Any) -> None:
        """Take the options.

        Raises:
            ValueError: If the actor would act with another noise than ``student_action_std``.
            NotImplementedError: If ``student_action_std`` finds no parameter to set.
        """
        super().__init__(options, algorithm)
        if options.student_action_std is not None:
            _check_std(algorithm.actor, options.student_action_std)
        self.state = {"num_updates": None}
        self._trained = [p for p in algorithm.actor.parameters() if p.requires_grad]
        self._holds = self._warned = False

    @property
    def holds_actor(self) -> bool:
        """Whether this update trains the critic and auxiliary heads, but not the actor."""
        num_updates = self.state["num_updates"]
        return num_updates is not None and num_updates < self.options.critic_warmup_iterations

    def begin_rollout(self) -> None:
        """Hold or release the actor; warn of options without effect if there is no student."""
        if self._holds != self.holds_actor:
            self._holds = self.holds_actor
            for parameter in self._trained:
                parameter.requires_grad_(not self._holds).grad = None
        if self.state["num_updates"] is None and not self._warned:
            self._warned = True
            names = "student_action_std critic_warmup_iterations"
            without = "a distilled student's checkpoint (--checkpoint FILE)"
            warn_all(self.options.without_effect(names, without))

    def advance(self, metrics: dict[str, float]) -> None:
        """Advance the warm-up."""
        if self.state["num_updates"] is not None:
            self.state["num_updates"] += 1

    def start(self, student: Mapping[str, Any], strict: bool) -> None:
        """Make a student the actor, and begin the warm-up.

        Args:
            student: Its state dict, which has been checked.
            strict: Whether its parameters must match exactly.
        """
        actor, options = self.algorithm.actor, self.options
        actor.load_state_dict(student, strict=strict)
        if options.student_action_std is not None:
            _set_std(actor, options.student_action_std)
        self.state = {"num_updates": 0}
        # Printed, as rsl_rl prints its models: training scripts set up no logging, so anything
        # below a warning would be lost.
        if self.algorithm.gpu_global_rank == 0:
            noise = options.student_action_std or "the student's own"
            print(  # noqa: T201
                "TbpttPPO: the checkpoint's student is the actor now, the critic is fresh. Action"
                f" noise: {noise} (student_action_std). Updates of the critic alone:"
                f" {options.critic_warmup_iterations} (critic_warmup_iterations). Weight of the"
                f" teacher: {options.teacher_coef or 'none'} (teacher_coef)."
            )


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

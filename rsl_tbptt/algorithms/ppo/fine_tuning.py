"""PPO that goes on with a distilled student: its action noise, and the critic's warm-up."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

from tensordict import TensorDict
from torch import nn

from rsl_tbptt.algorithms.ppo.imitation import Imitation
from rsl_tbptt.algorithms.ppo.options import PpoOptions
from rsl_tbptt.checkpoints.reading import check_matches
from rsl_tbptt.checkpoints.trained_models import check_configured_alike
from rsl_tbptt.compat.versions import MLPModel, config_advice


class FineTuning:
    """Where PPO stands after a student became the actor. Without one nothing here has an effect.

    ::

        updates    0 1 2 3 4 5 6      critic_warmup_iterations = 3
        actor      held  trained, by then as in any training: the teacher's schedule begins
    """

    def __init__(self, actor: MLPModel, options: PpoOptions, *, is_first_rank: bool) -> None:
        """Take the actor that a student shall become.

        Args:
            actor: The actor.
            options: What shall happen then.
            is_first_rank: Whether this process speaks for all.

        Raises:
            NotImplementedError: If ``student_action_std`` has no parameter to set.
        """
        if options.student_action_std is not None:
            _std_parameter(actor)
        self._actor, self._options, self._is_first_rank = actor, options, is_first_rank
        self._num_updates: int | None = None

    @property
    def holds_actor(self) -> bool:
        """Whether this update trains only the critic."""
        warmup = self._options.critic_warmup_iterations
        return self._num_updates is not None and self._num_updates < warmup

    def count_update(self) -> None:
        """Go on in the warm-up."""
        if self._num_updates is not None:
            self._num_updates += 1

    def start(
        self, checkpoint: Mapping[str, Any], obs: TensorDict, strict: bool, imitation: Imitation
    ) -> None:
        """Make the student of a distillation checkpoint the actor and its teacher ours.

        Args:
            checkpoint: Checkpoint of a distillation.
            obs: Observations of any batch size.
            strict: Whether the student's parameters must match exactly.
            imitation: Takes the teacher and starts its schedule.

        Raises:
            ValueError: If it does not fit. Nothing is changed then.
        """
        student = checkpoint["student_state_dict"]
        if strict:
            check_configured_alike(self._actor, obs, "actor", checkpoint, None)
            check_matches(self._actor, student, "actor", config_advice)
        imitation.start(checkpoint, strict)  # first, as it may refuse
        self._actor.load_state_dict(student, strict=strict)
        if self._options.student_action_std is not None:
            name, parameter = _std_parameter(self._actor)
            std = self._options.student_action_std
            parameter.data.fill_(math.log(std) if name.startswith("log") else std)
        self._num_updates = 0
        if self._is_first_rank:
            self._announce()

    def _announce(self) -> None:
        """Print what became of the student and what happens next.

        Printed, as rsl_rl prints its models: nobody sets up logging in the training scripts, where
        all below a warning is lost, and nothing is wrong here that one should be warned of.
        """
        options = self._options
        noise = options.student_action_std or "the student's own"
        warmup, teacher = options.critic_warmup_iterations, options.teacher_coef or "none"
        parts = [
            "TbpttPPO: the checkpoint's student is the actor now, the critic is fresh.",
            f"Action noise: {noise} (student_action_std).",
            f"Updates of the critic alone: {warmup} (critic_warmup_iterations).",
            f"Weight of the teacher: {teacher} (teacher_coef).",
        ]
        print(*parts)  # noqa: T201

    def check_training(self) -> None:
        """Say what has no effect on a training that starts without a student."""
        options = self._options
        if self._num_updates is not None:
            return
        ignored = [
            f"{name} is {getattr(options, name)}"
            for name in ("student_action_std", "critic_warmup_iterations")
            if getattr(options, name) != getattr(PpoOptions, name)
        ]
        if ignored:
            warnings.warn(
                f"{' and '.join(ignored)}, which has no effect: no checkpoint of a distilled"
                " student was loaded. Name the student's file with --checkpoint FILE, or leave"
                " the options at their defaults.",
                stacklevel=4,
            )

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs to go on in the warm-up; empty without a student."""
        return {} if self._num_updates is None else {"num_updates": self._num_updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict()`` was taken."""
        self._num_updates = state.get("num_updates")


def _std_parameter(actor: MLPModel) -> tuple[str, nn.Parameter]:
    """Return name and parameter, shape (A,), of the actions' (log) standard deviation.

    Raises:
        NotImplementedError: If it is not a parameter of its own.
    """
    if actor.distribution is not None:
        for name, parameter in actor.distribution.named_parameters():
            if name in ("std_param", "log_std_param"):
                return name, parameter
    raise NotImplementedError(
        f"student_action_std is set, but the actor's {type(actor.distribution).__name__} has no"
        " standard deviation of its own: use a GaussianDistribution or leave it at None."
    )

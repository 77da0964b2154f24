"""The options of TbpttDistillation: named, typed, documented and checked in one place."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from rsl_tbptt.algorithms.update.checks import (
    Between,
    Count,
    Positive,
    check_at_most_envs,
    warn_beyond_rollout,
)
from rsl_tbptt.algorithms.update.options import ClippingNorm, Options
from rsl_tbptt.core.windows import Tail


@dataclass(kw_only=True)
class DistillationOptions(Options):
    """Options of :class:`TbpttDistillation`; names and meanings are rsl_rl's where it has them."""

    num_learning_epochs: Annotated[int, Count()] = 2
    """Passes over each rollout; each starts again from the state at the rollout's start.

    With a memory of rollouts each also passes over ``memory_share`` as many sequences of the past.
    """

    num_mini_batches: Annotated[int, Count()] = 8
    """Mini-batches of whole environments per pass, drawn anew for each, none left out.

    Each makes as many optimiser steps as there are groups of ``update_length`` steps. There are no
    more of them than environments.
    """

    memory_rollouts: Annotated[int, Count(or_zero=True)] = 50
    """Rollouts' worth of past sequences that is kept on the device to go on learning from (DAgger).

    They are a uniform sample of everything seen so far, not the newest; 0 keeps none.
    """

    memory_share: Annotated[float, Positive()] = 1.0
    """Sequences of the past that a mini-batch holds for each of the newest rollout."""

    memory_gb: Annotated[float | None, Positive()] = 2.0
    """Gigabytes of 10^9 bytes that the memory of rollouts may take; fewer are kept then.

    None does not limit it.
    """

    save_memory: bool = False
    """Whether checkpoints hold the memory of rollouts, for a resumed run to go on with.

    Else it begins with an empty one. A checkpoint grows by what the memory takes.
    """

    gradient_length: Annotated[int, Count()] = 15
    """Steps the gradient flows back: k2 of TBPTT(k1, k2), in environment steps.

    What the student has to remember over more steps than this gets no gradient. A value above
    ``num_steps_per_env`` means the whole rollout.
    """

    update_length: Annotated[int | None, Count()] = None
    """Steps between optimiser steps: k1 of TBPTT(k1, k2), in environment steps.

    None means ``gradient_length``. A larger value accumulates several windows into one optimiser
    step; a smaller one lets windows overlap and takes the loss of the newest steps only.
    """

    loss_reduction: Literal["mean", "sum"] = "mean"
    """How the losses of one optimiser step combine.

    ``"mean"`` divides by the robot-steps of a full optimiser step, so that gradients keep their
    size whatever the lengths above; ``"sum"`` adds up the steps' means as rsl_rl does.
    """

    tail: Tail = "flush"
    """What happens to the steps left over when the rollout is no multiple of ``update_length``.

    ``"flush"`` trains on them in a last, shorter group, with the same weight per step; ``"drop"``
    only runs them forward, as rsl_rl does.
    """

    loss_type: str | Callable[..., Any] | list[dict[str, Any]] = "mse"
    """Loss between student and teacher: ``"mse"``, ``"huber"``, ``"bce"``, ``"kl"`` or ``"nll"``.

    ``"kl"`` is that of the student's Gaussian from the teacher's, ``"nll"`` that of the teacher's
    actions, ``"bce"`` that of their signs. Any other element-wise loss of actions and labels is
    given as ``"module:function"``, a loss for each slice of the action as a list:
    docs/distillation.md#losses.
    """

    imitation_weight: str | Callable[..., Any] | None = None
    """What each robot-step weighs in the mean: an observation group or ``"module:function"``.

    The group has one value per environment, at least 0; the function returns such weights of all
    steps of a rollout. None weighs all the same. See docs/distillation.md#what-counts.
    """

    learning_rate: Annotated[float, Positive()] = 1e-3
    """Step size of the optimiser.

    With ``loss_reduction="mean"`` it needs no retuning when ``gradient_length`` changes.
    """

    learning_rate_updates: Annotated[int | None, Count(hint=" Use None to keep the rate.")] = None
    """Updates over which ``learning_rate`` falls linearly to 3 % of it, where it stays.

    For the length of a training: single updates move a student less and less, and it ends as good
    as it was. None keeps the rate.
    """

    max_grad_norm: ClippingNorm = 1.0
    """Norm the gradient is clipped to before each optimiser step; None does not clip."""

    teacher_checkpoint: str | None = None
    """Checkpoint, of PPO or distillation, whose actor or whose teacher becomes the teacher.

    It is loaded when training starts, unless the runner loaded a checkpoint (``--checkpoint`` in
    Isaac Lab, ``--agent.resume`` in mjlab). ``RUN/latest`` is the newest of that folder that can be
    loaded. None leaves it to the runner.
    """

    teacher_action_share: Annotated[
        float, Between(0, 1, "a number from 0 to 1: give 30 % of the environments as 0.3.")
    ] = 0.0
    """Share of the environments, from 0 to 1, that act with the teacher's action (DAgger).

    It holds at the start of training. The environments are drawn anew for every rollout; labels are
    the teacher's everywhere.
    """

    teacher_action_updates: Annotated[int | None, Count(hint=" Use None to keep the share.")] = None
    """Updates over which ``teacher_action_share`` falls linearly to 0; None keeps it."""

    batch_teacher_labels: bool = False
    """Whether the labels of a teacher without memory are computed after each rollout at once.

    They are the same; the rollout has one forward pass less per step. Not with
    ``teacher_action_share``, whose labels act.
    """

    @classmethod
    def algorithm(cls) -> str:
        """Return the name of the algorithm, as one writes it in a config."""
        return "TbpttDistillation"

    def _check_together(self) -> None:
        if self.teacher_action_share > 0 and self.batch_teacher_labels:
            raise ValueError(
                "batch_teacher_labels is True, expected False with teacher_action_share"
                f" {self.teacher_action_share}: the teacher acts with its labels in the rollout."
            )
        if self.teacher_action_updates is not None and self.teacher_action_share == 0:
            warnings.warn(
                f"teacher_action_updates is {self.teacher_action_updates}, which has no effect:"
                " teacher_action_share is 0. Set teacher_action_share, or leave it at None.",
                stacklevel=5,
            )
        for name in ("memory_share", "memory_gb", "save_memory"):
            default, value = getattr(DistillationOptions, name), getattr(self, name)
            if self.memory_rollouts == 0 and value != default:
                warnings.warn(
                    f"{name} is {value}, which has no effect: memory_rollouts is 0. Set"
                    f" memory_rollouts, or leave it at {default}.",
                    stacklevel=5,
                )

    def check_rollout(self, num_steps: int) -> None:
        """Warn of lengths beyond the rollout.

        Args:
            num_steps: ``num_steps_per_env``.
        """
        for name in ("gradient_length", "update_length"):
            warn_beyond_rollout(name, getattr(self, name), num_steps)

    def check_training(self, num_envs: int) -> None:
        """Check the options against what is trained on; a policy plays in one environment.

        Args:
            num_envs: Number of environments.

        Raises:
            ValueError: If there are more micro-batches than environments.
        """
        check_at_most_envs("num_micro_batches", self.num_micro_batches, num_envs)
        if self.teacher_action_share > 0 and round(self.teacher_action_share * num_envs) == 0:
            warnings.warn(
                f"teacher_action_share is {self.teacher_action_share}, which has no effect: of"
                f" num_envs, {num_envs}, it rounds to none. Raise one of them.",
                stacklevel=4,
            )

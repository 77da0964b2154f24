"""The options of TbpttDistillation: named, typed, validated in one place."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from rsl_tbptt.algorithms.update.options import (
    Options,
    check_at_most_envs,
    check_choice,
    check_chunks_or_budget,
    check_count,
    check_positive,
    is_finite,
    warn_beyond_rollout,
)
from rsl_tbptt.core.scan import resolve_engine
from rsl_tbptt.core.windows import Tail, tbptt_schedule


@dataclass(frozen=True, kw_only=True)
class DistillationOptions(Options):
    """Options of :class:`TbpttDistillation`; names and meanings are rsl_rl's where it has them."""

    algorithm: ClassVar[str] = "TbpttDistillation"

    num_learning_epochs: int = 1
    """Passes over each rollout. Every pass starts again from the state at the rollout's start."""

    gradient_length: int = 15
    """k2, the steps the gradient flows back. At most the rollout's length has an effect."""

    update_length: int | None = None
    """k1, the steps between two optimiser steps. None means ``gradient_length``."""

    loss_reduction: Literal["mean", "sum"] = "mean"
    """"mean" divides by the robot-steps of a full optimiser step; "sum" sums over steps as rsl_rl
    does, so that the gradient grows with ``update_length``."""

    tail: Tail = "flush"
    """Leftover steps when the rollout is no multiple of ``update_length``: "flush" trains on them,
    "drop" only runs them forward, as rsl_rl does."""

    num_env_chunks: int = 1
    """At least this many groups of environments are run one after the other. Divides the memory of
    the update by about as much; the gradient stays the same."""

    memory_budget_gb: float | None = None
    """What an update may take, in gigabytes of 10^9 bytes beyond models, optimiser and storage: as
    many environment chunks are made as that needs, found out before training. None does not limit
    it."""

    scan_engine: str = "auto"
    """How LSTM and GRU run over a window: "auto", or an engine of docs/distillation.md."""

    loss_type: str | Callable[..., Any] = "mse"
    """"mse", "huber", "kl" (teacher's to student's Gaussian), "nll" (of the teacher's actions), or
    the qualified name ("module:function") of an element-wise loss of actions and labels."""

    learning_rate: float = 1e-3
    """Step size of the optimiser."""

    max_grad_norm: float | None = 1.0
    """Threshold of the gradient norm. None does not clip."""

    optimizer: str = "adam"
    """rsl_rl's name of the optimiser: "adam", "adamw", "sgd" or "rmsprop"."""

    use_mixed_precision: bool = False
    """Run the update's matrix products in bfloat16; parameters and state stay float32."""

    teacher_checkpoint: str | None = None
    """Checkpoint to load the teacher from, of PPO or distillation, when training starts and no
    other checkpoint brought one. None leaves it to the runner."""

    teacher_action_share: float = 0.0
    """Share of the environments, from 0 to 1, that act with the teacher's action at the start of
    training, drawn anew for every rollout (DAgger). Labels are the teacher's everywhere."""

    teacher_action_updates: int | None = None
    """Updates over which ``teacher_action_share`` falls linearly to 0. None keeps it constant."""

    batch_teacher_labels: bool = False
    """Compute the labels of a teacher without memory at the start of ``update()``, for the whole
    rollout in few large batches, instead of at each step. The same labels."""

    grad_reduce_bucket_mb: float = 25.0
    """Size of the buffers in which gradients are summed over processes, in megabytes."""

    @property
    def num_micro_batches(self) -> int:
        """Temporary."""
        return self.num_env_chunks

    def __post_init__(self) -> None:
        """Check what can be checked without knowing the rollout.

        Raises:
            ValueError: If a value cannot work on any rollout.
        """
        super().__post_init__()
        for name in ("num_learning_epochs", "gradient_length", "num_env_chunks"):
            check_count(name, getattr(self, name))
        if self.update_length is not None:
            check_count("update_length", self.update_length)
        for name in ("learning_rate", "max_grad_norm", "grad_reduce_bucket_mb"):
            check_positive(name, getattr(self, name))
        check_chunks_or_budget(self.num_env_chunks, self.memory_budget_gb)
        check_choice("loss_reduction", self.loss_reduction, "mean", "sum")
        self._check_teacher_actions()
        tbptt_schedule(1, self.gradient_length, self.update_length, self.tail)
        resolve_engine(self.scan_engine)

    def _check_teacher_actions(self) -> None:
        share = self.teacher_action_share
        if not (is_finite(share) and 0 <= share <= 1):
            raise ValueError(
                f"teacher_action_share is {share!r}, expected a number from 0"
                " to 1: give 30 % of the environments as 0.3."
            )
        if self.teacher_action_share > 0 and self.batch_teacher_labels:
            raise ValueError(
                "batch_teacher_labels is True, expected False with teacher_action_share"
                f" {self.teacher_action_share}: the teacher acts with its labels in the rollout."
            )
        if self.teacher_action_updates is None:
            return
        check_count("teacher_action_updates", self.teacher_action_updates)
        if self.teacher_action_share == 0:
            warnings.warn(
                f"teacher_action_updates is {self.teacher_action_updates}, which has no effect:"
                " teacher_action_share is 0. Set teacher_action_share, or leave it at None.",
                stacklevel=6,
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
            ValueError: If there are more chunks than environments.
        """
        check_at_most_envs("num_env_chunks", self.num_env_chunks, num_envs)
        if self.teacher_action_share > 0 and round(self.teacher_action_share * num_envs) == 0:
            warnings.warn(
                f"teacher_action_share is {self.teacher_action_share}, which has no effect: of"
                f" num_envs, {num_envs}, it rounds to none. Raise one of them.",
                stacklevel=4,
            )

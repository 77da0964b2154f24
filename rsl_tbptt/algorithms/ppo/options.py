"""The options of TbpttPPO: named, typed, validated in one place."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from rsl_tbptt.algorithms.update.options import (
    Options,
    check_at_most_envs,
    check_between,
    check_choice,
    check_chunks_or_budget,
    check_count,
    check_positive,
    is_finite,
    warn_beyond_rollout,
)
from rsl_tbptt.core.scan import resolve_engine


@dataclass(frozen=True, kw_only=True)
class PpoOptions(Options):
    """Options of :class:`TbpttPPO`; names, meanings and defaults are rsl_rl's where it has them."""

    algorithm: ClassVar[str] = "TbpttPPO"

    gradient_length: int | None = None
    """k2, the steps the gradient flows back. None means the whole rollout."""

    minibatch_unit: Literal["env", "window"] = "env"
    """What a mini-batch consists of: "env", whole environments, replayed from the rollout's start
    with the current weights; "window", windows of ``gradient_length`` steps drawn over time and
    environments, each replayed from the state the rollout stored at its start."""

    burn_in_length: int = 0
    """Steps replayed without gradient before each window with ``minibatch_unit="window"``, to
    refresh its stored state. No window reaches back before its rollout."""

    num_env_chunks: int = 1
    """At least this many groups of a mini-batch's environments are run one after the other: less
    memory, the same gradient."""

    memory_budget_gb: float | None = None
    """What an update may take, in gigabytes of 10^9 bytes beyond models, optimiser and storage: as
    many environment chunks are made as that needs, found out before training. None does not limit
    it."""

    shuffle_envs: bool = True
    """Draw the environments or windows of each mini-batch anew every epoch; False takes them in
    order."""

    loss_reduction: Literal["mean", "episode_mean"] = "mean"
    """"mean" weighs every robot-step of a mini-batch the same; "episode_mean" every episode in the
    rollout, whatever its length."""

    policy_loss: Literal["clip", "kl_penalty"] = "clip"
    """"clip" is the clipped surrogate; "kl_penalty" the plain one with a penalty on the KL
    divergence whose coefficient follows ``desired_kl``."""

    clip_param_high: float | None = None
    """How far the probability ratio may rise above 1. None means ``clip_param``."""

    dual_clip_param: float | None = None
    """Where the advantage is negative the loss stops growing at this multiple of it, more than 1.
    None does not limit it."""

    kl_penalty_coef: float = 1.0
    """The first coefficient of ``policy_loss="kl_penalty"``."""

    student_action_std: float | None = None
    """Standard deviation of the actions when a distilled student becomes the actor. None keeps the
    student's."""

    critic_warmup_iterations: int = 0
    """Updates that train only the critic after a distilled student became the actor."""

    teacher_cfg: Mapping[str, Any] | None = None
    """"class_name" and keyword arguments of the model of the student's teacher, on observation set
    "teacher"; its parameters come with the student's checkpoint. None if nothing pulls to it."""

    teacher_kl_coef: float = 0.0
    """Weight of the KL divergence from the teacher's policy when a distilled student became the
    actor. Needs ``teacher_cfg``."""

    teacher_kl_updates: int | None = None
    """Updates after the warm-up over which that weight falls linearly to 0. None keeps it."""

    scan_engine: str = "auto"
    """How LSTM and GRU run over a window: "auto", or an engine of docs/distillation.md."""

    num_learning_epochs: int = 5
    """Passes over each rollout."""

    num_mini_batches: int = 4
    """Optimiser steps per pass, each on its share of the environments."""

    clip_param: float = 0.2
    """How far the probability ratio may leave 1, and values their old ones."""

    gamma: float = 0.99
    """Discount factor per step."""

    lam: float = 0.95
    """Lambda of generalised advantage estimation."""

    value_loss_coef: float = 1.0
    """Weight of the value loss."""

    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""

    learning_rate: float = 1e-3
    """Step size of the optimiser, the first one with the adaptive schedule."""

    max_grad_norm: float | None = 1.0
    """Threshold of the gradient norm, of actor and critic each. None does not clip."""

    optimizer: str = "adam"
    """rsl_rl's name of the optimiser."""

    use_clipped_value_loss: bool = True
    """Whether a value stops improving once it is ``clip_param`` away from the old one."""

    schedule: Literal["adaptive", "fixed"] = "adaptive"
    """"adaptive" follows ``desired_kl`` with the learning rate."""

    desired_kl: float | None = 0.01
    """Mean KL divergence per mini-batch that the adaptive schedule aims at."""

    normalize_advantage_per_mini_batch: bool = False
    """Normalise advantages over each mini-batch instead of over the rollout."""

    use_mixed_precision: bool = False
    """Run the update's matrix products in bfloat16; parameters and state stay float32."""

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
        for name in ("num_learning_epochs", "num_mini_batches", "num_env_chunks"):
            check_count(name, getattr(self, name))
        check_chunks_or_budget(self.num_env_chunks, self.memory_budget_gb)
        for name in ("gradient_length", "teacher_kl_updates"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        for name in ("burn_in_length", "critic_warmup_iterations"):
            if getattr(self, name) != 0:
                check_count(name, getattr(self, name))
        positive = ("clip_param", "clip_param_high", "learning_rate", "max_grad_norm", "desired_kl")
        for name in (*positive, "kl_penalty_coef", "student_action_std", "grad_reduce_bucket_mb"):
            check_positive(name, getattr(self, name))
        check_between("gamma", self.gamma, 0, 1)
        check_between("lam", self.lam, 0, 1)
        check_between("value_loss_coef", self.value_loss_coef, 0, math.inf)
        check_between("entropy_coef", self.entropy_coef, -math.inf, math.inf)
        if self.teacher_kl_coef != 0:
            check_positive("teacher_kl_coef", self.teacher_kl_coef)
        check_choice("schedule", self.schedule, "adaptive", "fixed")
        check_choice("minibatch_unit", self.minibatch_unit, "env", "window")
        check_choice("loss_reduction", self.loss_reduction, "mean", "episode_mean")
        check_choice("policy_loss", self.policy_loss, "clip", "kl_penalty")
        self._check_contradictions()
        resolve_engine(self.scan_engine)

    def _check_contradictions(self) -> None:
        """Check options that only work together.

        Raises:
            ValueError: If two options contradict each other.
        """
        if self.burn_in_length and self.minibatch_unit == "env":
            raise ValueError(
                f"burn_in_length is {self.burn_in_length}, expected 0 with minibatch_unit 'env':"
                " whole environments are replayed from the rollout's start. Use 'window'."
            )
        if self.teacher_kl_updates is not None and self.teacher_kl_coef == 0:
            warnings.warn(
                f"teacher_kl_updates is {self.teacher_kl_updates}, which has no effect while"
                " teacher_kl_coef is 0. Set teacher_kl_coef, or leave it at None.",
                stacklevel=7,
            )
        if (self.teacher_kl_coef > 0) != (self.teacher_cfg is not None):
            raise ValueError(
                f"teacher_kl_coef is {self.teacher_kl_coef} and teacher_cfg is {self.teacher_cfg},"
                " expected both or neither: the pull needs the teacher's model."
            )
        dual_clip = self.dual_clip_param
        if dual_clip is not None and not (is_finite(dual_clip) and dual_clip > 1):
            raise ValueError(
                f"dual_clip_param is {dual_clip}, expected more than 1, for example 3."
            )
        if self.policy_loss == "clip":
            if self.kl_penalty_coef != PpoOptions.kl_penalty_coef:
                warnings.warn(
                    f"kl_penalty_coef is {self.kl_penalty_coef}, which has no effect with"
                    " policy_loss 'clip'. Use 'kl_penalty', or leave it at its default.",
                    stacklevel=7,
                )
            return
        if self.num_learning_epochs * self.num_mini_batches == 1:
            raise ValueError(
                "num_learning_epochs and num_mini_batches are 1, expected more optimiser steps with"
                " policy_loss 'kl_penalty': before the only one the KL divergence is always 0."
            )
        for name in ("clip_param_high", "dual_clip_param"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name} is {getattr(self, name)}, expected None with policy_loss"
                    " 'kl_penalty', which clips nothing."
                )
        if self.desired_kl is None or self.schedule == "adaptive":
            raise ValueError(
                f"schedule is '{self.schedule}' and desired_kl is {self.desired_kl}, expected"
                " 'fixed' and a number with policy_loss 'kl_penalty': its coefficient follows"
                " desired_kl instead of the learning rate."
            )

    def check_rollout(self, num_steps: int, recurrent: bool) -> None:
        """Warn of options that have no effect on models and rollouts as they are.

        Args:
            num_steps: ``num_steps_per_env``.
            recurrent: Whether actor or critic has memory.
        """
        for name in () if recurrent else ("gradient_length", "minibatch_unit"):
            default = getattr(PpoOptions, name)
            if getattr(self, name) != default:
                warnings.warn(
                    f"{name} is {getattr(self, name)!r}, which has no effect: neither actor nor"
                    f" critic is recurrent. Leave it at {default!r}.",
                    stacklevel=4,
                )
        one_window = self.gradient_length is None or self.gradient_length >= num_steps
        if recurrent and self.minibatch_unit == "window" and one_window:
            warnings.warn(
                f"minibatch_unit is 'window', which acts as 'env' while gradient_length,"
                f" {self.gradient_length}, covers the rollout of {num_steps} steps. Lower it.",
                stacklevel=4,
            )
        warn_beyond_rollout("gradient_length", self.gradient_length, num_steps)

    def check_training(self, num_steps: int, num_envs: int, recurrent: bool) -> None:
        """Check the options against what is trained on; a policy plays in one environment.

        Args:
            num_steps: ``num_steps_per_env``.
            num_envs: Number of environments.
            recurrent: Whether actor or critic has memory.

        Raises:
            ValueError: If there are more mini-batches than environments, or samples without
                memory, to fill them, or more chunks than environments.
        """
        if recurrent:
            check_at_most_envs("num_mini_batches", self.num_mini_batches, num_envs)
        elif self.num_mini_batches > num_steps * num_envs:
            raise ValueError(
                f"num_mini_batches is {self.num_mini_batches}, expected at most the samples of a"
                f" rollout, {num_steps * num_envs}: each mini-batch needs one."
            )
        check_at_most_envs("num_env_chunks", self.num_env_chunks, num_envs)

    def check_normalization(self, num_samples: int) -> None:
        """Check how many advantages are normalised together.

        Args:
            num_samples: Their smallest number.

        Raises:
            ValueError: If it is 1. rsl_rl divides by the NaN that is its standard deviation then.
        """
        if num_samples > 1:
            return
        per_mini_batch = self.normalize_advantage_per_mini_batch
        what = "mini-batch with normalize_advantage_per_mini_batch" if per_mini_batch else "rollout"
        fix = "Lower num_mini_batches" if per_mini_batch else "Raise num_steps_per_env"
        raise ValueError(
            f"The number of samples is {num_samples} in a {what}, expected at least 2: advantages"
            f" are divided by their standard deviation. {fix}, or raise num_envs."
        )

    def check_symmetry(self) -> None:
        """Check that no option is set which rsl_rl's own update lacks; symmetry leaves it to that.

        Raises:
            ValueError: If one is.
        """
        for name in _LACKING_WITH_SYMMETRY:
            default = getattr(PpoOptions, name)
            if getattr(self, name) != default:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}, expected {default!r} with symmetry_cfg:"
                    " rsl_rl's own update mirrors the samples then, and it lacks this option."
                )


_LACKING_WITH_SYMMETRY = (
    "num_env_chunks",
    "memory_budget_gb",
    "shuffle_envs",
    "loss_reduction",
    "policy_loss",
    "clip_param_high",
    "dual_clip_param",
    "critic_warmup_iterations",
    "teacher_kl_coef",
)

"""The options of TbpttPPO: named, typed, documented and checked in one place."""

import math
import warnings
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from rsl_tbptt.algorithms.update.checks import (
    Between,
    Count,
    MoreThan,
    Positive,
    check_at_most_envs,
    warn_beyond_rollout,
)
from rsl_tbptt.algorithms.update.options import ClippingNorm, Options, RenamedTo


@dataclass(kw_only=True)
class PpoOptions(Options):
    """Options of :class:`TbpttPPO`; names, meanings and defaults are rsl_rl's where it has them."""

    gradient_length: Annotated[int | None, Count()] = None
    """Steps the gradient flows back, in environment steps; None means the whole rollout."""

    minibatch_unit: Literal["env", "window"] = "env"
    """What mini-batches consist of.

    ``"env"`` takes whole environments, replayed from the rollout's start with the current weights;
    ``"window"`` takes windows of ``gradient_length`` steps, drawn over time and environments, each
    from the state that the rollout stored before it.
    """

    burn_in_length: Annotated[int, Count(or_zero=True)] = 0
    """Steps replayed without gradient before each window, to refresh its stored state."""

    shuffle_envs: bool = True
    """Whether every epoch draws the environments or windows of its mini-batches anew."""

    loss_reduction: Literal["mean", "episode_mean"] = "mean"
    """Whether every robot-step of a mini-batch weighs the same, or every episode in the rollout."""

    policy_loss: Literal["clip", "kl_penalty"] = "clip"
    """The clipped surrogate, or ``"kl_penalty"``, the plain one with an adaptive penalty.

    The coefficient of the KL divergence is halved below ``desired_kl / 1.5`` and doubled above
    ``1.5 * desired_kl``, which needs ``schedule="fixed"``.
    """

    kl_penalty_coef: Annotated[float, Positive()] = 1.0
    """The first coefficient of ``policy_loss="kl_penalty"``."""

    clip_param_high: Annotated[float | None, Positive()] = None
    """How far the probability ratio may rise above 1; None means ``clip_param``."""

    dual_clip_param: Annotated[float | None, MoreThan(1, ", for example 3")] = None
    """Multiple, above 1, of a negative advantage where its loss stops growing; None: nowhere."""

    student_action_std: Annotated[float | None, Positive()] = None
    """Standard deviation of the actions when a student becomes the actor; None keeps its own."""

    critic_warmup_iterations: Annotated[int, Count(or_zero=True)] = 0
    """Updates that train only the critic after a distilled student became the actor."""

    teacher_cfg: dict[str, Any] | None = None
    """``"class_name"`` and arguments of the model of a teacher that the actor imitates.

    It sees the observation set ``"teacher"``. Its parameters come with a distilled student's
    checkpoint, or from ``teacher_checkpoint``.
    """

    teacher_checkpoint: str | None = None
    """Checkpoint, of PPO or distillation, whose actor or whose teacher becomes the teacher.

    It is loaded when training starts, unless the runner loaded a checkpoint that brings a teacher.
    ``RUN/latest`` is the newest of that folder that can be loaded.
    """

    teacher_coef: Annotated[float, Positive(or_zero=True)] = 0.0
    """Weight of the teacher's loss in the policy loss; 0 leaves the teacher out."""

    teacher_kl_coef: Annotated[float | None, RenamedTo("teacher_coef")] = None
    """The old name of ``teacher_coef``, which the next release drops."""

    teacher_loss: Literal["kl", "mse"] = "kl"
    """The KL divergence from the teacher's policy, or the squared error of its mean action."""

    teacher_schedule: Literal["linear", "exponential", "return"] = "linear"
    """How ``teacher_coef`` falls to ``teacher_coef_end``: over updates, or with the return.

    ``"return"`` multiplies what lies between them by ``1 - return / teacher_return``, cut to 0 and
    1, with the policy's mean return over at least the last 100 episodes.
    """

    teacher_coef_end: Annotated[float, Positive(or_zero=True)] = 0.0
    """The weight at the end of the schedule; above 0 with ``"exponential"``."""

    teacher_updates: Annotated[int | None, Count()] = None
    """Updates after the critic's warm-up over which the weight falls; None keeps it."""

    teacher_kl_updates: Annotated[int | None, RenamedTo("teacher_updates")] = None
    """The old name of ``teacher_updates``, which the next release drops."""

    teacher_return: Annotated[float | None, Positive()] = None
    """Mean return, without RND's rewards, at which ``"return"`` is at ``teacher_coef_end``."""

    num_learning_epochs: Annotated[int, Count()] = 5
    """Passes over each rollout."""

    num_mini_batches: Annotated[int, Count()] = 4
    """Optimiser steps per pass, each on its share of the environments."""

    clip_param: Annotated[float, Positive()] = 0.2
    """How far the probability ratio may leave 1, and values their old ones."""

    gamma: Annotated[float, Between(0, 1)] = 0.99
    """Discount factor per environment step."""

    lam: Annotated[float, Between(0, 1)] = 0.95
    """Lambda of generalised advantage estimation."""

    value_loss_coef: Annotated[float, Between(0, math.inf)] = 1.0
    """Weight of the value loss."""

    entropy_coef: Annotated[float, Between(-math.inf, math.inf)] = 0.01
    """Weight of the entropy bonus."""

    learning_rate: Annotated[float, Positive()] = 1e-3
    """Step size of the optimiser, the first one with the adaptive schedule."""

    max_grad_norm: ClippingNorm = 1.0
    """Norm that the gradients of actor and critic are each clipped to; None does not clip."""

    use_clipped_value_loss: bool = True
    """Whether a value stops improving once it is ``clip_param`` away from the old one."""

    schedule: Literal["adaptive", "fixed"] = "adaptive"
    """``"adaptive"`` follows ``desired_kl`` with the learning rate; ``"fixed"`` does not."""

    desired_kl: Annotated[float | None, Positive()] = 0.01
    """Mean KL divergence per mini-batch that the adaptive schedule aims at."""

    normalize_advantage_per_mini_batch: bool = False
    """Whether advantages are normalised over each mini-batch instead of over the rollout."""

    @classmethod
    def algorithm(cls) -> str:
        """Return the name of the algorithm, as one writes it in a config."""
        return "TbpttPPO"

    def _check_together(self) -> None:
        if self.burn_in_length and self.minibatch_unit == "env":
            raise ValueError(
                f"burn_in_length is {self.burn_in_length}, expected 0 with minibatch_unit 'env':"
                " whole environments are replayed from the rollout's start. Use 'window'."
            )
        self._check_teacher()
        if self.policy_loss != "kl_penalty":
            if self.kl_penalty_coef != PpoOptions.kl_penalty_coef:
                warnings.warn(
                    f"kl_penalty_coef is {self.kl_penalty_coef}, which has no effect with"
                    f" policy_loss '{self.policy_loss}'. Use 'kl_penalty', or leave it at its"
                    " default.",
                    stacklevel=5,
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

    def _check_teacher(self) -> None:
        coef, last, schedule = self.teacher_coef, self.teacher_coef_end, self.teacher_schedule
        by_return, updates = schedule == "return", self.teacher_updates
        if coef > 0 and self.teacher_cfg is None:
            raise ValueError(
                f"teacher_coef is {coef} and teacher_cfg is None, expected both: imitation needs"
                " the teacher's model."
            )
        if last > coef > 0:
            raise ValueError(
                f"teacher_coef_end is {last}, expected at most teacher_coef, {coef}: the weight of"
                " the teacher falls."
            )
        if coef > 0 and schedule == "exponential" and (last == 0 or updates is None):
            raise ValueError(
                f"teacher_coef_end is {last} and teacher_updates is {updates}, expected a positive"
                " number and a count with teacher_schedule 'exponential', which falls to the one"
                " within the other and never reaches 0."
            )
        if coef > 0 and by_return and self.teacher_return is None:
            raise ValueError(
                "teacher_return is None, expected a positive number with teacher_schedule"
                " 'return': the mean return at which teacher_coef_end is reached."
            )
        if coef == 0:
            unused = [field.name for field in fields(self) if field.name.startswith("teacher_")]
            self._warn_unused(unused, "while teacher_coef is 0. Set teacher_coef")
        elif by_return:
            reason = "with teacher_schedule 'return'. Use another schedule"
            self._warn_unused(["teacher_updates"], reason)
        else:
            reason = f"with teacher_schedule '{schedule}'. Use 'return'"
            self._warn_unused(["teacher_return"], reason)
            if updates is None:
                reason = "while teacher_updates is None. Set teacher_updates"
                self._warn_unused(["teacher_coef_end"], reason)

    def _warn_unused(self, names: list[str], reason: str) -> None:
        """Warn of those that are set, with a reason that ends in the fix."""
        unused = [name for name in names if getattr(self, name) != getattr(PpoOptions, name)]
        if unused:
            listed = " and ".join(f"{name} is {getattr(self, name)!r}" for name in unused)
            warnings.warn(
                f"{listed}, which has no effect {reason}, or leave it at its default.",
                stacklevel=7,
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
                memory, to fill them, or more micro-batches than environments.
        """
        if recurrent:
            check_at_most_envs("num_mini_batches", self.num_mini_batches, num_envs)
        elif self.num_mini_batches > num_steps * num_envs:
            raise ValueError(
                f"num_mini_batches is {self.num_mini_batches}, expected at most the samples of a"
                f" rollout, {num_steps * num_envs}: each mini-batch needs one."
            )
        check_at_most_envs("num_micro_batches", self.num_micro_batches, num_envs)

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
        for name in (
            "num_micro_batches",
            "memory_budget_gb",
            "shuffle_envs",
            "loss_reduction",
            "policy_loss",
            "clip_param_high",
            "dual_clip_param",
            "critic_warmup_iterations",
            "teacher_coef",
            "auxiliary",
        ):
            default = getattr(PpoOptions, name)
            if getattr(self, name) != default:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}, expected {default!r} with symmetry_cfg:"
                    " rsl_rl's own update mirrors the samples then, and it lacks this option."
                )

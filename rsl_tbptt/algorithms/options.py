"""The options of the algorithms: named, typed, validated in one place."""

import dataclasses
import difflib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from rsl_tbptt.core.scan import resolve_engine
from rsl_tbptt.core.windows import Tail, tbptt_schedule

AnyOptions = TypeVar("AnyOptions", bound="Options")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the options of all algorithms share: parsing with clear errors."""

    @classmethod
    def parse(cls: type[AnyOptions], options: Mapping[str, Any]) -> AnyOptions:
        """Build the options from keyword arguments.

        Raises:
            ValueError: If a name is unknown (the nearest one is proposed) or a value is not valid.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean '{near[0]}'?" if near else f"known options are {known}."
                raise ValueError(f"Unknown option '{name}' of {cls.__name__}: {hint}")
        return cls(**options)


@dataclass(frozen=True, kw_only=True)
class DistillationOptions(Options):
    """Options of :class:`TbpttDistillation`; names and meanings are rsl_rl's where it has them."""

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

    scan_engine: str = "auto"
    """How recurrent layers run over a window: "auto", "fused" or "reference"."""

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
    """Checkpoint to load the teacher from, of PPO or distillation. None leaves it to the runner."""

    teacher_action_share: float = 0.0
    """Share of the environments, from 0 to 1, that act with the teacher's action at the start of
    training, drawn anew for every rollout (DAgger). Labels are the teacher's everywhere."""

    teacher_action_updates: int | None = None
    """Updates over which ``teacher_action_share`` falls linearly to 0. None keeps it constant."""

    grad_reduce_bucket_mb: float = 25.0
    """Size of the buffers in which gradients are summed over processes, in megabytes."""

    def __post_init__(self) -> None:
        """Check what can be checked without knowing the rollout.

        Raises:
            ValueError: If a value cannot work on any rollout.
        """
        for name in ("num_learning_epochs", "gradient_length", "num_env_chunks"):
            _check_count(name, getattr(self, name))
        if self.update_length is not None:
            _check_count("update_length", self.update_length)
        for name in ("learning_rate", "max_grad_norm", "grad_reduce_bucket_mb"):
            _check_positive(name, getattr(self, name))
        _check_choice("loss_reduction", self.loss_reduction, "mean", "sum")
        self._check_teacher_actions()
        tbptt_schedule(1, self.gradient_length, self.update_length, self.tail)
        resolve_engine(self.scan_engine)

    def _check_teacher_actions(self) -> None:
        if not 0 <= self.teacher_action_share <= 1:
            raise ValueError(
                f"teacher_action_share is {self.teacher_action_share!r}, expected a number from 0"
                " to 1: give 30 % of the environments as 0.3."
            )
        if self.teacher_action_updates is None:
            return
        _check_count("teacher_action_updates", self.teacher_action_updates)
        if self.teacher_action_share == 0:
            warnings.warn(
                f"teacher_action_updates is {self.teacher_action_updates}, which has no effect:"
                " teacher_action_share is 0. Set teacher_action_share, or leave it at None.",
                stacklevel=6,
            )

    def check_rollout(self, num_steps: int, num_envs: int) -> None:
        """Check the options against the size of the rollout.

        Args:
            num_steps: ``num_steps_per_env``.
            num_envs: Number of environments.

        Raises:
            ValueError: If there are more chunks than environments.
        """
        _check_at_most_envs("num_env_chunks", self.num_env_chunks, num_envs)
        if self.teacher_action_share > 0 and round(self.teacher_action_share * num_envs) == 0:
            warnings.warn(
                f"teacher_action_share is {self.teacher_action_share}, which has no effect: of"
                f" num_envs, {num_envs}, it rounds to none. Raise one of them.",
                stacklevel=4,
            )
        for name in ("gradient_length", "update_length"):
            _warn_beyond_rollout(name, getattr(self, name), num_steps)


@dataclass(frozen=True, kw_only=True)
class PpoOptions(Options):
    """Options of :class:`TbpttPPO`; names, meanings and defaults are rsl_rl's where it has them."""

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
    """How recurrent layers run over a window: "auto", "fused" or "reference"."""

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

    max_grad_norm: float = 1.0
    """Threshold of the gradient norm, of actor and critic each."""

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

    def __post_init__(self) -> None:
        """Check what can be checked without knowing the rollout.

        Raises:
            ValueError: If a value cannot work on any rollout.
        """
        for name in ("num_learning_epochs", "num_mini_batches", "num_env_chunks"):
            _check_count(name, getattr(self, name))
        for name in ("gradient_length", "teacher_kl_updates"):
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name))
        for name in ("burn_in_length", "critic_warmup_iterations"):
            if getattr(self, name) != 0:
                _check_count(name, getattr(self, name))
        positive = ("clip_param", "clip_param_high", "learning_rate", "max_grad_norm", "desired_kl")
        for name in (*positive, "kl_penalty_coef", "student_action_std", "grad_reduce_bucket_mb"):
            _check_positive(name, getattr(self, name))
        if self.teacher_kl_coef != 0:
            _check_positive("teacher_kl_coef", self.teacher_kl_coef)
        _check_choice("schedule", self.schedule, "adaptive", "fixed")
        _check_choice("minibatch_unit", self.minibatch_unit, "env", "window")
        _check_choice("loss_reduction", self.loss_reduction, "mean", "episode_mean")
        _check_choice("policy_loss", self.policy_loss, "clip", "kl_penalty")
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
        if self.dual_clip_param is not None and not self.dual_clip_param > 1:
            raise ValueError(
                f"dual_clip_param is {self.dual_clip_param}, expected more than 1, for example 3."
            )
        if self.policy_loss == "clip":
            return
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

    def check_rollout(self, num_steps: int, num_envs: int, recurrent: bool) -> None:
        """Check the options against the size of the rollout.

        Args:
            num_steps: ``num_steps_per_env``.
            num_envs: Number of environments.
            recurrent: Whether actor or critic has memory.

        Raises:
            ValueError: If there are more mini-batches than environments to fill them.
        """
        if recurrent:
            _check_at_most_envs("num_mini_batches", self.num_mini_batches, num_envs)
        for name in () if recurrent else ("gradient_length", "minibatch_unit"):
            default = getattr(PpoOptions, name)
            if getattr(self, name) != default:
                warnings.warn(
                    f"{name} is {getattr(self, name)!r}, which has no effect: neither actor nor"
                    f" critic is recurrent. Leave it at {default!r}.",
                    stacklevel=4,
                )
        _check_at_most_envs("num_env_chunks", self.num_env_chunks, num_envs)
        _warn_beyond_rollout("gradient_length", self.gradient_length, num_steps)

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
    "shuffle_envs",
    "loss_reduction",
    "policy_loss",
    "clip_param_high",
    "dual_clip_param",
    "critic_warmup_iterations",
    "teacher_kl_coef",
)


def _check_choice(name: str, value: object, *choices: str) -> None:
    if value not in choices:
        expected = " or ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} is {value!r}, expected {expected}.")


def _check_at_most_envs(name: str, value: int, num_envs: int) -> None:
    if value > num_envs:
        raise ValueError(f"{name} is {value}, expected at most num_envs, {num_envs}.")


def _warn_beyond_rollout(name: str, value: int | None, num_steps: int) -> None:
    if value is not None and value > num_steps:
        warnings.warn(
            f"{name} is {value}, more than num_steps_per_env, {num_steps}: windows do not reach"
            f" over a rollout, so it acts as {num_steps}. Raise num_steps_per_env for more.",
            stacklevel=5,
        )


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        hint = " Use None to keep the share." if name == "teacher_action_updates" else ""
        raise ValueError(f"{name} is {value!r}, expected an integer of at least 1.{hint}")


def _check_positive(name: str, value: float | None) -> None:
    if value is not None and not value > 0:
        hint = " Use None to not clip." if name == "max_grad_norm" else ""
        raise ValueError(f"{name} is {value!r}, expected a positive number.{hint}")

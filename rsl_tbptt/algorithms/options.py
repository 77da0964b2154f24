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
        if self.loss_reduction not in ("mean", "sum"):
            raise ValueError(
                f"loss_reduction is {self.loss_reduction!r}, expected 'mean' or 'sum'."
            )
        tbptt_schedule(1, self.gradient_length, self.update_length, self.tail)
        resolve_engine(self.scan_engine)

    def check_rollout(self, num_steps: int, num_envs: int) -> None:
        """Check the options against the size of the rollout.

        Args:
            num_steps: ``num_steps_per_env``.
            num_envs: Number of environments.

        Raises:
            ValueError: If there are more chunks than environments.
        """
        _check_at_most_envs("num_env_chunks", self.num_env_chunks, num_envs)
        for name in ("gradient_length", "update_length"):
            _warn_beyond_rollout(name, getattr(self, name), num_steps)


@dataclass(frozen=True, kw_only=True)
class PpoOptions(Options):
    """Options of :class:`TbpttPPO`; names, meanings and defaults are rsl_rl's where it has them."""

    gradient_length: int | None = None
    """k2, the steps the gradient flows back. None means the whole rollout."""

    num_env_chunks: int = 1
    """At least this many groups of a mini-batch's environments are run one after the other: less
    memory, the same gradient."""

    shuffle_envs: bool = True
    """Draw the environments of each mini-batch anew every epoch; False takes them in order."""

    clip_param_high: float | None = None
    """How far the probability ratio may rise above 1. None means ``clip_param``."""

    student_action_std: float | None = None
    """Standard deviation of the actions when a distilled student becomes the actor. None keeps the
    student's."""

    critic_warmup_iterations: int = 0
    """Updates that train only the critic after a distilled student became the actor."""

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
        if self.gradient_length is not None:
            _check_count("gradient_length", self.gradient_length)
        if self.critic_warmup_iterations:
            _check_count("critic_warmup_iterations", self.critic_warmup_iterations)
        positive = ("clip_param", "clip_param_high", "learning_rate", "max_grad_norm", "desired_kl")
        for name in (*positive, "student_action_std", "grad_reduce_bucket_mb"):
            _check_positive(name, getattr(self, name))
        if self.schedule not in ("adaptive", "fixed"):
            raise ValueError(f"schedule is {self.schedule!r}, expected 'adaptive' or 'fixed'.")
        resolve_engine(self.scan_engine)

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
        elif self.gradient_length is not None:
            warnings.warn(
                f"gradient_length is {self.gradient_length}, which has no effect: neither actor nor"
                " critic is recurrent. Leave it at None.",
                stacklevel=4,
            )
        _check_at_most_envs("num_env_chunks", self.num_env_chunks, num_envs)
        _warn_beyond_rollout("gradient_length", self.gradient_length, num_steps)


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
        raise ValueError(f"{name} is {value!r}, expected an integer of at least 1.")


def _check_positive(name: str, value: float | None) -> None:
    if value is not None and not value > 0:
        hint = " Use None to not clip." if name == "max_grad_norm" else ""
        raise ValueError(f"{name} is {value!r}, expected a positive number.{hint}")

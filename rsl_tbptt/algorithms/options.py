"""The options of both algorithms: their own, and the groups that extensions declare."""

import difflib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from rsl_tbptt.algorithms.fine_tuning import FineTuningOptions
from rsl_tbptt.algorithms.heads import HeadsOptions
from rsl_tbptt.algorithms.held_out import HeldOutOptions
from rsl_tbptt.algorithms.replay import ReplayOptions
from rsl_tbptt.algorithms.teachers import TeacherOptions
from rsl_tbptt.algorithms.weight_average import AverageOptions
from rsl_tbptt.core.windows import Tail
from rsl_tbptt.extensions import Rule, between, count, parse_fields, positive, warn_all


def check_at_most_envs(name: str, value: int, num_envs: int) -> None:
    """Check that a count does not exceed the number of environments.

    Raises:
        ValueError: If it does.
    """
    if value > num_envs:
        raise ValueError(f"{name} is {value}, expected at most num_envs, {num_envs}.")


def beyond_rollout(name: str, value: int | None, num_steps: int) -> Iterator[str]:
    """Yield a warning if a number of steps exceeds the rollout, which then takes its place."""
    if value is not None and value > num_steps:
        yield (
            f"{name} is {value}, more than num_steps_per_env, {num_steps}: windows do not reach"
            f" over a rollout, so it acts as {num_steps}. Raise num_steps_per_env for more."
        )


_UPDATES = Rule(
    lambda value: value == "auto" or count().accepts(value),
    "'auto' or an integer of at least 1",
    " Use None to keep the rate.",
)

ClippingNorm = Annotated[float | None, positive(math.inf, hint=" Use None to not clip.")]
"""Configs of rsl_rl's PPO disable clipping by inf, which is accepted too."""

AnyOptions = TypeVar("AnyOptions", bound="Options")

CHANGEABLE = ("clip_param", "entropy_coef", "gamma", "lam", "max_grad_norm")
"""Options that may change during a training, besides ``learning_rate``."""

ALGORITHMS = {"DistillationOptions": "TbpttDistillation", "PpoOptions": "TbpttPPO"}
"""The algorithm of each class of options; ``configclass`` makes fields of class variables."""


@dataclass(kw_only=True)
class Options(HeadsOptions, ReplayOptions):
    """The options that all algorithms share."""

    num_micro_batches: Annotated[int, count()] = 1
    """Minimum number of micro-batches per optimiser step.

    It divides the update's memory and leaves the gradient unchanged.
    """

    record_steps: bool = True
    """Whether optimiser steps on CUDA are recorded as CUDA graphs.

    A recording knows the Python numbers that it was made with. See
    docs/concepts/replay.md#recorded-steps.
    """

    # rsl_rl checks the value itself, and accepts capitals.
    optimizer: Annotated[Literal["adam", "adamw", "sgd", "rmsprop"], lambda *_: None] = "adam"
    """The optimiser: ``"adam"``, ``"adamw"``, ``"sgd"`` or ``"rmsprop"``."""

    grad_reduce_bucket_mb: Annotated[float, positive()] = 25.0
    """Megabytes per buffer when several processes sum their gradients."""

    non_finite: Literal["skip", "raise"] = "skip"
    """What happens after an update that met NaN or inf, which is always undone.

    ``"skip"`` drops the rollout, warns and continues. ``"raise"`` ends the training. See
    docs/howto/health.md#nan-or-inf-in-training.
    """

    max_skipped_updates: Annotated[int, count()] = 10
    """Skipped updates in a row that end the training."""

    extensions: list[dict[str, Any]] | None = None
    """Your own extensions, each ``{"class_name": "my_robot.losses:Smoothness", "coef": 0.1}``.

    The other keys are options of that class. See docs/howto/extensions.md.
    """

    @classmethod
    def parse(cls: type[AnyOptions], options: Mapping[str, Any]) -> AnyOptions:
        """Build the options from keyword arguments.

        Raises:
            ValueError: If a name is unknown (the nearest one is proposed) or a value is not valid.
        """
        parsed = parse_fields(cls, options, ALGORITHMS.get(cls.__name__, cls.__name__))
        warn_all(parsed.check_together())
        return parsed

    def followed_kl(self) -> float | None:  # no property, which Isaac Lab's configclass would set
        """Return the KL divergence that the learning rate follows, or None."""
        return None

    def check_together(self) -> Iterator[str]:
        """Check options that only work together; see the base class."""
        yield from super().check_together()
        if self.non_finite == "raise":
            yield from self.without_effect("max_skipped_updates", "non_finite='skip'")


@dataclass(kw_only=True)
class DistillationOptions(TeacherOptions, HeldOutOptions, AverageOptions, Options):
    """Options of :class:`TbpttDistillation`; names and meanings are rsl_rl's where it has them."""

    num_learning_epochs: Annotated[int, count()] = 2
    """Passes over each rollout; each starts from the state at the rollout's start."""

    num_mini_batches: Annotated[int, count()] = 8
    """Mini-batches of whole environments per pass, at most ``num_envs``.

    Each makes one optimiser step per ``update_length`` steps.
    """

    buffer_rollouts: Annotated[int, count(0)] = 50
    """Size of the replay buffer (DAgger) in rollouts; 0 disables it.

    It holds a uniform sample of all sequences seen so far, on the device.
    """

    buffer_share: Annotated[float, positive()] = 1.0
    """Stored sequences in a mini-batch for each sequence of the newest rollout."""

    buffer_gb: Annotated[float | None, positive()] = 2.0
    """Gigabytes (10^9 bytes) that the replay buffer may use; None sets no limit.

    It then holds fewer rollouts.
    """

    save_buffer: bool = False
    """Whether checkpoints contain the replay buffer and grow by its size.

    Otherwise a resumed run starts with an empty one.
    """

    gradient_length: Annotated[int, count()] = 15
    """Environment steps that the gradient flows back (k2 of TBPTT(k1, k2)), within the rollout.

    What the student has to remember for longer gets no gradient.
    """

    update_length: Annotated[int | None, count()] = None
    """Environment steps between optimiser steps (k1 of TBPTT(k1, k2)).

    None means ``gradient_length``. A larger value accumulates several windows into one optimiser
    step. A smaller one makes windows overlap.
    """

    loss_reduction: Literal["mean", "sum"] = "mean"
    """Whether losses are averaged over samples, or summed over steps as in rsl_rl (``"sum"``).

    With ``"mean"`` the lengths above do not change the size of gradients.
    """

    tail: Tail = "flush"
    """What happens to leftover steps if the rollout is not a multiple of ``update_length``.

    ``"flush"`` trains on them, ``"drop"`` only runs them forward, as rsl_rl does.
    """

    loss_type: str | Callable[..., Any] = "mse"
    """Loss between student and teacher: ``"mse"``, ``"huber"``, ``"bce"``, ``"kl"`` or ``"nll"``.

    It may also be your own: docs/reference/distillation.md#losses.
    """

    learning_rate: Annotated[float, positive()] = 1e-3
    """Step size of the optimiser."""

    learning_rate_updates: Annotated[int | Literal["auto"] | None, _UPDATES] = "auto"
    """Updates over which ``learning_rate`` falls linearly to 3 % of its value; None keeps it.

    ``"auto"`` takes ``max_iterations`` of the runner's config, and as many again in a training that
    is longer; without it the rate is kept.
    """

    max_grad_norm: ClippingNorm = 1.0
    """Norm that the gradient is clipped to before each optimiser step; None does not clip."""

    def check_together(self) -> Iterator[str]:
        """Check options that only work together; yield warnings, as ``Options`` does."""
        yield from super().check_together()
        if self.buffer_rollouts == 0:
            yield from self.without_effect("buffer_share buffer_gb save_buffer", "buffer_rollouts")

    def check_rollout(self, num_steps: int) -> None:
        """Warn if a length exceeds the ``num_steps_per_env`` steps of the rollout."""
        for name in ("gradient_length", "update_length"):
            warn_all(beyond_rollout(name, getattr(self, name), num_steps))

    def check_training(self, num_envs: int) -> None:
        """Check the options against the size of a training; do not call it to play a policy.

        Args:
            num_envs: Number of environments.

        Raises:
            ValueError: If there are more micro-batches than environments that train, or none train.
        """
        if self.held_out_envs is not None and self.held_out_envs >= num_envs:
            raise ValueError(
                f"held_out_envs is {self.held_out_envs}, expected less than num_envs, {num_envs}:"
                " the student trains on the others."
            )
        num_trained = num_envs - self.num_held_out(num_envs)
        if self.num_micro_batches > num_trained and num_trained < num_envs:
            expected = f"at most {num_trained} micro-batches, one per environment that trains"
            self.refuse("num_micro_batches held_out_envs", expected)
        check_at_most_envs("num_micro_batches", self.num_micro_batches, num_envs)
        if self.teacher_action_share > 0 and round(self.teacher_action_share * num_trained) == 0:
            warnings.warn(
                f"teacher_action_share is {self.teacher_action_share}, which has no effect: of"
                f" num_envs, {num_envs}, it rounds to none. Raise one of them.",
                stacklevel=5,
            )


@dataclass(kw_only=True)
class PpoOptions(FineTuningOptions, Options):
    """Options of :class:`TbpttPPO`; names, meanings and defaults are rsl_rl's where it has them."""

    gradient_length: Annotated[int | None, count()] = None
    """Environment steps that the gradient flows back; None means the whole rollout.

    See docs/howto/memory.md#which-gradient-length.
    """

    minibatch_unit: Literal["env", "window"] = "env"
    """What mini-batches consist of: whole environments (``"env"``) or windows (``"window"``).

    See docs/concepts/ppo.md#environments-or-windows.
    """

    shuffle_envs: bool = True
    """Whether environments or windows are shuffled anew for every epoch."""

    num_learning_epochs: Annotated[int, count()] = 5
    """Passes over each rollout."""

    num_mini_batches: Annotated[int, count()] = 4
    """Mini-batches per pass, with one optimiser step each."""

    clip_param: Annotated[float, positive()] = 0.2
    """Clip range of the probability ratio around 1, and of values around the old ones."""

    gamma: Annotated[float, between(0, 1)] = 0.99
    """Discount factor per environment step."""

    lam: Annotated[float, between(0, 1)] = 0.95
    """Lambda of generalised advantage estimation."""

    value_loss_coef: Annotated[float, between(0, math.inf)] = 1.0
    """Weight of the value loss."""

    entropy_coef: Annotated[float, between(-math.inf, math.inf)] = 0.01
    """Weight of the entropy bonus."""

    learning_rate: Annotated[float, positive()] = 1e-3
    """Step size of the optimiser; the initial one with the adaptive schedule."""

    max_grad_norm: ClippingNorm = 1.0
    """Norm that actor's and critic's gradients are each clipped to; None does not clip."""

    use_clipped_value_loss: bool = True
    """Whether the value loss is clipped at ``clip_param`` from the old value."""

    schedule: Literal["adaptive", "fixed"] = "adaptive"
    """``"adaptive"`` changes the learning rate to follow ``desired_kl``; ``"fixed"`` keeps it."""

    desired_kl: Annotated[float | None, positive()] = 0.01
    """Mean KL divergence per mini-batch that the adaptive schedule aims for."""

    normalize_advantage_per_mini_batch: bool = False
    """Whether advantages are normalised per mini-batch instead of per rollout."""

    def followed_kl(self) -> float | None:  # no property, which Isaac Lab's configclass would set
        """Return the KL divergence that the learning rate follows, or None."""
        return self.desired_kl if self.schedule == "adaptive" else None

    def check_rollout(self, num_steps: int, recurrent: bool) -> None:
        """Warn of options that have no effect with these models and rollouts.

        Args:
            num_steps: ``num_steps_per_env``.
            recurrent: Whether actor or critic has memory.
        """
        if not recurrent:
            names = "gradient_length minibatch_unit"
            warn_all(self.without_effect(names, "a recurrent actor or critic"))
        one_window = self.gradient_length is None or self.gradient_length >= num_steps
        if recurrent and self.minibatch_unit == "window" and one_window:
            warnings.warn(
                f"minibatch_unit is 'window', which acts as 'env' while gradient_length,"
                f" {self.gradient_length}, covers the rollout of {num_steps} steps. Lower it.",
                stacklevel=3,
            )
        warn_all(beyond_rollout("gradient_length", self.gradient_length, num_steps))

    def check_training(self, num_steps: int, num_envs: int, recurrent: bool) -> None:
        """Check the options against the size of a training; do not call it to play a policy.

        Args:
            num_steps: ``num_steps_per_env``.
            num_envs: Number of environments.
            recurrent: Whether actor or critic has memory.

        Raises:
            ValueError: If there are more mini-batches than environments (without memory: than
                samples), or more micro-batches than environments.
        """
        if recurrent:
            check_at_most_envs("num_mini_batches", self.num_mini_batches, num_envs)
        elif self.num_mini_batches > num_steps * num_envs:
            raise ValueError(
                f"num_mini_batches is {self.num_mini_batches}, expected at most the samples of a"
                f" rollout, {num_steps * num_envs}: each mini-batch needs one."
            )
        check_at_most_envs("num_micro_batches", self.num_micro_batches, num_envs)


RUNNER_KEYS = """
    actor algorithm check_for_nan clip_actions class_name critic device empirical_normalization
    experiment_name init_at_random_ep_len keep_last load_checkpoint
    load_run logger max_iterations multi_gpu neptune_project num_steps_per_env obs_groups policy
    resume run_name save_interval seed student teacher torch_compile_mode upload_model
    wandb_project wandb_tags
"""
"""Keys of rsl_rl's runners, of the config classes of Isaac Lab and mjlab, and of our runners."""


def check_runner_keys(train_cfg: Mapping[str, Any]) -> None:
    """Refuse a key of a runner's config that looks like a misspelt one of ``RUNNER_KEYS``.

    Other unknown keys are accepted, since your own runner may have them.

    Raises:
        ValueError: If there is one; the message proposes the right name.
    """
    known = RUNNER_KEYS.split()
    for key in train_cfg:
        spelled = str(key).lower().replace("-", "_")
        near = difflib.get_close_matches(spelled, known, n=1, cutoff=0.85)
        if near and key not in known:
            raise ValueError(f"Unknown key '{key}' of the runner: did you mean '{near[0]}'?")

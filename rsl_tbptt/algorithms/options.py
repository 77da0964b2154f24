"""The options of both algorithms: name, type, default, meaning and check of each, in one place."""

import dataclasses
import difflib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from rsl_tbptt.algorithms.option_checks import (
    Rule,
    T,
    between,
    count,
    is_finite,
    parse_fields,
    positive,
    warn_all,
)
from rsl_tbptt.core.scan import check_engine
from rsl_tbptt.core.windows import Tail

if TYPE_CHECKING:  # configs import this module where rsl_rl may not be there
    from rsl_rl.storage import RolloutStorage

    from rsl_tbptt.compat.versions import MLPModel


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
_ABOVE_1 = Rule(lambda value: is_finite(value) and value > 1, "more than 1, for example 3")

ClippingNorm = Annotated[float | None, positive(math.inf, hint=" Use None to not clip.")]
"""Configs of rsl_rl's PPO disable clipping by inf, which is accepted too."""

AnyOptions = TypeVar("AnyOptions", bound="Options")

ACT_LATER = frozenset(
    {
        *("clip_param", "clip_param_high", "desired_kl", "dual_clip_param", "entropy_coef"),
        *("gamma", "lam", "max_grad_norm", "num_learning_epochs", "schedule"),
        *("use_clipped_value_loss", "value_loss_coef"),
    }
)
"""Options that every update reads anew, so that they can change during a training."""

ALGORITHMS = {"DistillationOptions": "TbpttDistillation", "PpoOptions": "TbpttPPO"}
"""The algorithm of each class of options; ``configclass`` makes fields of class variables."""


@dataclass(kw_only=True)
class Options:
    """The options that all algorithms share."""

    num_micro_batches: Annotated[int, count()] = 1
    """Minimum number of micro-batches per optimiser step.

    It divides the update's memory and leaves the gradient unchanged.
    """

    memory_budget_gb: Annotated[float | None, positive()] = None
    """Gigabytes (10^9 bytes) that an update may use in addition to models, optimiser and storage.

    A replay buffer counts. The algorithm makes as many micro-batches as that needs. See
    docs/howto/out_of_memory.md.
    """

    scan_engine: Annotated[str, lambda _, value: check_engine(value)] = "auto"
    """How recurrent layers run over a window: an engine of docs/concepts/replay.md#scan-engines.

    ``"auto"`` chooses one for the device and tests it there first.
    """

    # rsl_rl checks the value itself, and accepts capitals.
    record_steps: bool = True
    """Whether an optimiser step on CUDA is recorded as one CUDA graph.

    A recording knows the Python numbers that it was made with. See
    docs/concepts/replay.md#recorded-steps.
    """

    optimizer: Annotated[Literal["adam", "adamw", "sgd", "rmsprop"], lambda *_: None] = "adam"
    """The optimiser: ``"adam"``, ``"adamw"``, ``"sgd"`` or ``"rmsprop"``."""

    use_mixed_precision: bool = False
    """Whether the update's matrix products run in bfloat16.

    Parameters, state and gradients stay in float32.
    """

    grad_reduce_bucket_mb: Annotated[float, positive()] = 25.0
    """Megabytes per buffer when several processes sum their gradients."""

    non_finite: Literal["skip", "raise"] = "skip"
    """What happens after an update that met NaN or inf, which is always undone.

    ``"skip"`` drops the rollout, warns and continues. ``"raise"`` ends the training. See
    docs/howto/health.md#nan-or-inf-in-training.
    """

    max_skipped_updates: Annotated[int, count()] = 10
    """Skipped updates in a row that end the training."""

    safe_checkpoint_interval: Annotated[int | None, count(hint=" Use None to write none.")] = None
    """Iterations between emergency checkpoints, ``safe_<iteration>.pt``, for Isaac Lab.

    See docs/howto/cluster.md#isaac-lab.
    """

    auxiliary: dict[str, Any] | None = None
    """Auxiliary heads by name: each predicts a quantity from the model's latent.

    See docs/howto/auxiliary_heads.md.
    """

    def are_in_use(self) -> bool:
        """Return whether an algorithm was built for these values."""
        return "_in_use" in vars(self)

    def use(self) -> None:
        """From now on accept only changes that act from the next update on."""
        vars(self)["_in_use"] = True

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an option.

        Raises:
            ValueError: If the options are in use, and none has this name or the value is not valid.
            AttributeError: If the algorithm was built for the old value.
        """
        if self.are_in_use():
            values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
            self.parse({**values, name: value})
            if name not in ACT_LATER and value != values[name]:
                change = [*sorted(ACT_LATER & values.keys()), "the algorithm's learning_rate"]
                raise AttributeError(
                    f"{name} is {value!r}, expected {values[name]!r}, for which the algorithm was"
                    " built: set it in the config and continue from a checkpoint. During a training"
                    f" you can change {', '.join(change)}."
                )
        super().__setattr__(name, value)

    @classmethod
    def parse(cls: type[AnyOptions], options: Mapping[str, Any]) -> AnyOptions:
        """Build the options from keyword arguments.

        Raises:
            ValueError: If a name is unknown (the nearest one is proposed) or a value is not valid.
        """
        parsed = parse_fields(cls, options, ALGORITHMS.get(cls.__name__, cls.__name__))
        warn_all(parsed.check_together())
        return parsed

    def check_together(self) -> Iterator[str]:
        """Check combinations of options; yield a warning for each option without effect.

        Raises:
            ValueError: If they contradict each other.
        """
        if self.memory_budget_gb is not None and self.num_micro_batches > 1:
            self.refuse("num_micro_batches", "1 with memory_budget_gb, which decides on them")
        if self.non_finite == "raise":
            yield from self.without_effect("max_skipped_updates", "non_finite='skip'")

    def refuse(self, names: str, expected: str) -> None:
        """Refuse options that contradict each other.

        Args:
            names: Names of the options, separated by spaces.
            expected: The values that would be valid, and why or the fix.

        Raises:
            ValueError: Always.
        """
        given = " and ".join(f"{name} is {getattr(self, name)!r}" for name in names.split())
        raise ValueError(f"{given}, expected {expected}.")

    def check_symmetry(self) -> None:
        """Check that no option is set whose targets cannot be mirrored.

        Raises:
            ValueError: If one is.
        """
        for name, default in {"auxiliary": None, "teacher_coef": 0.0}.items():
            if getattr(self, name, default):
                self.refuse(name, f"{default} with symmetry_cfg: its targets are not mirrored")

    def without_effect(self, names: str, without: str) -> Iterator[str]:
        """Yield a warning if some of the options are set; ``without`` says what they need."""
        unused = [n for n in names.split() if getattr(self, n) != getattr(type(self), n)]
        if unused:
            listed = " and ".join(f"{name} is {getattr(self, name)!r}" for name in unused)
            yield (
                f"{listed}, which has no effect without {without}. Set that, or leave it at its"
                " default."
            )


@dataclass(kw_only=True)
class DistillationOptions(Options):
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

    loss_type: str | Callable[..., Any] | list[dict[str, Any]] = "mse"
    """Loss between student and teacher: ``"mse"``, ``"huber"``, ``"bce"``, ``"kl"`` or ``"nll"``.

    It may also be your own, or differ per slice of the action:
    docs/reference/distillation.md#losses.
    """

    imitation_weight: str | Callable[..., Any] | None = None
    """Weight of each sample in the loss: an observation group or ``"module:function"``.

    None weighs all steps equally. See docs/reference/distillation.md#what-counts.
    """

    learning_rate: Annotated[float, positive()] = 1e-3
    """Step size of the optimiser."""

    learning_rate_updates: Annotated[int | Literal["auto"] | None, _UPDATES] = "auto"
    """Updates over which ``learning_rate`` falls linearly to 3 % of its value; None keeps it.

    ``"auto"`` takes ``max_iterations`` of the runner's config, and as many again in a training that
    is longer; without it the rate is kept.
    """

    weight_average: bool = True
    """Whether the student that is saved has the average of its weights; the newest ones act.

    See docs/reference/distillation.md#weight-average.
    """

    max_grad_norm: ClippingNorm = 1.0
    """Norm that the gradient is clipped to before each optimiser step; None does not clip."""

    teacher_checkpoint: str | None = None
    """Checkpoint that the teacher is loaded from: PPO's actor, or a distillation's teacher.

    ``RUN/latest`` is the newest loadable one. The file is not read if the runner loads a checkpoint
    (``--checkpoint`` in Isaac Lab, ``--agent.resume`` in mjlab).
    """

    teacher_action_share: Annotated[
        float, between(0, 1, " Give 30 % of the environments as 0.3.")
    ] = 0.0
    """Share of environments, 0 to 1, in which the teacher acts when training starts (DAgger).

    See docs/reference/distillation.md#who-acts.
    """

    teacher_action_updates: Annotated[int | None, count(hint=" Use None to keep the share.")] = None
    """Updates over which ``teacher_action_share`` falls linearly to 0; None keeps it constant."""

    batch_teacher_labels: bool = False
    """Whether all labels are computed at once after each rollout, which saves forward passes.

    It needs a teacher without memory, and ``teacher_action_share=0``.
    """

    held_out_envs: Annotated[int | None, count(0)] = None
    """Environments of each process that enter no loss and no buffer, for ``held_out/`` metrics.

    None means 2 %, at least 8; 0 below 256.
    """

    def check_together(self) -> Iterator[str]:
        """Check options that only work together; yield warnings, as ``Options`` does."""
        yield from super().check_together()
        if self.teacher_action_share > 0 and self.batch_teacher_labels:
            self.refuse(
                "batch_teacher_labels",
                "False with teacher_action_share: the teacher acts with its labels in the rollout",
            )
        if self.teacher_action_share == 0:
            yield from self.without_effect("teacher_action_updates", "teacher_action_share")
        if self.buffer_rollouts == 0:
            yield from self.without_effect("buffer_share buffer_gb save_buffer", "buffer_rollouts")

    def check_rollout(self, num_steps: int) -> None:
        """Warn if a length exceeds the ``num_steps_per_env`` steps of the rollout."""
        for name in ("gradient_length", "update_length"):
            warn_all(beyond_rollout(name, getattr(self, name), num_steps))

    def num_held_out(self, num_envs: int) -> int:
        """Return how many of a process's environments are held out; at least one trains."""
        number = self.held_out_envs
        if number is None:
            number = max(8, round(0.02 * num_envs)) if num_envs >= 256 else 0
        return min(number, num_envs - 1)

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
                stacklevel=4,
            )


@dataclass(kw_only=True)
class PpoOptions(Options):
    """Options of :class:`TbpttPPO`; names, meanings and defaults are rsl_rl's where it has them."""

    gradient_length: Annotated[int | None, count()] = None
    """Environment steps that the gradient flows back; None means the whole rollout.

    See docs/howto/gradient_length.md.
    """

    minibatch_unit: Literal["env", "window"] = "env"
    """What mini-batches consist of: whole environments (``"env"``) or windows (``"window"``).

    See docs/concepts/ppo.md#environments-or-windows.
    """

    burn_in_length: Annotated[int, count(0)] = 0
    """Steps replayed without gradient before each window, to refresh its stored state."""

    shuffle_envs: bool = True
    """Whether environments or windows are shuffled anew for every epoch."""

    loss_reduction: Literal["mean", "episode_mean"] = "mean"
    """``"mean"`` weighs all samples equally, ``"episode_mean"`` all episodes of the rollout."""

    policy_loss: Literal["clip", "kl_penalty"] = "clip"
    """The clipped surrogate loss, or ``"kl_penalty"``: unclipped with an adaptive KL penalty.

    The coefficient of the penalty follows ``desired_kl``. It needs ``schedule="fixed"``.
    """

    kl_penalty_coef: Annotated[float, positive()] = 1.0
    """Initial coefficient of the KL penalty."""

    clip_param_high: Annotated[float | None, positive()] = None
    """Upper clip range (clip-higher); None means ``clip_param``."""

    dual_clip_param: Annotated[float | None, _ABOVE_1] = None
    """Dual-clip bound c > 1: with a negative advantage the loss is clipped at c times it.

    None disables it.
    """

    student_action_std: Annotated[float | None, positive()] = None
    """Standard deviation of the actions after a student became the actor; None keeps its own."""

    critic_warmup_iterations: Annotated[int, count(0)] = 0
    """Updates that train the critic alone, after a distilled student became the actor."""

    teacher_cfg: dict[str, Any] | None = None
    """Model of a teacher that the actor imitates: ``"class_name"`` and its arguments.

    See docs/howto/finetune.md.
    """

    teacher_checkpoint: str | None = None
    """Checkpoint that the teacher is loaded from: PPO's actor, or a distillation's teacher.

    ``RUN/latest`` is the newest loadable one. The file is not read if the runner loads a checkpoint
    with a teacher.
    """

    teacher_coef: Annotated[float, positive(0)] = 0.0
    """Weight of the imitation loss; 0 disables imitation."""

    teacher_loss: Literal["kl", "mse", "nll"] = "kl"
    """Imitation loss: ``"kl"`` from the teacher, ``"mse"`` of means, ``"nll"`` of its action."""

    teacher_schedule: Literal["linear", "exponential", "return"] = "linear"
    """How ``teacher_coef`` falls: ``"linear"``, ``"exponential"``, or as the ``"return"`` rises.

    See docs/howto/finetune.md.
    """

    teacher_coef_end: Annotated[float, positive(0)] = 0.0
    """Weight at the end of the schedule; above 0 with ``"exponential"``."""

    teacher_updates: Annotated[int | None, count()] = None
    """Updates, after the critic's warm-up, over which the weight falls; None keeps it constant."""

    teacher_return: Annotated[float | None, positive()] = None
    """Mean return, without RND's rewards, at which ``"return"`` reaches ``teacher_coef_end``."""

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

    def check_together(self) -> Iterator[str]:
        """Check options that only work together; yield warnings, as ``Options`` does."""
        yield from super().check_together()
        if self.burn_in_length and self.minibatch_unit == "env":
            self.refuse("burn_in_length", "0 with minibatch_unit 'env': use 'window'")
        if self.policy_loss == "kl_penalty":
            self._check_kl_penalty()
        else:
            yield from self.without_effect("kl_penalty_coef", "policy_loss='kl_penalty'")
        yield from self._check_teacher()

    def _check_kl_penalty(self) -> None:
        penalty = "with policy_loss 'kl_penalty'"
        if self.num_learning_epochs * self.num_mini_batches == 1:
            expected = f"more optimiser steps {penalty}: before the only one the KL is always 0"
            self.refuse("num_learning_epochs num_mini_batches", expected)
        for name in ("clip_param_high", "dual_clip_param"):
            if getattr(self, name) is not None:
                self.refuse(name, f"None {penalty}, which clips nothing")
        if self.desired_kl is None or self.schedule == "adaptive":
            expected = f"'fixed' and a number {penalty}, whose coefficient follows desired_kl"
            self.refuse("schedule desired_kl", expected)

    def _check_teacher(self) -> Iterator[str]:
        schedule, endless = self.teacher_schedule, self.teacher_updates is None
        if self.teacher_coef == 0:
            names = (field.name for field in dataclasses.fields(self))
            of_teacher = " ".join(name for name in names if name.startswith("teacher_"))
            yield from self.without_effect(of_teacher, "teacher_coef")
            return
        if self.teacher_cfg is None:
            self.refuse("teacher_coef teacher_cfg", "both: imitation needs the teacher's model")
        if self.teacher_coef_end > self.teacher_coef:
            expected = f"at most teacher_coef, {self.teacher_coef}: the teacher's weight falls"
            self.refuse("teacher_coef_end", expected)
        if schedule == "exponential" and (endless or self.teacher_coef_end == 0):
            expected = "a positive number and a count with teacher_schedule 'exponential'"
            self.refuse("teacher_coef_end teacher_updates", expected)
        if schedule == "return":
            if self.teacher_return is None:
                self.refuse("teacher_return", "a positive number with teacher_schedule 'return'")
            yield from self.without_effect("teacher_updates", "another teacher_schedule")
        else:
            yield from self.without_effect("teacher_return", "teacher_schedule='return'")
            if endless:
                yield from self.without_effect("teacher_coef_end", "teacher_updates")

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


def _option(name: str) -> property:
    """Make an attribute of an algorithm that is the option of the same name."""

    def assign(algorithm: Any, value: Any) -> None:
        # Before, rsl_rl's constructor assigns values that it was given from the options.
        if algorithm.options.are_in_use():
            setattr(algorithm.options, name, value)

    return property(lambda algorithm: getattr(algorithm.options, name), assign)


def has_attributes_of(options: type[Options]) -> Callable[[type[T]], type[T]]:
    """Give an algorithm's class an attribute for each option, as rsl_rl's algorithms have them.

    Assigning one acts from the next update on or raises; see ``Options.__setattr__``.

    Args:
        options: The class of its ``options``.

    Returns:
        A decorator of the class.
    """
    # The optimiser's attribute is the optimiser itself, which has the learning rate.
    names = {field.name for field in dataclasses.fields(options)} - {"optimizer", "learning_rate"}

    def declare(algorithm: type[T]) -> type[T]:
        for name in names:
            setattr(algorithm, name, _option(name))
        return algorithm

    return declare


RUNNER_KEYS = """
    actor algorithm check_for_nan clip_actions class_name critic device empirical_normalization
    experiment_name init_at_random_ep_len keep_best keep_last load_checkpoint
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


@dataclass(kw_only=True)
class RunnerArguments:
    """Arguments that rsl_rl gives every algorithm in addition to models, storage and options."""

    device: str = "cpu"
    """Device of the update."""

    multi_gpu_cfg: dict[str, Any] | None = None
    """rsl_rl's description of the processes, or None for one process."""

    rnd_cfg: dict[str, Any] | None = None
    """rsl_rl's config of random network distillation, or None; always None in distillation."""

    symmetry_cfg: dict[str, Any] | None = None
    """rsl_rl's config of symmetries, or None."""


@dataclass
class DistillationArguments(RunnerArguments, DistillationOptions):
    """Models and storage come first; everything else is passed by name."""

    student: "MLPModel"
    """Model to train."""

    teacher: "MLPModel"
    """Model to imitate."""

    storage: "RolloutStorage"
    """rsl_rl's storage of the rollout."""


@dataclass
class PpoArguments(RunnerArguments, PpoOptions):
    """Models and storage come first; everything else is passed by name."""

    actor: "MLPModel"
    """Policy with a distribution."""

    critic: "MLPModel"
    """Value function."""

    storage: "RolloutStorage"
    """rsl_rl's storage of the rollout."""

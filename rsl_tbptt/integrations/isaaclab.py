"""Isaac Lab config classes for the algorithms of this package, for Isaac Lab 3.0 and 2.3.

They subclass Isaac Lab's own, so a task config changes one line and inherits every other key. Each
field reaches the algorithm's constructor as a keyword argument of the same name. With Isaac Lab 2.3
the import registers the algorithms in rsl_rl 3.1.2; ``loss_type="kl"`` and ``teacher_kl_coef`` need
Isaac Lab 3.0.
"""

from __future__ import annotations

from typing import Any, Literal

from rsl_tbptt.compat.supported import MODELS_ERA, rsl_rl_era

try:
    from isaaclab.utils import configclass
    from isaaclab_rl.rsl_rl import RslRlDistillationAlgorithmCfg, RslRlPpoAlgorithmCfg
except ImportError as error:
    raise ImportError(
        "rsl_tbptt.integrations.isaaclab needs Isaac Lab 3.0 on Python 3.12, and importing it "
        f"failed: {error}. Install it with: pip install 'rsl-tbptt[isaaclab]'. Isaac Lab 2.3 comes "
        "with Isaac Sim: import this in its Python, after its AppLauncher."
    ) from error

if rsl_rl_era() == MODELS_ERA:
    _MODULE = "rsl_tbptt.algorithms:"
else:
    import rsl_tbptt.integrations.rsl_rl_v3  # noqa: F401  registers the algorithms

    _MODULE = ""


@configclass
class TbpttDistillationAlgorithmCfg(RslRlDistillationAlgorithmCfg):
    """Options of :class:`rsl_tbptt.algorithms.TbpttDistillation`, all with defaults.

    It stands where a task has ``RslRlDistillationAlgorithmCfg`` and runs under Isaac Lab's
    ``DistillationRunner``.
    """

    class_name: str = f"{_MODULE}TbpttDistillation"
    """Name of the algorithm: ``"module:Class"``, which rsl_rl imports; in 2.3 the class alone."""

    num_learning_epochs: int = 1
    """Passes over each rollout; each starts again from the state at the rollout's start."""

    learning_rate: float = 1.0e-3
    """Step size of the optimiser.

    With ``loss_reduction="mean"`` it needs no retuning when ``gradient_length`` changes.
    """

    gradient_length: int = 15
    """Steps the gradient flows back: k2 of TBPTT(k1, k2), in environment steps.

    What the student has to remember over more steps than this gets no gradient. A value above
    ``num_steps_per_env`` means the whole rollout.
    """

    update_length: int | None = None
    """Steps between optimiser steps: k1 of TBPTT(k1, k2), in environment steps.

    None means ``gradient_length``. A larger value accumulates several windows into one optimiser
    step; a smaller one lets windows overlap and takes the loss of the newest steps only.
    """

    loss_reduction: Literal["mean", "sum"] = "mean"
    """How the losses of one optimiser step combine.

    ``"mean"`` divides by the robot-steps of a full group, so gradients keep their size whatever
    the lengths above. ``"sum"`` adds up the steps' means as rsl_rl does.
    """

    tail: Literal["flush", "drop"] = "flush"
    """What happens to the steps left over when the rollout is no multiple of ``update_length``.

    ``"flush"`` trains on them in a last, shorter group; ``"drop"`` leaves them out as rsl_rl does.
    """

    num_env_chunks: int = 1
    """Parts the environments are split into for each backward pass.

    The gradient stays the same; activation memory divides by this number.
    """

    memory_budget_gb: float | None = None
    """Gigabytes of 10^9 bytes that an update may take beyond models, optimiser and storage.

    As many parts are made as that needs. ``None`` does not limit it.
    """

    teacher_checkpoint: str | None = None
    """Path of a checkpoint whose actor, or whose teacher, becomes the teacher.

    With it ``--checkpoint`` is not needed; a checkpoint given there is loaded afterwards and wins.
    """

    teacher_action_share: float = 0.0
    """Share of the environments, from 0 to 1, that act with the teacher's action (DAgger).

    It holds at the start of training. The environments are drawn anew for every rollout; labels are
    the teacher's everywhere.
    """

    teacher_action_updates: int | None = None
    """Updates over which ``teacher_action_share`` falls linearly to 0; None keeps it constant."""

    batch_teacher_labels: bool = False
    """Whether the labels of a teacher without memory are computed after each rollout at once.

    They are the same; the rollout has one forward pass less per step. Not with
    ``teacher_action_share``, whose labels act.
    """

    max_grad_norm: float | None = 1.0
    """Norm the gradient is clipped to before each optimiser step; None does not clip."""

    optimizer: Literal["adam", "adamw", "sgd", "rmsprop"] = "adam"
    """Optimiser of the student's parameters."""

    # Wider than the parent's Literal on purpose: rsl_tbptt has more losses.
    loss_type: str = "mse"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Loss between student and teacher: ``"mse"``, ``"huber"``, ``"kl"``, ``"nll"``.

    Any other loss is given by its qualified name, ``"module:function"``.
    """

    scan_engine: str = "auto"
    """Engine that runs LSTM and GRU layers over a window.

    ``"auto"`` takes the one expected to be the fastest on the device that proved right there;
    docs/distillation.md names the others.
    """

    non_finite: Literal["skip", "raise"] = "skip"
    """What an update does that meets NaN or inf; it is undone in either case.

    ``"skip"`` drops the rollout, warns once per source and goes on, also where a NaN comes from the
    environment (``check_for_nan`` is then off). ``"raise"`` ends the training.
    """

    max_skipped_updates: int = 10
    """So many skipped updates in a row end the training."""

    use_mixed_precision: bool = False
    """Whether the update runs in bfloat16 autocast; state and gradients stay in float32."""


@configclass
class TbpttPpoAlgorithmCfg(RslRlPpoAlgorithmCfg):
    """Options of :class:`rsl_tbptt.algorithms.TbpttPPO`, all with rsl_rl's defaults.

    It stands where a task has ``RslRlPpoAlgorithmCfg`` and runs under Isaac Lab's
    ``OnPolicyRunner``.
    """

    class_name: str = f"{_MODULE}TbpttPPO"
    """Name of the algorithm: ``"module:Class"``, which rsl_rl imports; in 2.3 the class alone."""

    gradient_length: int | None = None
    """Steps the gradient flows back, in environment steps. None means the whole rollout."""

    minibatch_unit: Literal["env", "window"] = "env"
    """What mini-batches consist of.

    ``"env"`` takes whole environments, replayed from the rollout's start with the current weights;
    ``"window"`` takes windows of ``gradient_length`` steps, each from the state stored before it.
    """

    burn_in_length: int = 0
    """Steps replayed without gradient before each window with ``minibatch_unit="window"``."""

    num_env_chunks: int = 1
    """Parts a mini-batch is split into for each backward pass: less memory, the same gradient."""

    memory_budget_gb: float | None = None
    """Gigabytes of 10^9 bytes that an update may take beyond models, optimiser and storage: as many
    parts are made as that needs. ``None`` does not limit it."""

    shuffle_envs: bool = True
    """Whether every epoch draws the environments or windows of its mini-batches anew."""

    loss_reduction: Literal["mean", "episode_mean"] = "mean"
    """Whether every robot-step of a mini-batch weighs the same, or every episode in the rollout."""

    policy_loss: Literal["clip", "kl_penalty"] = "clip"
    """The clipped surrogate, or the plain one with an adaptive penalty on the KL divergence.

    ``"kl_penalty"`` needs ``schedule="fixed"``: its coefficient follows ``desired_kl``.
    """

    kl_penalty_coef: float = 1.0
    """The first coefficient of ``policy_loss="kl_penalty"``."""

    dual_clip_param: float | None = None
    """Multiple, above 1, of a negative advantage at which its loss stops growing. None is off."""

    student_action_std: float | None = None
    """Standard deviation of the actions when ``--checkpoint`` names a distilled student."""

    critic_warmup_iterations: int = 0
    """Updates that train only the critic after a distilled student became the actor."""

    teacher_cfg: dict[str, Any] | None = None
    """``"class_name"`` and arguments of the model of the student's teacher.

    It sees the observation set ``"teacher"``; its parameters come with the student's checkpoint.
    """

    teacher_kl_coef: float = 0.0
    """Weight of the KL divergence from the teacher's policy after a student became the actor."""

    teacher_kl_updates: int | None = None
    """Updates after the warm-up over which that weight falls linearly to 0. None keeps it."""

    clip_param_high: float | None = None
    """How far the probability ratio may rise above 1. None means ``clip_param``."""

    scan_engine: str = "auto"
    """Engine that runs LSTM and GRU layers over a window, as for distillation."""

    non_finite: Literal["skip", "raise"] = "skip"
    """What an update does that meets NaN or inf; it is undone in either case.

    ``"skip"`` drops the rollout, warns once per source and goes on, also where a NaN comes from the
    environment (``check_for_nan`` is then off). ``"raise"`` ends the training.
    """

    max_skipped_updates: int = 10
    """So many skipped updates in a row end the training."""

    num_learning_epochs: int = 5
    """Passes over each rollout."""

    num_mini_batches: int = 4
    """Optimiser steps per pass, each on its share of the environments."""

    learning_rate: float = 1.0e-3
    """Step size of the optimiser, the first one with the adaptive schedule."""

    schedule: str = "adaptive"
    """``"adaptive"`` follows ``desired_kl`` with the learning rate; ``"fixed"`` does not."""

    gamma: float = 0.99
    """Discount factor per environment step."""

    lam: float = 0.95
    """Lambda of generalised advantage estimation."""

    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""

    desired_kl: float = 0.01
    """Mean KL divergence per mini-batch that the adaptive schedule aims at."""

    max_grad_norm: float = 1.0
    """Norm the gradients of actor and critic are clipped to, each on its own."""

    value_loss_coef: float = 1.0
    """Weight of the value loss."""

    use_clipped_value_loss: bool = True
    """Whether a value stops improving once it is ``clip_param`` away from the old one."""

    clip_param: float = 0.2
    """How far the probability ratio may leave 1, and values their old ones."""

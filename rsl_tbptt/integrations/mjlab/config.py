"""mjlab config classes for distillation and for the algorithms of this package.

Plain dataclasses in mjlab's style, so that every field is an option of ``train``:
``--agent.algorithm.gradient-length 24``. Each field of an algorithm reaches its constructor as a
keyword argument of the same name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from mjlab.rl import (  # pyright: ignore[reportMissingImports]
    RslRlBaseRunnerCfg,
    RslRlModelCfg,
    RslRlPpoAlgorithmCfg,
)


@dataclass
class TbpttDistillationAlgorithmCfg:
    """Options of :class:`rsl_tbptt.algorithms.TbpttDistillation`, all with defaults."""

    class_name: str = "rsl_tbptt.algorithms:TbpttDistillation"
    """Qualified name of the algorithm, ``"module:Class"``, which rsl_rl imports."""

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

    With it ``--agent.resume`` is not needed; a checkpoint resumed from is loaded afterwards and
    wins.
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

    loss_type: str = "mse"
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


@dataclass
class TbpttDistillationRunnerCfg(RslRlBaseRunnerCfg):
    """A task's ``rl_cfg`` for distillation, with ``TbpttMjlabDistillationRunner`` for runner."""

    class_name: str = "DistillationRunner"
    """The runner class name, as in rsl_rl."""

    obs_groups: dict[str, tuple[str, ...]] = field(
        default_factory=lambda: {"student": ("actor",), "teacher": ("critic",)}
    )
    """Observation groups of student and teacher.

    In mjlab's tasks ``"actor"`` is what the robot can measure, ``"critic"`` what is privileged.
    """

    student: RslRlModelCfg = field(
        default_factory=lambda: RslRlModelCfg(
            class_name="RNNModel",
            rnn_type="lstm",
            distribution_cfg={"class_name": "GaussianDistribution", "init_std": 0.1},
        )
    )
    """The student. It acts with its distribution's noise while it collects data."""

    teacher: RslRlModelCfg = field(
        default_factory=lambda: RslRlModelCfg(
            distribution_cfg={"class_name": "GaussianDistribution", "init_std": 1.0}
        )
    )
    """The teacher: the ``actor`` of the config that it was trained with, distribution included."""

    algorithm: TbpttDistillationAlgorithmCfg = field(default_factory=TbpttDistillationAlgorithmCfg)
    """The algorithm's options."""


@dataclass
class TbpttPpoAlgorithmCfg(RslRlPpoAlgorithmCfg):
    """Options of :class:`rsl_tbptt.algorithms.TbpttPPO`, all with rsl_rl's defaults.

    It stands where a task has ``RslRlPpoAlgorithmCfg``.
    """

    class_name: str = "rsl_tbptt.algorithms:TbpttPPO"
    """Qualified name of the algorithm, ``"module:Class"``, which rsl_rl imports."""

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
    """Standard deviation of the actions when the run resumed from is a distilled student's."""

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

    use_mixed_precision: bool = False
    """Whether the update runs in bfloat16 autocast; state and gradients stay in float32."""

    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""

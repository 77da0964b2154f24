"""mjlab config classes for distillation and for the algorithms of this package.

Plain dataclasses in mjlab's style, so that every field is an option of ``train``:
``--agent.algorithm.gradient-length 24``. Those of the algorithms are inherited from their options;
each reaches the constructor as a keyword argument of the same name.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mjlab.rl import RslRlBaseRunnerCfg, RslRlModelCfg, RslRlPpoAlgorithmCfg

from rsl_tbptt.algorithms.distillation.options import DistillationOptions
from rsl_tbptt.algorithms.ppo.options import PpoOptions


@dataclass
class TbpttDistillationAlgorithmCfg(DistillationOptions):
    """Options of :class:`rsl_tbptt.algorithms.TbpttDistillation`, all with defaults."""

    class_name: str = "rsl_tbptt.algorithms:TbpttDistillation"
    """Qualified name of the algorithm, ``"module:Class"``, which rsl_rl imports."""

    # Narrower than the parent's: a command line takes no function, and refuses the option for it.
    # A list of slices is given in a config: beside it a command line would no longer take a name.
    loss_type: str = "mse"
    imitation_weight: str | None = None


@dataclass
class TbpttCnnRnnModelCfg(RslRlModelCfg):
    """Options of :class:`rsl_tbptt.models.CNNRNNModel`; ``cnn_cfg`` has to be given."""

    class_name: str = "rsl_tbptt.models:CNNRNNModel"
    """Qualified name of the model, ``"module:Class"``, which rsl_rl imports."""

    rnn_type: str | None = "lstm"
    """The memory, ``"lstm"`` or ``"gru"``."""

    image_scale: float = 1.0
    """What images are multiplied by before their CNN: 1 / 255 for bytes."""


@dataclass
class TbpttTeacherCfg:
    """One of several teachers; see :class:`TbpttTeachersCfg`."""

    cfg: RslRlModelCfg = field(default_factory=RslRlModelCfg)
    """The model's config: the ``actor`` of the config that it was trained with."""

    checkpoint: str | None = None
    """File of PPO or distillation that holds its parameters; read when training starts."""

    obs_groups: tuple[str, ...] | None = None
    """What it observes; None is what ``obs_groups["teacher"]`` of the runner's config says."""


@dataclass
class TbpttTeachersCfg:
    """Options of :class:`rsl_tbptt.models.SelectedTeachers`, in the place of a teacher's config."""

    selector: str
    """Observation group with the number of each environment's teacher, or a function's name."""

    teachers: dict[str, TbpttTeacherCfg]
    """The teachers by name; their numbers are their places, from 0 on."""

    class_name: str = "rsl_tbptt.models:SelectedTeachers"
    """Qualified name of the model, ``"module:Class"``, which rsl_rl imports."""


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

    teacher: RslRlModelCfg | TbpttTeachersCfg = field(
        default_factory=lambda: RslRlModelCfg(
            distribution_cfg={"class_name": "GaussianDistribution", "init_std": 1.0}
        )
    )
    """The teacher: the ``actor`` of the config that it was trained with, distribution included.

    Or several of them.
    """

    algorithm: TbpttDistillationAlgorithmCfg = field(default_factory=TbpttDistillationAlgorithmCfg)
    """The algorithm's options."""


@dataclass
class TbpttPpoAlgorithmCfg(PpoOptions, RslRlPpoAlgorithmCfg):
    """Options of :class:`rsl_tbptt.algorithms.TbpttPPO`, all with rsl_rl's defaults.

    It stands where a task has ``RslRlPpoAlgorithmCfg``.
    """

    class_name: str = "rsl_tbptt.algorithms:TbpttPPO"
    """Qualified name of the algorithm, ``"module:Class"``, which rsl_rl imports."""

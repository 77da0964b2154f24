"""mjlab: config classes for the algorithms of this package, and the runners that mjlab lacks.

The config classes are plain dataclasses in mjlab's style, so every field is an option of ``train``:
``--agent.algorithm.gradient-length 24``. Those of the algorithms inherit the fields of their
options; each reaches the constructor as a keyword argument of the same name.

Both runners cooperate with a task's own runner, which then adds what it does, such as mjlab's
export with metadata at every save::

    class MyRunner(TbpttMjlabDistillationRunner, VelocityOnPolicyRunner): ...
"""

# mjlab has an environment of its own, where no type checker looks.
# pyright: reportMissingImports=false

from __future__ import annotations

import copy
import importlib
import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDict

from rsl_tbptt.algorithms.options import DistillationOptions, PpoOptions
from rsl_tbptt.compat import MODELS_ERA, require_era

require_era(MODELS_ERA, "rsl_tbptt.integrations.mjlab")

from rsl_rl.models import MLPModel  # noqa: E402
from rsl_rl.runners import DistillationRunner  # noqa: E402

try:
    if "mjlab" not in sys.modules:
        # At its start mjlab loads packages of tasks, which import from this module while it is
        # only half here. Python then builds it anew for them, and that one stays.
        half = sys.modules.pop(__name__)
        importlib.import_module("mjlab")
        sys.modules.setdefault(__name__, half)
    from mjlab.rl import (
        MjlabOnPolicyRunner,
        RslRlBaseRunnerCfg,
        RslRlModelCfg,
        RslRlPpoAlgorithmCfg,
        RslRlVecEnvWrapper,
    )
except ImportError as error:
    from rsl_tbptt.tools.doctor import install

    raise ImportError(
        "rsl_tbptt.integrations.mjlab needs mjlab 1.6 or 1.7, and importing it failed: "
        f"{error}. Install it with: {install('mjlab')}."
    ) from error

__all__ = [
    "TbpttCnnRnnModelCfg",
    "TbpttDistillationAlgorithmCfg",
    "TbpttDistillationRunnerCfg",
    "TbpttMjlabDistillationRunner",
    "TbpttMjlabRecurrentRunner",
    "TbpttPpoAlgorithmCfg",
    "TbpttTeacherCfg",
    "TbpttTeachersCfg",
]


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


class EpisodicPolicy:
    """A recurrent policy that clears its memory where an episode starts.

    mjlab's viewers step a policy and the environment, and never tell the policy which episodes
    ended.
    """

    def __init__(self, policy: MLPModel, env: RslRlVecEnvWrapper) -> None:
        """Take the policy and the environment that it acts in."""
        self._policy, self._env = policy, env

    def __call__(self, obs: TensorDict) -> torch.Tensor:
        """Act. Observations have the batch size (N,), actions the shape (N, A)."""
        self._policy.reset(self._env.episode_length_buf == 0)
        return self._policy(obs)

    def reset(self) -> None:
        """Clear the memory in all environments."""
        self._policy.reset()


class TbpttMjlabRecurrentRunner(MjlabOnPolicyRunner):
    """mjlab's runner, for policies with memory; one without is treated as mjlab does."""

    def get_inference_policy(self, device: str | None = None) -> MLPModel | EpisodicPolicy:
        """Return the policy that ``play`` runs.

        Args:
            device: Device of the policy.

        Returns:
            The model, and where it has memory, something that clears it at episode starts.
        """
        policy = super().get_inference_policy(device)
        return EpisodicPolicy(policy, self.env) if policy.is_recurrent else policy


class TbpttMjlabDistillationRunner(TbpttMjlabRecurrentRunner, DistillationRunner):
    """The distillation runner that mjlab lacks, for tasks with a ``TbpttDistillationRunnerCfg``.

    rsl_rl's asks for the teacher before it learns.
    """

    alg: Any
    """An algorithm of this package, or any other that the task's config names."""

    def __init__(
        self,
        env: RslRlVecEnvWrapper,
        train_cfg: dict[str, Any],
        log_dir: str | None = None,
        device: str = "cpu",
        **further: Any,
    ) -> None:
        """Build models, algorithm and logger.

        Args:
            env: The environment.
            train_cfg: A :class:`TbpttDistillationRunnerCfg` as a dictionary.
            log_dir: Folder of logs and checkpoints, or None for neither.
            device: Device of models and update.
            **further: Arguments of a task's own runner.
        """
        train_cfg = copy.deepcopy(train_cfg)  # rsl_rl takes entries out of it
        train_cfg |= {role: model_arguments(train_cfg[role]) for role in ("student", "teacher")}
        super().__init__(env, train_cfg, log_dir, device, **further)

    def load(
        self,
        path: str,
        load_cfg: dict[str, bool] | None = None,
        strict: bool = True,
        map_location: str | None = None,
    ) -> dict:
        """Load a checkpoint: a teacher's gives the teacher, a student's everything.

        The environment's step counter comes with it, and with that the stage of its curricula.

        Args:
            path: Checkpoint of PPO or distillation.
            load_cfg: What to load, or None for the above. ``play`` asks for the ``"actor"``, which
                is the student here.
            strict: Whether parameters must match exactly.
            map_location: Device of the loaded tensors.

        Returns:
            What was saved beside the models.

        Raises:
            ValueError: If the parameters do not fit, or if the models are known to have been
                configured otherwise. Nothing is changed then.
        """
        self.alg.checkpoint_path = path
        if load_cfg is not None and "actor" in load_cfg:
            load_cfg = {"student": load_cfg["actor"]}
        return super().load(path, load_cfg, strict, map_location)


def model_arguments(model_cfg: dict[str, Any]) -> dict[str, Any]:
    """Leave out of a model's config what mjlab's config class has for other models.

    Args:
        model_cfg: A ``RslRlModelCfg`` as a dictionary, or a ``TbpttTeachersCfg``.

    Returns:
        ``"class_name"`` and the arguments of that class.
    """
    if "teachers" in model_cfg:
        teachers = model_cfg["teachers"].items()
        own = {name: {**each, "cfg": model_arguments(each["cfg"])} for name, each in teachers}
        return {**model_cfg, "teachers": own}
    unset = {name for name in ("cnn_cfg", "distribution_cfg") if model_cfg.get(name) is None}
    if model_cfg.get("rnn_type") is None:
        unset |= {"rnn_type", "rnn_hidden_dim", "rnn_num_layers"}
    return {name: value for name, value in model_cfg.items() if name not in unset}

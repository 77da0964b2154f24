"""mjlab: config classes for the algorithms of this package, and runners that mjlab lacks.

The config classes are plain dataclasses in mjlab's style, so every field is an option of ``train``:
``--agent.algorithm.gradient-length 24``. Those of the algorithms inherit the fields of the
algorithms' options; each is passed to the constructor under the same name.

Both runners can be combined with a task's own runner, which then adds its work, such as mjlab's
export with metadata at every save::

    class MyRunner(TbpttMjlabDistillationRunner, VelocityOnPolicyRunner): ...
"""

# mjlab has its own environment, which the type checker does not see.
# pyright: reportMissingImports=false

from __future__ import annotations

import copy
import importlib
import sys
from dataclasses import asdict, dataclass, field, fields
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
        # incomplete. Python then imports it anew for them, and that copy stays.
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
    from rsl_tbptt.installation import install

    raise ImportError(
        "rsl_tbptt.integrations.mjlab needs mjlab 1.6 or 1.7, and importing it failed: "
        f"{error}. Install it with: {install('mjlab')}."
    ) from error


@dataclass
class TbpttDistillationAlgorithmCfg(DistillationOptions):
    """Options of :class:`rsl_tbptt.algorithms.TbpttDistillation`, all with defaults."""

    class_name: str = "rsl_tbptt.algorithms:TbpttDistillation"
    """Qualified name of the algorithm, ``"module:Class"``, which rsl_rl imports."""

    # Narrower than the parent's: a command line cannot take a function and would lose the option.
    loss_type: str = "mse"


@dataclass
class TbpttCnnRnnModelCfg(RslRlModelCfg):
    """Options of :class:`rsl_tbptt.models.CNNRNNModel`; you have to set ``cnn_cfg``."""

    class_name: str = "rsl_tbptt.models:CNNRNNModel"
    """Qualified name of the model, ``"module:Class"``, which rsl_rl imports."""

    rnn_type: str | None = "lstm"
    """Recurrent layers: ``"lstm"``, ``"gru"``, ``"sru"`` or a cell of your own."""

    image_scale: float = 1.0
    """Factor of images before their CNN: 1 / 255 for bytes."""


@dataclass
class TbpttControllerCfg:
    """A teacher that is a controller. Subclass it to add arguments."""

    class_name: str
    """Qualified name of a class or function; see docs/reference/distillation.md#controllers."""


@dataclass
class TbpttDistillationRunnerCfg(RslRlBaseRunnerCfg):
    """A task's ``rl_cfg`` for distillation; its runner is ``TbpttMjlabDistillationRunner``."""

    class_name: str = "DistillationRunner"
    """The runner class name, as in rsl_rl."""

    obs_groups: dict[str, tuple[str, ...]] = field(
        default_factory=lambda: {"student": ("actor",), "teacher": ("critic",)}
    )
    """Observation groups of student and teacher.

    In mjlab's tasks ``"actor"`` has the robot's measurements, ``"critic"`` privileged values.
    """

    student: RslRlModelCfg = field(
        default_factory=lambda: RslRlModelCfg(
            class_name="RNNModel",
            rnn_type="lstm",
            distribution_cfg={"class_name": "GaussianDistribution", "init_std": 0.1},
        )
    )
    """The student. It acts with its distribution's noise while data is collected."""

    teacher: RslRlModelCfg | TbpttControllerCfg = field(
        default_factory=lambda: RslRlModelCfg(
            distribution_cfg={"class_name": "GaussianDistribution", "init_std": 1.0}
        )
    )
    """The teacher: the ``actor`` of the config that it was trained with, including distribution.

    It may also be a controller.
    """

    algorithm: TbpttDistillationAlgorithmCfg = field(default_factory=TbpttDistillationAlgorithmCfg)
    """The algorithm's options."""


@dataclass
class TbpttPpoAlgorithmCfg(PpoOptions, RslRlPpoAlgorithmCfg):
    """Options of :class:`rsl_tbptt.algorithms.TbpttPPO`, all with rsl_rl's defaults.

    Use it in place of ``RslRlPpoAlgorithmCfg``.
    """

    class_name: str = "rsl_tbptt.algorithms:TbpttPPO"
    """Qualified name of the algorithm, ``"module:Class"``, which rsl_rl imports."""

    def __post_init__(self) -> None:
        """Accept a config class as ``teacher_cfg``, too."""
        if self.teacher_cfg is not None and not isinstance(self.teacher_cfg, dict):
            self.teacher_cfg = model_arguments(asdict(self.teacher_cfg))


class EpisodicPolicy:
    """A recurrent policy that clears its state where an episode starts.

    mjlab's viewers step a policy and the environment, but do not tell the policy which episodes
    ended.
    """

    def __init__(self, policy: MLPModel, env: RslRlVecEnvWrapper) -> None:
        """Take the policy and the environment that it acts in."""
        self._policy, self._env = policy, env

    def __call__(self, obs: TensorDict) -> torch.Tensor:
        """Return actions, shape (N, A), for observations of batch size (N,)."""
        self._policy.reset(self._env.episode_length_buf == 0)
        return self._policy(obs)

    def reset(self) -> None:
        """Clear the state in all environments."""
        self._policy.reset()


class TbpttMjlabRecurrentRunner(MjlabOnPolicyRunner):
    """mjlab's runner, which also loads a GPU's checkpoint on a CPU and clears memory in play.

    For comparison ``--agent.algorithm.class-name PPO`` trains with rsl_rl's PPO: options that
    it lacks are left out.
    """

    def __init__(
        self, env: RslRlVecEnvWrapper, train_cfg: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """Build models, algorithm and logger; the arguments are those of mjlab's runner."""
        algorithm = train_cfg["algorithm"]
        if algorithm["class_name"] == "PPO":
            names = {option.name for option in fields(RslRlPpoAlgorithmCfg)}
            known = {name: value for name, value in algorithm.items() if name in names}
            train_cfg = {**train_cfg, "algorithm": known}
        super().__init__(env, train_cfg, *args, **kwargs)

    def load(
        self,
        path: str,
        load_cfg: dict[str, bool] | None = None,
        strict: bool = True,
        map_location: str | None = None,
    ) -> dict:
        """Load a checkpoint as mjlab does, by default to the runner's device.

        Args:
            path: Checkpoint of any device.
            load_cfg: Parts to load, or None for all.
            strict: Whether parameters must match exactly.
            map_location: Device of the loaded tensors; None means the runner's, as ``train`` names
                none.

        Returns:
            The values saved in addition to the models.
        """
        return super().load(path, load_cfg, strict, map_location or self.device)

    def get_inference_policy(self, device: str | None = None) -> MLPModel | EpisodicPolicy:
        """Return the policy that ``play`` runs.

        Args:
            device: Device of the policy.

        Returns:
            The model; with memory, in an :class:`EpisodicPolicy` that clears its state.
        """
        policy = super().get_inference_policy(device)
        return EpisodicPolicy(policy, self.env) if policy.is_recurrent else policy


class TbpttMjlabDistillationRunner(TbpttMjlabRecurrentRunner, DistillationRunner):
    """The distillation runner that mjlab lacks, for tasks with a ``TbpttDistillationRunnerCfg``.

    rsl_rl's runner checks before training that the teacher has been loaded.
    """

    alg: Any
    """An algorithm of this package, or any other that the task's config names."""

    def __init__(
        self,
        env: RslRlVecEnvWrapper,
        train_cfg: dict[str, Any],
        log_dir: str | None = None,
        device: str = "cpu",
        **kwargs: Any,
    ) -> None:
        """Build models, algorithm and logger.

        Args:
            env: The environment.
            train_cfg: A :class:`TbpttDistillationRunnerCfg` as a dictionary.
            log_dir: Folder of logs and checkpoints, or None for neither.
            device: Device of models and update.
            **kwargs: Arguments of a task's own runner.
        """
        train_cfg = copy.deepcopy(train_cfg)  # rsl_rl removes entries from it
        train_cfg |= {role: model_arguments(train_cfg[role]) for role in ("student", "teacher")}
        super().__init__(env, train_cfg, log_dir, device, **kwargs)

    def load(
        self,
        path: str,
        load_cfg: dict[str, bool] | None = None,
        strict: bool = True,
        map_location: str | None = None,
    ) -> dict:
        """Load a checkpoint: the teacher from a teacher's, everything from a student's.

        It includes the environment's step counter, which sets the stage of its curricula.

        Args:
            path: Checkpoint of PPO or distillation.
            load_cfg: Parts to load, or None for the above. ``play`` asks for the ``"actor"``, which
                is the student here.
            strict: Whether parameters must match exactly.
            map_location: Device of the loaded tensors; None means the runner's.

        Returns:
            The values saved in addition to the models.

        Raises:
            ValueError: If parameters do not fit, or if the models were configured differently.
                Nothing is changed then.
        """
        self.alg.checkpoint_path = path
        if load_cfg is not None and "actor" in load_cfg:
            load_cfg = {"student": load_cfg["actor"]}
        return super().load(path, load_cfg, strict, map_location)


def model_arguments(model_cfg: dict[str, Any]) -> dict[str, Any]:
    """Remove from a model's config the fields that mjlab's config class has for other models.

    Args:
        model_cfg: A ``RslRlModelCfg`` as a dictionary, or the config of a controller.

    Returns:
        ``"class_name"`` and the arguments of that class.
    """
    unset = {name for name in ("cnn_cfg", "distribution_cfg") if model_cfg.get(name) is None}
    if model_cfg.get("rnn_type") is None:
        unset |= {"rnn_type", "rnn_hidden_dim", "rnn_num_layers"}
    return {name: value for name, value in model_cfg.items() if name not in unset}

"""Isaac Lab config classes for the algorithms of this package, for Isaac Lab 3.0 and 2.3.

They are Isaac Lab's own classes with the options of the algorithms, so a task config changes one
line and keeps every other key. Each field is passed to the constructor under the same name. With
Isaac Lab 2.3 the import registers the algorithms in rsl_rl 3.1.2; ``loss_type="kl"`` and
``teacher_coef`` need Isaac Lab 3.0.
"""

from __future__ import annotations

import copy
import importlib
from dataclasses import MISSING
from typing import Any

from rsl_tbptt.algorithms.options import DistillationOptions, PpoOptions
from rsl_tbptt.compat import MODELS_ERA, rsl_rl_era

try:
    from isaaclab.utils import configclass
    from isaaclab_rl.rsl_rl import RslRlDistillationAlgorithmCfg, RslRlPpoAlgorithmCfg
except ImportError as error:
    from rsl_tbptt.installation import install

    raise ImportError(
        "rsl_tbptt.integrations.isaaclab needs Isaac Lab 3.0 on Python 3.12, and importing it "
        f"failed: {error}. Install it with: {install('isaaclab')}. Isaac Lab 2.3 comes "
        "with Isaac Sim: import this in its Python, after its AppLauncher."
    ) from error


def _of_teacher(cfg: Any) -> Any:
    """Return a model's config without the fields that Isaac Lab has for older releases of rsl_rl.

    Its script removes them from a role's config, but not from those within another config.
    """
    cfg = copy.deepcopy(cfg)
    for name in ("stochastic", "init_noise_std", "noise_std_type", "state_dependent_std"):
        vars(cfg).pop(name, None)
    return cfg


if rsl_rl_era() == MODELS_ERA:
    from isaaclab_rl.rsl_rl import RslRlCNNModelCfg, RslRlMLPModelCfg

    _MODULE = "rsl_tbptt.algorithms:"
    _REQUIRED: Any = MISSING

    @configclass
    class TbpttCnnRnnModelCfg(RslRlCNNModelCfg):
        """Options of :class:`rsl_tbptt.models.CNNRNNModel`; not with Isaac Lab 2.3."""

        class_name: str = "rsl_tbptt.models:CNNRNNModel"
        """Qualified name of the model, ``"module:Class"``, which rsl_rl imports."""

        rnn_type: str = "lstm"
        """Recurrent layers: ``"lstm"``, ``"gru"``, ``"sru"`` or a cell of your own."""

        rnn_hidden_dim: int = 256
        """Size of the hidden state."""

        rnn_num_layers: int = 1
        """Number of recurrent layers."""

        image_scale: float = 1.0
        """Factor of images before their CNN: 1 / 255 for bytes."""

    @configclass
    class TbpttTeacherCfg:
        """One of several teachers; see :class:`TbpttTeachersCfg`."""

        cfg: RslRlMLPModelCfg = _REQUIRED
        """The model's config: the ``actor`` of the config that it was trained with."""

        checkpoint: str | None = None
        """File of PPO or distillation with its parameters; read when training starts."""

        obs_groups: list[str] | None = None
        """Groups that it observes; None takes ``obs_groups["teacher"]`` of the runner's config."""

        def __post_init__(self) -> None:
            """Remove fields that the model does not take."""
            self.cfg = _of_teacher(self.cfg)

    @configclass
    class TbpttTeachersCfg:
        """Options of :class:`rsl_tbptt.models.SelectedTeachers`; not with Isaac Lab 2.3.

        Use it as the ``teacher`` of a distillation's config.
        """

        class_name: str = "rsl_tbptt.models:SelectedTeachers"
        """Qualified name of the model, ``"module:Class"``, which rsl_rl imports."""

        selector: str = _REQUIRED
        """Observation group with the number of each environment's teacher, or a function's name."""

        teachers: dict[str, TbpttTeacherCfg] = _REQUIRED
        """The teachers by name; a teacher's number is its place, from 0 on."""

        distribution_cfg: None = None
        """Not used; Isaac Lab's script looks for it in every model's config."""

        stochastic: bool = False
        """Not used either; it does not reach the model."""

    @configclass
    class TbpttControllerCfg:
        """A teacher that is a controller; not with Isaac Lab 2.3. Subclass it to add arguments."""

        class_name: str = _REQUIRED
        """Qualified name of a class or function; see docs/reference/distillation.md#controllers."""

        distribution_cfg: None = None
        """Not used; Isaac Lab's script looks for it in every model's config."""

        stochastic: bool = False
        """Not used either; it does not reach the controller."""
else:
    # Registers the algorithms.
    importlib.import_module("rsl_tbptt.integrations.rsl_rl_v3")

    _MODULE = ""


# Wider than Isaac Lab's types on purpose: more losses, and None if rsl_rl accepts it.
@configclass
class TbpttDistillationAlgorithmCfg(DistillationOptions, RslRlDistillationAlgorithmCfg):
    """Options of :class:`rsl_tbptt.algorithms.TbpttDistillation`, all with defaults.

    Use it in place of ``RslRlDistillationAlgorithmCfg``; it runs with Isaac Lab's
    ``DistillationRunner``.
    """

    class_name: str = f"{_MODULE}TbpttDistillation"
    """Name of the algorithm: ``"module:Class"``, which rsl_rl imports; in 2.3 the class only."""


@configclass
class TbpttPpoAlgorithmCfg(PpoOptions, RslRlPpoAlgorithmCfg):
    """Options of :class:`rsl_tbptt.algorithms.TbpttPPO`, all with rsl_rl's defaults.

    Use it in place of ``RslRlPpoAlgorithmCfg``; it runs with Isaac Lab's
    ``OnPolicyRunner``.
    """

    class_name: str = f"{_MODULE}TbpttPPO"
    """Name of the algorithm: ``"module:Class"``, which rsl_rl imports; in 2.3 the class only."""

    def __post_init__(self) -> None:
        """Accept the config of one teacher or several as ``teacher_cfg``, too."""
        if self.teacher_cfg is not None and not isinstance(self.teacher_cfg, dict):
            self.teacher_cfg = _of_teacher(self.teacher_cfg).to_dict()

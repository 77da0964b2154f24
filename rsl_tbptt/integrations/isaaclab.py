"""Isaac Lab config classes for the algorithms of this package, for Isaac Lab 3.0 and 2.3.

They are Isaac Lab's own with the options of the algorithms, so a task config changes one line and
keeps every other key. Each field reaches the constructor as a keyword argument of the same name.
With Isaac Lab 2.3 the import registers the algorithms in rsl_rl 3.1.2; ``loss_type="kl"`` and
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
    from rsl_tbptt.tools.doctor import install

    raise ImportError(
        "rsl_tbptt.integrations.isaaclab needs Isaac Lab 3.0 on Python 3.12, and importing it "
        f"failed: {error}. Install it with: {install('isaaclab')}. Isaac Lab 2.3 comes "
        "with Isaac Sim: import this in its Python, after its AppLauncher."
    ) from error

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
        """The memory, ``"lstm"`` or ``"gru"``."""

        rnn_hidden_dim: int = 256
        """Size of the hidden state."""

        rnn_num_layers: int = 1
        """Recurrent layers."""

        image_scale: float = 1.0
        """What images are multiplied by before their CNN: 1 / 255 for bytes."""

    @configclass
    class TbpttTeacherCfg:
        """One of several teachers; see :class:`TbpttTeachersCfg`."""

        cfg: RslRlMLPModelCfg = _REQUIRED
        """The model's config: the ``actor`` of the config that it was trained with."""

        checkpoint: str | None = None
        """File of PPO or distillation that holds its parameters; read when training starts."""

        obs_groups: list[str] | None = None
        """What it observes; None is what ``obs_groups["teacher"]`` of the runner's config says."""

        def __post_init__(self) -> None:
            """Leave out of the model's config what Isaac Lab has for older releases of rsl_rl.

            Its script leaves it out of a single teacher's, and would look for it there again.
            """
            self.cfg = copy.deepcopy(self.cfg)
            for name in ("stochastic", "init_noise_std", "noise_std_type", "state_dependent_std"):
                vars(self.cfg).pop(name, None)

    @configclass
    class TbpttTeachersCfg:
        """Options of :class:`rsl_tbptt.models.SelectedTeachers`; not with Isaac Lab 2.3.

        It stands where a distillation's config has its ``teacher``.
        """

        class_name: str = "rsl_tbptt.models:SelectedTeachers"
        """Qualified name of the model, ``"module:Class"``, which rsl_rl imports."""

        selector: str = _REQUIRED
        """Observation group with the number of each environment's teacher, or a function's name."""

        teachers: dict[str, TbpttTeacherCfg] = _REQUIRED
        """The teachers by name; their numbers are their places, from 0 on."""

        distribution_cfg: None = None
        """Of no use here; Isaac Lab's script looks for it in every model's config."""

        stochastic: bool = False
        """The same; it does not reach the model."""
else:
    # Registers the algorithms.
    importlib.import_module("rsl_tbptt.integrations.rsl_rl_v3")

    _MODULE = ""


# Wider than Isaac Lab's types on purpose: more losses, and None where rsl_rl takes it.
@configclass
class TbpttDistillationAlgorithmCfg(DistillationOptions, RslRlDistillationAlgorithmCfg):
    """Options of :class:`rsl_tbptt.algorithms.TbpttDistillation`, all with defaults.

    It stands where a task has ``RslRlDistillationAlgorithmCfg`` and runs under Isaac Lab's
    ``DistillationRunner``.
    """

    class_name: str = f"{_MODULE}TbpttDistillation"
    """Name of the algorithm: ``"module:Class"``, which rsl_rl imports; in 2.3 the class alone."""


@configclass
class TbpttPpoAlgorithmCfg(PpoOptions, RslRlPpoAlgorithmCfg):
    """Options of :class:`rsl_tbptt.algorithms.TbpttPPO`, all with rsl_rl's defaults.

    It stands where a task has ``RslRlPpoAlgorithmCfg`` and runs under Isaac Lab's
    ``OnPolicyRunner``.
    """

    class_name: str = f"{_MODULE}TbpttPPO"
    """Name of the algorithm: ``"module:Class"``, which rsl_rl imports; in 2.3 the class alone."""

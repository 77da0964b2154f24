"""Isaac Lab config classes for the algorithms of this package, for Isaac Lab 3.0 and 2.3.

They are Isaac Lab's own classes with the options of the algorithms, so a task config changes one
line and keeps every other key. Each field is passed to the constructor under the same name. With
Isaac Lab 2.3 the import registers the algorithms in rsl_rl 3.1.2; ``loss_type="kl"`` and
``teacher_coef`` need Isaac Lab 3.0.
"""

from __future__ import annotations

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

if rsl_rl_era() == MODELS_ERA:
    from isaaclab_rl.rsl_rl import RslRlCNNModelCfg

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
        """Accept a config class as ``teacher_cfg``, too.

        Isaac Lab's script removes the fields for older releases of rsl_rl from a role's config, but
        not from this one.
        """
        if to_dict := getattr(self.teacher_cfg, "to_dict", None):
            old = {"stochastic", "init_noise_std", "noise_std_type", "state_dependent_std"}
            self.teacher_cfg = {k: v for k, v in to_dict().items() if k not in old}

"""Where supported versions of rsl_rl differ and the algorithms have to know."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import torch
from rsl_rl.algorithms import PPO

from rsl_tbptt.compat.supported import MODELS_ERA, rsl_rl_era

# The models, the distribution and the module names of the installed era; imported from here.
if TYPE_CHECKING or rsl_rl_era() == MODELS_ERA:
    from rsl_rl.extensions import RandomNetworkDistillation
    from rsl_rl.models import CNNModel, MLPModel, RNNModel
    from rsl_rl.modules import GaussianDistribution
    from rsl_rl.utils import resolve_callable

    OWN_MODELS = (MLPModel, RNNModel, CNNModel)
else:
    from rsl_rl.modules import RandomNetworkDistillation

    from rsl_tbptt.compat.rsl_rl3.models import (
        GaussianDistribution,
        MLPModel,
        RNNModel,
        resolve_callable,
    )

    OWN_MODELS = (MLPModel, RNNModel)

__all__ = [
    "OWN_MODELS",
    "UPDATE_NORMALIZES",
    "GaussianDistribution",
    "MLPModel",
    "RNNModel",
    "RandomNetworkDistillation",
    "resolve_callable",
    "rnd_optimizer",
]

UPDATE_NORMALIZES = "update_normalization" in inspect.getsource(PPO.update)
"""Whether PPO's ``update()`` updates the normalisers (5.5) or the rollout does (before)."""


def rnd_optimizer(algorithm: PPO) -> torch.optim.Optimizer:
    """Return the optimiser of RND's predictor: RND's own since 5.4, PPO's before."""
    return getattr(algorithm.rnd, "optimizer", None) or algorithm.rnd_optimizer  # type: ignore[attr-defined]

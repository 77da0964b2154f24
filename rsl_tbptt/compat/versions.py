"""Where supported versions of rsl_rl differ and the algorithms have to know; imported from here."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from rsl_rl import algorithms
from torch import nn

from rsl_tbptt.compat.supported import MODELS_ERA, rsl_rl_era

if TYPE_CHECKING or rsl_rl_era() == MODELS_ERA:
    from rsl_rl.algorithms import PPO, Distillation
    from rsl_rl.extensions import RandomNetworkDistillation
    from rsl_rl.models import CNNModel, MLPModel, RNNModel
    from rsl_rl.modules import GaussianDistribution
    from rsl_rl.utils import resolve_callable

    from rsl_tbptt.checkpoints.reading import config_advice, teacher_state_dict

    OWN_MODELS = (MLPModel, RNNModel, CNNModel)
    CLIPS_TOGETHER = False
else:
    from rsl_rl.modules import RandomNetworkDistillation

    from rsl_tbptt.compat.rsl_rl3.algorithms import PPO, Distillation
    from rsl_tbptt.compat.rsl_rl3.checkpoints import config_advice, teacher_state_dict
    from rsl_tbptt.compat.rsl_rl3.models import (
        GaussianDistribution,
        MLPModel,
        RNNModel,
        resolve_callable,
    )

    CNNModel = None
    OWN_MODELS = (MLPModel, RNNModel)
    CLIPS_TOGETHER = True

__all__ = [
    "CLIPS_TOGETHER",
    "OWN_MODELS",
    "PPO",
    "UPDATE_NORMALIZES",
    "CNNModel",
    "Distillation",
    "GaussianDistribution",
    "MLPModel",
    "RNNModel",
    "RandomNetworkDistillation",
    "clip_gradients",
    "config_advice",
    "resolve_callable",
    "rnd_optimizer",
    "teacher_state_dict",
]

UPDATE_NORMALIZES = "update_normalization" in inspect.getsource(algorithms.PPO.update)
"""Whether PPO's ``update()`` updates the normalisers (5.5) or the rollout does (before)."""


def rnd_optimizer(algorithm: Any) -> torch.optim.Optimizer:
    """Return the optimiser of RND's predictor: RND's own since 5.4, PPO's before."""
    return getattr(algorithm.rnd, "optimizer", None) or algorithm.rnd_optimizer


def clip_gradients(
    parameters_of_models: Sequence[Sequence[nn.Parameter]], max_norm: float
) -> list[torch.Tensor]:
    """Clip the gradients of PPO's models: each on its own, in rsl_rl 3 by the norm over all.

    Args:
        parameters_of_models: Parameters of actor and critic; a shared encoder's are in both.
        max_norm: Threshold of the norm.

    Returns:
        Each model's norm before. Shape: () each.
    """
    device = parameters_of_models[0][0].device
    if not CLIPS_TOGETHER:
        return [
            nn.utils.clip_grad_norm_(parameters, max_norm).to(device)
            for parameters in parameters_of_models
        ]
    gradients = [[p.grad for p in own if p.grad is not None] for own in parameters_of_models]
    norms = [nn.utils.get_total_norm(own).to(device) for own in gradients]
    together = dict.fromkeys(p for own in parameters_of_models for p in own)
    nn.utils.clip_grad_norm_(together, max_norm)
    return norms

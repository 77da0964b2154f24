"""Where supported versions of rsl_rl differ and the algorithms have to know."""

from __future__ import annotations

import inspect

import torch
from rsl_rl.algorithms import PPO

UPDATE_NORMALIZES = "update_normalization" in inspect.getsource(PPO.update)
"""Whether PPO's ``update()`` updates the normalisers (5.5) or the rollout does (5.0, 5.4)."""


def rnd_optimizer(algorithm: PPO) -> torch.optim.Optimizer:
    """Return the optimiser of RND's predictor: RND's own since 5.4, PPO's in 5.0."""
    return getattr(algorithm.rnd, "optimizer", None) or algorithm.rnd_optimizer  # type: ignore[attr-defined]

"""Differences between supported releases of rsl_rl; import these names from here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed, nn

from rsl_tbptt.compat import MODELS_ERA, rsl_rl_era

if TYPE_CHECKING or rsl_rl_era() == MODELS_ERA:
    from rsl_rl.algorithms import PPO, Distillation
    from rsl_rl.extensions import RandomNetworkDistillation
    from rsl_rl.models import CNNModel, MLPModel, RNNModel
    from rsl_rl.modules import GaussianDistribution, HeteroscedasticGaussianDistribution
    from rsl_rl.utils import resolve_callable

    from rsl_tbptt.compat.checkpoints import config_advice, teacher_state_dict

    OWN_MODELS = (MLPModel, RNNModel, CNNModel)
    GAUSSIANS = (GaussianDistribution, HeteroscedasticGaussianDistribution)
    CLIPS_TOGETHER = False
else:
    from rsl_rl.modules import RandomNetworkDistillation

    from rsl_tbptt.compat.rsl_rl3 import (
        PPO,
        Distillation,
        GaussianDistribution,
        MLPModel,
        RNNModel,
        config_advice,
        resolve_callable,
        teacher_state_dict,
    )

    CNNModel = None
    OWN_MODELS = (MLPModel, RNNModel)
    GAUSSIANS = ()  # their KL divergence is another one
    CLIPS_TOGETHER = True


def import_function(option: str, value: Any, others: Iterable[str]) -> Callable[..., Any]:
    """Return the function, class or cell that an option names, or the function itself.

    Args:
        option: Name of the option, for the message.
        value: A function or its qualified name.
        others: Other values of the option, for the message.

    Raises:
        ValueError: If it cannot be imported.
    """
    try:
        return resolve_callable(value)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        or_known = f"one of {sorted(others)} or " if (others := [*others]) else ""
        raise ValueError(
            f"{option} is {value!r}, expected {or_known}a qualified name, such as"
            f" 'my_package.module:name'; it cannot be imported: {error}"
        ) from error


def rnd_optimizer(algorithm: Any) -> torch.optim.Optimizer:
    """Return the optimiser of RND's predictor: RND's own since 5.4, PPO's before."""
    return getattr(algorithm.rnd, "optimizer", None) or algorithm.rnd_optimizer


def world_size() -> int:
    """Return the number of ranks that torchrun, or a script like it, has started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def join_on_cpu(runner: Any) -> None:
    """Join the ranks by gloo, as ``_configure_multi_gpu`` of rsl_rl 5.0.1 to 5.5 does by NCCL.

    Args:
        runner: A runner of these releases on the device "cpu", before it builds its algorithm.
            Another one in the same process uses the existing process group.
    """
    rank, local_rank = (int(os.environ.get(name, "0")) for name in ("RANK", "LOCAL_RANK"))
    sizes = {"global_rank": rank, "local_rank": local_rank, "world_size": world_size()}
    runner.is_distributed, runner.cfg["multi_gpu"] = True, sizes
    runner.gpu_global_rank, runner.gpu_local_rank, runner.gpu_world_size = sizes.values()
    if not distributed.is_initialized():
        distributed.init_process_group("gloo", rank=rank, world_size=world_size())

"""rsl_rl's optimisers in one kernel for all parameters, at a rate that only the device knows."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict

_WITH_FUSED_KERNELS = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)


def use_fused_kernels(optimizer: torch.optim.Optimizer) -> None:
    """Let ``optimizer`` step by torch's fused kernel, where there is one; its checkpoints stay.

    rsl_rl lists a shared encoder's parameters twice, under the actor and under the critic, and on a
    CPU steps them twice, one after the other. Kernels for many tensors would step them at the same
    time, so that there each parameter is stepped on its own.

    Checkpoints are written as rsl_rl writes them (not fused, step counts on the CPU) and read as
    rsl_rl or this package wrote them, so that a run can go on with either.

    Args:
        optimizer: An optimiser of rsl_rl's. RMSprop, which has no such kernel, is left as it is.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    on_known_devices = all(p.device.type in ("cpu", "cuda") for p in parameters)
    if type(optimizer) not in _WITH_FUSED_KERNELS or not on_known_devices:
        return
    shares = len(set(parameters)) < len(parameters)
    kernels = {"foreach": False} if shares else {"fused": True}
    for group in optimizer.param_groups:
        group.update(kernels)
    optimizer.register_state_dict_post_hook(_as_rsl_rl_writes)
    optimizer.register_load_state_dict_pre_hook(partial(_with_kernels, kernels))


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def step_at(optimizer: torch.optim.Optimizer, rate: torch.Tensor) -> None:
    """Step with a learning rate on the device, without fetching it; ``param_groups`` keep theirs.

    Args:
        optimizer: The optimiser. Without a fused kernel (RMSprop, and models that share parameters)
            the rate is fetched, once.
        rate: Learning rate of all parameters, on their device. Shape: (), float64.
    """
    kept = [group["lr"] for group in optimizer.param_groups]
    fused = all(group.get("fused") for group in optimizer.param_groups)
    # CUDA's kernels read a float32. Without one each parameter's step would fetch the rate.
    used = rate.item() if not fused else rate if rate.is_cpu else rate.float()
    try:
        for group in optimizer.param_groups:
            group["lr"] = used
        optimizer.step()
    finally:
        for group, lr in zip(optimizer.param_groups, kept, strict=True):
            group["lr"] = lr


def follow_kl(rate: torch.Tensor, kl: torch.Tensor, desired_kl: float) -> torch.Tensor:
    """Move a learning rate towards the desired KL divergence, as rsl_rl's adaptive schedule does.

    Nothing waits for the device: the host learns the rate when it asks for it.

    Args:
        rate: Learning rate. Shape: (), float64.
        kl: KL divergence from the policy that acted. Shape: ().
        desired_kl: What it shall be; up to its double and down to its half the rate stays.

    Returns:
        The new rate, within 1e-5 and 1e-2 where it moved. Shape: (), float64.
    """
    slower, faster = (rate / 1.5).clamp(min=1e-5), (rate * 1.5).clamp(max=1e-2)
    too_small = (kl > 0.0) & (kl < desired_kl / 2.0)
    return torch.where(kl > desired_kl * 2.0, slower, torch.where(too_small, faster, rate))


def _as_rsl_rl_writes(_: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    state = {
        index: {name: v.cpu() if name == "step" else v for name, v in entries.items()}
        for index, entries in state_dict["state"].items()
    }
    kernels = {"fused": None, "foreach": None}
    groups = [{**group, **kernels} for group in state_dict["param_groups"]]
    return {**state_dict, "state": state, "param_groups": groups}


def _with_kernels(
    kernels: dict[str, bool], _: torch.optim.Optimizer, state_dict: dict[str, Any]
) -> dict[str, Any]:
    groups = [{**group, **kernels} for group in state_dict["param_groups"]]
    return {**state_dict, "param_groups": groups}


def update_normalization(
    models: Iterable[Any], observations: TensorDict, step_batches: Iterable[slice]
) -> None:
    """Let the normalisers of models learn from a rollout.

    Args:
        models: Models with rsl_rl's ``update_normalization``.
        observations: Observations of the rollout, batch size (T, N).
        step_batches: Steps that are handled at once, from ``step_batches``: on every rank as many,
            as normalisers may exchange sums.
    """
    models = list(models)
    for steps in step_batches:
        rows = observations[steps].flatten(0, 1)
        for model in models:
            model.update_normalization(rows)


_MAX_ROWS = {"cpu": 4096, "cuda": 65536}
"""Robot-steps at once. On CPU they shall fit the cache: more is slower than step by step. On a GPU
more only spares launches; what it takes beside the storage stays bounded."""


def step_batches(num_steps: int, num_envs: int, device: torch.device | str) -> list[slice]:
    """Cut a rollout into pieces of as many whole steps as are handled best at once.

    Args:
        num_steps: Length T of the rollout.
        num_envs: Number of environments N.
        device: Where the rollout lives.

    Returns:
        Slices of steps in time order, at least one step each, that cover the rollout.
    """
    max_rows = _MAX_ROWS.get(torch.device(device).type, _MAX_ROWS["cuda"])
    length = max(1, max_rows // num_envs)
    return [slice(first, first + length) for first in range(0, num_steps, length)]

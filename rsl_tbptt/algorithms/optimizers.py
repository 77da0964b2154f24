"""rsl_rl's optimisers with fused kernels, and with a learning rate that stays on the device."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn
from torch.overrides import TorchFunctionMode

from rsl_tbptt.algorithms import fused
from rsl_tbptt.algorithms.replay import Objective
from rsl_tbptt.compat.versions import CLIPS_TOGETHER

_WITH_FUSED_KERNELS = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)


def use_fused_kernels(optimizer: torch.optim.Optimizer) -> None:
    """Make ``optimizer`` use torch's fused kernel if it has one; checkpoints do not change.

    rsl_rl lists a shared encoder's parameters twice, for the actor and for the critic, and on a
    CPU steps them twice, one after the other. Kernels for many tensors would step both at the same
    time, so with a shared encoder each parameter is stepped separately.

    Checkpoints are written as rsl_rl writes them (not fused, step counts on the CPU) and read in
    either form, so that you can continue a run with rsl_rl or with this package.

    Args:
        optimizer: An optimiser of rsl_rl's. RMSprop, which has no such kernel, is not changed.
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


def check_optimizer(optimizer: torch.optim.Optimizer, checkpoint: Mapping[str, Any]) -> None:
    """Check that the state of an optimiser in a checkpoint fits.

    Args:
        optimizer: The optimiser.
        checkpoint: The checkpoint, with the state under "optimizer_state_dict".

    Raises:
        ValueError: If there is none, or it is of another kind or number of parameters.
    """
    key = "optimizer_state_dict"
    leave_out = "leave 'optimizer' out of load_cfg to begin with a new one"
    if key not in checkpoint:
        raise ValueError(
            f"The checkpoint lacks '{key}', it holds {sorted(checkpoint)}: {leave_out}."
        )
    saved, expected = map(_form, (checkpoint[key]["param_groups"], optimizer.param_groups))
    if saved != expected:
        raise ValueError(
            f"The checkpoint's optimiser has {saved}, expected {expected}: keep the option"
            f" optimizer and the models, or {leave_out}."
        )


def _form(groups: list[dict[str, Any]]) -> str:
    """Describe the number of parameters and the kind of optimiser of each group."""
    kinds = [sorted({"alpha", "betas", "momentum"} & group.keys()) for group in groups]
    sizes = [len(group["params"]) for group in groups]
    return " and ".join(f"{n} parameters with {k}" for n, k in zip(sizes, kinds, strict=True))


def common_rate(optimizer: torch.optim.Optimizer) -> float:
    """Return the learning rate of all parameters.

    Raises:
        ValueError: If groups of parameters have different ones.
    """
    rates = {group["lr"] for group in optimizer.param_groups}
    if len(rates) > 1:
        raise ValueError(
            f"The optimiser's groups have the learning rates {sorted(rates)}, expected one rate, at"
            " which every step trains all parameters: other options may differ."
        )
    return rates.pop()


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all parameters, which have the same.

    Raises:
        ValueError: If they have not; see :func:`common_rate`.
    """
    common_rate(optimizer)
    for group in optimizer.param_groups:
        group["lr"] = rate


def is_fused(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimiser steps all parameters at once, at a rate on their device."""
    return all(group.get("fused") for group in optimizer.param_groups)


def step_at(optimizer: torch.optim.Optimizer, rate: torch.Tensor | None) -> None:
    """Step with a learning rate on the device, without fetching it or changing ``param_groups``.

    Args:
        optimizer: The optimiser. Without a fused kernel (RMSprop, models that share parameters) the
            rate is fetched once.
        rate: Learning rate of all parameters, on their device, shape (), float64; or None for the
            optimiser's own.
    """
    groups, changes = optimizer.param_groups, {}
    if rate is not None:
        # CUDA's kernels read a float32. Without fused kernels each parameter's step would fetch it.
        on_device = rate if rate.is_cpu else rate.float()
        changes["lr"] = on_device if is_fused(optimizer) else rate.item()
    if "capturable" in groups[0] and groups[0]["params"][0].is_cuda:
        # Torch warns of steps that could be captured and are not.
        changes["capturable"] = torch.cuda.is_current_stream_capturing()
    kept = [{name: group[name] for name in changes} for group in groups]
    try:
        for group in groups:
            group.update(changes)
        optimizer.step()
    finally:
        for group, before in zip(groups, kept, strict=True):
            group.update(before)


def clip_gradients(
    objectives: Sequence[Objective], max_grad_norm: float | None
) -> list[torch.Tensor]:
    """Clip the gradients of models: each by its norm, in rsl_rl 3 by the norm over all.

    Args:
        objectives: The models, at most two; a shared encoder's parameters are in both.
        max_grad_norm: Norm to clip to, or None.

    Returns:
        Norm of each model before clipping. Shape: () each.
    """
    parameters = [objective.parameters for objective in objectives]
    gradients = [[p.grad for p in each if p.grad is not None] for each in parameters]
    together = dict.fromkeys(chain(*parameters))
    max_norm, device = max_grad_norm or math.inf, parameters[0][0].device
    are_apart = not CLIPS_TOGETHER and len(together) == sum(map(len, parameters))
    if objectives[0].replay.runs_triton and any(gradients) and are_apart:
        return fused.clip_gradients(gradients, max_norm)
    if not CLIPS_TOGETHER:
        return [_on_device(nn.utils.clip_grad_norm_(each, max_norm), device) for each in parameters]
    norms = [_on_device(nn.utils.get_total_norm(each), device) for each in gradients]
    nn.utils.clip_grad_norm_(together, max_norm)
    return norms


def _on_device(norm: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a norm on a device. Without gradients torch's is 0 on the CPU.

    A recording could not copy it from there.
    """
    return norm if norm.device == device else torch.zeros((), dtype=norm.dtype, device=device)


def follow_kl(rate: torch.Tensor, kl: torch.Tensor, num_samples: int, desired_kl: float) -> None:
    """Move a learning rate towards the desired KL divergence, as rsl_rl's adaptive schedule does.

    It is lowered to 1e-5 at least and raised to 1e-2 at most. Nothing waits for the device: the
    host gets the rate only when it reads it.

    Args:
        rate: Learning rate, which is changed in place. Shape: (), float64.
        kl: Sum of samples' KL divergences from the policy that acted. Shape: ().
        num_samples: Number of samples.
        desired_kl: The target. From half of it to double, the rate does not change.
    """
    kl = kl / num_samples
    slower, faster = (rate / 1.5).clamp(min=1e-5), (rate * 1.5).clamp(max=1e-2)
    too_small = (kl > 0.0) & (kl < desired_kl / 2.0)
    rate.copy_(torch.where(kl > desired_kl * 2.0, slower, torch.where(too_small, faster, rate)))


def _as_rsl_rl_writes(
    optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]
) -> dict[str, Any]:
    state = {
        index: {name: v.cpu() if name == "step" else v for name, v in entries.items()}
        for index, entries in state_dict["state"].items()
    }
    kernels = {"fused": None, "foreach": None}
    return _with_kernels(kernels, optimizer, {**state_dict, "state": state})


def _with_kernels(
    kernels: Mapping[str, bool | None], _: torch.optim.Optimizer, state_dict: dict[str, Any]
) -> dict[str, Any]:
    groups = [{**group, **kernels} for group in state_dict["param_groups"]]
    return {**state_dict, "param_groups": groups}


def update_normalization(
    models: Sequence[Any], observations: TensorDict, step_batches: Iterable[slice]
) -> None:
    """Update the normalisers of models with a rollout.

    Args:
        models: Models with rsl_rl's ``update_normalization``.
        observations: Observations of the rollout, batch size (T, N).
        step_batches: Steps that are processed at once, from ``step_batches``. Every rank needs the
            same number, as normalisers may exchange sums.
    """
    with in_place(models), _CountsOnDevice():
        for steps in step_batches:
            rows = observations[steps].flatten(0, 1)
            for model in models:
                model.update_normalization(rows)


class _CountsOnDevice(TorchFunctionMode):
    """Writes a number that becomes a tensor on its device: the host would wait for a copy of it.

    rsl_rl's normaliser makes one of the number of rows.
    """

    def __torch_function__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch."""
        if call is torch.tensor and isinstance(args[0], int):
            call, args = torch.full, ((), *args)
        return call(*args, **(kwargs or {}))


@contextlib.contextmanager
def in_place(models: Iterable[nn.Module]) -> Iterator[None]:
    """Copy buffers that are replaced inside into their old tensors, which keep their addresses.

    rsl_rl's normaliser replaces its standard deviation; a recorded step would not see the new one.
    """
    owners = {module: dict(module._buffers) for model in models for module in model.modules()}
    try:
        yield
    finally:
        for module, buffers in owners.items():
            for name, old in buffers.items():
                new = module._buffers.get(name)
                if old is not None and new is not None and new is not old:
                    module._buffers[name] = old.copy_(new)


_MAX_ROWS = {"cpu": 4096, "cuda": 65536}
"""Robot-steps at once. On a CPU they should fit the cache: more is slower than step by step. On a
GPU more only saves launches, and the limit bounds the memory."""


def step_batches(num_steps: int, num_envs: int, device: torch.device | str) -> list[slice]:
    """Split a rollout into pieces of whole steps, each as long as is best to process at once.

    Args:
        num_steps: Length T of the rollout.
        num_envs: Number of environments N.
        device: Device of the rollout.

    Returns:
        Slices of steps in time order, at least one step each, that cover the rollout.
    """
    max_rows = _MAX_ROWS.get(torch.device(device).type, _MAX_ROWS["cuda"])
    length = max(1, max_rows // num_envs)
    return [slice(first, first + length) for first in range(0, num_steps, length)]

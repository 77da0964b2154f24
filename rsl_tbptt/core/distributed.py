"""Counts and gradients over ranks; each function does nothing in one process.

The divisor of the loss already counts the robot-steps of all ranks, so gradients are summed, not
averaged: R processes on N/R environments each give the gradient of one process on N.
"""

from collections.abc import Iterable

import torch
from torch import distributed


def sum_over_ranks(count: int, device: torch.device | str) -> int:
    """Return the sum of ``count`` over all ranks (one host synchronisation; call it once)."""
    if not distributed.is_initialized():
        return count
    total = torch.tensor(count, device=device)
    distributed.all_reduce(total)
    return int(total.item())


def sum_tensor_over_ranks(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of ``tensor`` over all ranks, on its device."""
    if distributed.is_initialized():
        tensor = tensor.clone()
        distributed.all_reduce(tensor)
    return tensor


def sum_gradients(parameters: Iterable[torch.nn.Parameter], bucket_mb: float = 25.0) -> None:
    """Sum the gradients of ``parameters`` over all ranks in place, in buckets of limited size.

    Args:
        parameters: Parameters in the same order on every rank; those without gradient are left out.
        bucket_mb: Size of the packed buffer in megabytes. A larger gradient is its own bucket.
    """
    if not distributed.is_initialized():
        return
    bucket: list[torch.Tensor] = []
    size = 0.0
    for grad in (p.grad for p in parameters if p.grad is not None):
        megabytes = grad.numel() * grad.element_size() / 2**20
        if bucket and size + megabytes > bucket_mb:
            _sum_bucket(bucket)
            bucket, size = [], 0.0
        bucket.append(grad)
        size += megabytes
    if bucket:
        _sum_bucket(bucket)


def _sum_bucket(grads: list[torch.Tensor]) -> None:
    packed = torch.cat([grad.flatten() for grad in grads])
    distributed.all_reduce(packed)
    for grad, summed in zip(grads, packed.split([g.numel() for g in grads]), strict=True):
        grad.copy_(summed.view_as(grad))

"""Counts and gradients over the processes that train one policy.

The divisor of the loss already counts the samples of all processes, so gradients are summed,
not averaged: R processes with N/R environments each give the gradient of one process with N.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import distributed

Value = TypeVar("Value")


@dataclass(frozen=True)
class Ranks:
    """The processes that train together; a single process gets its own values back.

    ``together`` is passed in, not read from torch.distributed: independent runs may share a
    process group. Every rank has to call each sum equally often.
    """

    together: bool
    """Whether all processes of the default group train one policy."""

    def sum_count(self, count: int, device: torch.device | str) -> int:
        """Return the sum of ``count`` over all ranks (one host synchronisation; call it once)."""
        if not self.together:
            return count
        return int(self.sum_tensor(torch.tensor(count, device=device)).item())

    def sum_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum of ``tensor``, of any shape, over all ranks, on its device."""
        if self.together:
            tensor = tensor.clone()
            distributed.all_reduce(tensor)
        return tensor

    def sum_each(self, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the sums of some values over all ranks, in one exchange. Shape: () each."""
        if not self.together:
            return dict(values)
        return dict(zip(values, self.sum_tensor(torch.stack([*values.values()])), strict=True))

    def mean(self, values: torch.Tensor, count: int) -> torch.Tensor:
        """Return the mean over the values of all ranks; ``count`` is their number. Shape: ()."""
        return self.sum_tensor(values.sum()) / count if self.together else values.mean()

    def gather(self, value: Value) -> list[Value]:
        """Return the values of all ranks, by rank; any picklable value. Slow: for messages only."""
        if not self.together:
            return [value]
        values: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(values, value)
        return values

    def run_together(self, function: Callable[[], Value]) -> Value:
        """Run ``function`` on every rank; if it fails on one, it fails on all, for its reason.

        A rank that stopped alone would leave the others waiting in their next exchange.

        Args:
            function: The work of each rank. It has to make the same exchanges on every rank.

        Returns:
            The result of ``function``.

        Raises:
            ValueError: If ``function`` raised one on some rank.
            Exception: Any other error of ``function``, on the rank where it was raised.
            RuntimeError: On the other ranks; it names that error.
        """
        if not self.together:
            return function()
        result: Any = None
        failed: Exception | None = None
        try:
            result = function()
        except Exception as error:
            failed = error
        own = isinstance(failed, ValueError), failed and type(failed).__name__, str(failed)
        for rank, (refused, kind, text) in enumerate(self.gather(own)):
            if refused:
                raise ValueError(f"On rank {rank}: {text}")
            if kind is not None:
                raise failed or RuntimeError(f"Rank {rank} could not continue ({kind}: {text}).")
        return result

    def mean_and_std(self, values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and standard deviation of the values of all ranks, as ``torch.std`` does.

        Deviations are taken from the common mean, which is exact even if the mean is large.

        Args:
            values: This rank's values.
            count: Number of values on all ranks, given so that the host need not ask the device.

        Returns:
            Mean and standard deviation, shape () each.
        """
        if not self.together:
            return values.mean(), values.std()  # bit-identical to rsl_rl
        mean = self.sum_tensor(values.sum()) / count
        squares = self.sum_tensor((values - mean).square().sum())
        return mean, (squares / (count - 1)).sqrt()

    def sum_gradients(
        self, parameters: Iterable[torch.nn.Parameter], bucket_mb: float = 25.0
    ) -> None:
        """Sum the gradients of ``parameters`` over all ranks in place, in buckets of limited size.

        Args:
            parameters: Parameters in the same order on every rank. One without gradient adds zeros
                and stays without.
            bucket_mb: Size of the packed buffer in megabytes. A larger gradient gets its own.
        """
        if not self.together:
            return
        bucket: list[torch.nn.Parameter] = []
        size = 0.0
        for parameter in parameters:
            megabytes = parameter.numel() * parameter.element_size() / 2**20
            if bucket and size + megabytes > bucket_mb:
                _sum_bucket(bucket)
                bucket, size = [], 0.0
            bucket.append(parameter)
            size += megabytes
        if bucket:
            _sum_bucket(bucket)


def _sum_bucket(parameters: list[torch.nn.Parameter]) -> None:
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    packed = torch.cat([gradient.flatten() for gradient in gradients])
    distributed.all_reduce(packed)
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, summed in zip(parameters, packed.split(sizes), strict=True):
        if parameter.grad is not None:
            parameter.grad.copy_(summed.view_as(parameter))

"""Forecast the memory of an update for any number of environments from runs with few of them.

The update's own gradient is computed on some environments while every tensor is counted. Once
activations outweigh weights, the peak is linear in the environments and in those of a micro-batch.
Three runs give this line; a fourth with one environment gives the lower bound::

    peak = fixed + per_env * environments + per_open_env * environments of the largest micro-batch

If an update runs out of memory nevertheless, it is undone and tried again with twice the
micro-batches.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rsl_tbptt.core.recompute import LeftOut, graphs_left_out
from rsl_tbptt.core.scan import free_buffers


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of tensors that are created under it, forward and backward.

    It does not count earlier tensors or memory that kernels allocate inside. Tensors that a library
    packs for its kernels count as much as the unpacked ones. Example::

        with PeakMemory() as memory:
            loss(model(inputs)).backward()
        memory.peak  # bytes
    """

    def __init__(self) -> None:
        """Begin at zero."""
        super().__init__()
        self.peak = 0
        self.now = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``func`` and count new memory: behind its results and behind no argument."""
        kwargs = kwargs or {}
        given = {storage._cdata: storage.nbytes() for storage in _storages((args, kwargs))}
        result = func(*args, **kwargs)
        for storage in _storages(result):
            if storage._cdata not in given.keys() | self._seen:
                self._count(storage, storage._cdata, storage.nbytes())
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.layout != torch.strided:
                self._count(leaf, id(leaf), sum(given.values()))
        return result

    def _count(self, owner: Any, key: int, size: int) -> None:
        self._seen.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(owner, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


def _storages(tree: Any) -> Iterator[torch.UntypedStorage]:
    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
            yield leaf.untyped_storage()


_MANY = 128
"""Environments in the largest probe run."""


@dataclass(frozen=True)
class Sizes:
    """The sizes that an update's memory depends on."""

    num_envs: int
    """Environments in the largest mini-batch."""

    least_micro_batches: int
    """Micro-batches that it is split into in any case, to fit the caches."""

    replay_buffer: float = 0.0
    """Bytes of a full replay buffer, which counts in the budget and not in the peak."""

    most_envs: float = math.inf
    """Environments for whose rollouts the replay buffer has room."""


Trial = Callable[[int, int], None]
"""Computes the gradient on the first environments, given their number and that of micro-batches."""


@dataclass(frozen=True)
class MemoryPlan:
    """Peak memory of an update in addition to models, storage and optimiser, in bytes."""

    sizes: Sizes
    """Sizes of mini-batches and of the replay buffer."""

    least: float
    """The peak with one environment: gradients, packed weights, the copies that undo an update."""

    fixed: float
    """Memory that does not depend on environments, if activations outweigh weights."""

    per_env: float
    """Memory of each environment during the whole update: its state and its part of the rollout."""

    per_open_env: float
    """Memory of each environment while its micro-batch runs."""

    encoded_per_open_env: float = 0.0
    """Memory that frame encoders keep for each environment of a micro-batch."""

    most_encoded: float = 0.0
    """Most memory that frame encoders keep."""

    def peak(self, num_micro_batches: int) -> float:
        """Return the peak in bytes with at least ``num_micro_batches``."""
        num_envs = self.sizes.num_envs
        num_parts = max(num_micro_batches, self.sizes.least_micro_batches)
        largest = -(-num_envs // num_parts)
        linear = self.fixed + self.per_env * num_envs + self.per_open_env * largest
        encoded = min(self.encoded_per_open_env * largest, self.most_encoded)
        return max(self.least, linear) + encoded

    def num_micro_batches(self, budget: float) -> int:
        """Return the smallest number that stays, with the replay buffer, within ``budget`` bytes.

        Raises:
            ValueError: If even one environment at a time exceeds the budget.
        """
        in_buffer = self.sizes.replay_buffer
        for num_parts in range(1, self.sizes.num_envs + 1):
            if in_buffer + self.peak(num_parts) <= budget:
                return num_parts
        least = (in_buffer + self.peak(self.sizes.num_envs)) / 1e9
        raise ValueError(
            f"memory_budget_gb is {budget / 1e9:g}, expected at least {least:.3g}: the update takes"
            " that much one environment at a time. Lower gradient_length, num_steps_per_env,"
            " num_envs or buffer_gb, or raise the budget."
        )


def plan_memory(trial: Trial, sizes: Sizes, parameters: Iterable[nn.Parameter]) -> MemoryPlan:
    """Measure the memory that an update will take.

    Args:
        trial: Computes the gradient on some environments.
        sizes: Sizes of mini-batches and replay buffer.
        parameters: Trained parameters. An update keeps copies of them and of Adam's two moments.

    Returns:
        The plan.
    """
    copies = 3 * sum(p.numel() * p.element_size() for p in parameters)
    quarter = min(_MANY, sizes.num_envs) // 4
    trial(1, 1)  # excludes work that is done once per process, like the check of "auto"
    peak, left_out = _run(trial, 1, 1)
    least = peak + copies
    if quarter == 0:
        return MemoryPlan(sizes, least, least, 0.0, 0.0, left_out.num_bytes, left_out.most)
    # All in several micro-batches: from the second one on, gradients exist while it runs.
    small, _ = _run(trial, 4 * quarter, 4)
    large, left_out = _run(trial, 4 * quarter, 2)
    few, _ = _run(trial, 2 * quarter, 2)
    per_open_env = (large - small) / quarter
    per_env = (small - few) / (2 * quarter)
    fixed = copies + small - quarter * (4 * per_env + per_open_env)
    encoded = left_out.num_bytes / (2 * quarter)
    return MemoryPlan(sizes, least, fixed, per_env, per_open_env, encoded, left_out.most)


def _run(trial: Trial, num_envs: int, num_micro_batches: int) -> tuple[int, LeftOut]:
    """Return the peak of a run in bytes, and the graph sizes that frame encoders left out."""
    free_buffers()  # otherwise a scan reuses existing buffers, which are not counted
    with PeakMemory() as memory, graphs_left_out() as left_out:
        trial(num_envs, num_micro_batches)
    return memory.peak, left_out

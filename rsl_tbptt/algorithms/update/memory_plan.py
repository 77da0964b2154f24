"""How much memory an update will take, and into how many environment chunks to cut it for that.

The update's own gradient is computed on some environments while every tensor is counted. Once
activations outweigh weights, its peak is linear in the environments and in those of a chunk, so
three such runs tell it for any number, and one with a single environment what it is at least::

    peak = fixed + per_env * environments + per_chunk_env * environments of the largest chunk

CUDA graphs stay as long as training runs, one set for each size that chunks have, so those made on
the way are counted like any tensor and dropped afterwards, and each run is made twice: the second
time they are all there, as in every update but the first. Where chunks are not all of one size they
have two, which differ by one environment, and the graphs of the second are added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import nn

from rsl_tbptt.core.peak_memory import PeakMemory
from rsl_tbptt.core.scan.cuda_graphs import recordings_aside
from rsl_tbptt.core.scan.workspace import free_buffers

_MANY = 128
"""Environments of the largest such run."""

Trial = Callable[[int, int], None]
"""Computes the gradient on the first environments, given their number and that of the chunks."""


@dataclass(frozen=True)
class MemoryPlan:
    """Peak memory of an update beyond models, storage and optimiser, in bytes."""

    num_envs: int
    """Environments of a mini-batch."""

    num_blocks: int
    """Chunks that are made in any case, to fit the caches."""

    least: float
    """The peak with one environment: gradients, packed weights, the copies that undo an update."""

    fixed: float
    """What does not depend on them, where activations outweigh weights."""

    per_env: float
    """What each takes throughout: its state, its share of the rollout's tensors."""

    per_chunk_env: float
    """What each takes while its chunk is run."""

    recorded: float = 0.0
    """What of CUDA graphs does not depend on the size of a chunk."""

    recorded_per_chunk_env: float = 0.0
    """What they take for each environment of a chunk."""

    all_alike: bool = True
    """Whether all mini-batches have as many environments."""

    def peak(self, num_env_chunks: int) -> float:
        """Return the peak in bytes with at least so many chunks."""
        num_chunks = max(num_env_chunks, self.num_blocks)
        largest = -(-self.num_envs // num_chunks)
        linear = self.fixed + self.per_env * self.num_envs + self.per_chunk_env * largest
        if not self.all_alike or self.num_envs % num_chunks:  # chunks of a second size
            linear += self.recorded + self.recorded_per_chunk_env * largest
        return max(self.least, linear)

    def num_env_chunks(self, budget: float) -> int:
        """Return the smallest number of chunks that stays within ``budget`` bytes.

        Raises:
            ValueError: If even one environment at a time takes more.
        """
        for num_chunks in range(1, self.num_envs + 1):
            if self.peak(num_chunks) <= budget:
                return num_chunks
        raise ValueError(
            f"memory_budget_gb is {budget / 1e9:g}, expected at least"
            f" {self.peak(self.num_envs) / 1e9:.3g}: the update takes that much one environment at"
            " a time. Lower gradient_length, num_steps_per_env or num_envs, or raise the budget."
        )


def plan_memory(
    trial: Trial,
    num_envs: int,
    num_blocks: int,
    parameters: Iterable[nn.Parameter],
    all_alike: bool = True,
) -> MemoryPlan:
    """Measure what an update will take.

    Args:
        trial: Computes the gradient on some environments.
        num_envs: Environments of a mini-batch.
        num_blocks: Chunks that are made in any case.
        parameters: What is trained. An update keeps a copy of them and of Adam's two moments.
        all_alike: Whether all mini-batches have as many environments.

    Returns:
        The plan.
    """
    copies = 3 * sum(p.numel() * p.element_size() for p in parameters)
    (least, _), quarter = _peak(trial, 1, 1), min(_MANY, num_envs) // 4
    least += copies
    if quarter == 0:
        return MemoryPlan(num_envs, num_blocks, least, least, 0.0, 0.0)
    # All in several chunks: from the second one on, gradients are there while it is run.
    (small, recorded), (large, more_recorded) = (
        _peak(trial, 4 * quarter, 4),
        _peak(trial, 4 * quarter, 2),
    )
    (few, _) = _peak(trial, 2 * quarter, 2)
    per_chunk_env, per_env = (large - small) / quarter, (small - few) / (2 * quarter)
    fixed = copies + small - quarter * (4 * per_env + per_chunk_env)
    recorded_per_env = (more_recorded - recorded) / quarter
    return MemoryPlan(
        num_envs,
        num_blocks,
        least,
        fixed,
        per_env,
        per_chunk_env,
        recorded - quarter * recorded_per_env,
        recorded_per_env,
        all_alike,
    )


def _peak(trial: Trial, num_envs: int, num_env_chunks: int) -> tuple[int, int]:
    """Return the peak of a run in bytes, and what CUDA graphs were holding at its end."""
    free_buffers()  # else a scan takes what is there, uncounted
    with PeakMemory() as memory:
        with recordings_aside():
            for _ in range(2):
                trial(num_envs, num_env_chunks)
            at_end = memory.now
        return memory.peak, at_end - memory.now

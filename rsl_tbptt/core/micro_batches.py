"""Into how many micro-batches and windows an update is best cut on this processor.

A micro-batch runs forward and backward over a window before the next one begins, so that its
buffers are used again while the caches hold them. Short windows of few environments are run several
at once. On accelerators the whole mini-batch is one, and each window runs alone.
"""

import functools
import itertools
from pathlib import Path

import torch
from torch import nn

_MIN_ENVS = 256
"""Smaller products of one step spend too much on packing the weights."""

_MIN_SAMPLES = 2048
"""In shorter windows more environments share what a micro-batch costs whatever its size."""

_SAMPLES_AT_ONCE = 4096
"""Up to which several windows share it, where environments are too few: more would hardly be faster
and take memory."""

_ENVS_THAT_SEE = 64
"""Of a model with images, whose encoders take most of the time, in parts of their own: more
environments would not be faster and their images take memory."""

_UNKNOWN_CACHE = 2**20
_CACHE_SIZE = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")
"""Where Linux tells it, as in "2048K"."""


def split_envs(num_envs: int, num_parts: int) -> list[slice]:
    """Cut environments into at most ``num_parts`` slices whose sizes differ by at most one."""
    num_parts = min(num_parts, num_envs)
    bounds = [num_envs * i // num_parts for i in range(num_parts + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(bounds)]


def best_num_micro_batches(
    num_envs: int,
    num_steps: int,
    sample_bytes: int,
    device: torch.device,
    *,
    sees_frames: bool = False,
) -> int:
    """Return into how many micro-batches N environments are best cut for windows of K steps.

    What one step of a micro-batch touches should fit the second-level caches of the threads in use,
    and it should be large enough to be worth its overhead.

    Args:
        num_envs: Number of environments N.
        num_steps: Steps of a window K.
        sample_bytes: What one step of one environment computes, from ``bytes_per_sample``.
        device: Where.
        sees_frames: Whether the model has frame encoders.

    Returns:
        The number of balanced micro-batches; 1 on accelerators.
    """
    if device.type != "cpu":
        return 1
    if sees_frames:
        return max(1, round(num_envs / _ENVS_THAT_SEE))
    fitting = torch.get_num_threads() * _second_level_cache(_CACHE_SIZE) // sample_bytes
    return max(1, round(num_envs / max(_MIN_ENVS, _MIN_SAMPLES // num_steps, fitting)))


def best_num_windows(num_envs: int, num_steps: int, device: torch.device) -> int:
    """Return how many windows of K steps of a micro-batch are best run at once.

    Args:
        num_envs: Number of environments of the micro-batch.
        num_steps: Steps of a window K.
        device: Where.

    Returns:
        The number of windows; 1 on accelerators.
    """
    return max(1, _SAMPLES_AT_ONCE // (num_steps * num_envs)) if device.type == "cpu" else 1


def bytes_per_sample(model: nn.Module) -> int:
    """Estimate what one step of one environment computes: a value per row of a weight matrix."""
    matrices = (weight for weight in model.parameters() if weight.dim() > 1)
    return max(1, sum(len(weight) * weight.element_size() for weight in matrices))


@functools.cache
def _second_level_cache(described: Path) -> int:
    """Return the size of one core's second-level cache in bytes, 1 MiB where it is not known."""
    text = described.read_text().strip() if described.exists() else ""
    return int(text[:-1]) * 2**10 if text.endswith("K") else _UNKNOWN_CACHE

"""Steps of a rollout that are worth handling at once, where nothing needs them one by one."""

from __future__ import annotations

import torch

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

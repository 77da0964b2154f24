"""Normalisers learn from a rollout after its use, so that replays see what the rollout saw."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tensordict import TensorDict


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

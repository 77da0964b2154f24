"""Print the metrics of a training, and what is broken in its metrics and its newest checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rsl_tbptt.algorithms.health import limits_of
from rsl_tbptt.checkpoints.reading import numbered_checkpoints, read_checkpoint
from rsl_tbptt.files import AGENT

if TYPE_CHECKING:
    import torch

Curves = dict[str, tuple[list[int], list[float]]]
"""Iterations and values by tag of TensorBoard."""
LOSS = "Loss/"
"""Prefix of the tags of an update's metrics."""
EVENTS = "*tfevents*"
"""TensorBoard's files in a log folder."""


def diagnose_run(folder: Path) -> bool:
    """Print the medians of the last quarter of a training, and a line for each finding.

    Args:
        folder: A training's log folder.

    Returns:
        True if nothing was found to be wrong.

    Raises:
        ValueError: If the folder is not a log folder.
    """
    losses = {
        tag.removeprefix(LOSS): values
        for tag, (_, values) in read_curves(folder).items()
        if tag.startswith(LOSS)
    }
    for name, values in losses.items():
        print(f"{LOSS}{name:<32} median {median(values[-max(len(values) // 4, 1) :]):10.4g}")
    wrong = [*wrong_metrics(losses), *wrong_checkpoint(folder)]
    for finding in wrong:
        print(f"WRONG  {finding}")
    print("no problems found" if not wrong else "see the lines marked with WRONG", flush=True)
    return not wrong


def wrong_metrics(losses: Mapping[str, list[float]]) -> Iterator[str]:
    """Yield what is wrong with the metrics of updates, by the limits of docs/howto/health.md."""
    for name, limit in limits_of([*losses]).items():
        values = losses[name]
        last = median(values[-max(limit.updates, len(values) // 4) :])
        if len(values) >= limit.updates and limit.broken(last):
            yield limit.describe(name, last)
    for name, values in losses.items():
        if not math.isfinite(values[-1]):
            yield (
                f"{LOSS}{name} is {values[-1]}, expected a finite number: with non_finite='skip'"
                " the algorithm undoes such an update and names where NaN or inf came from."
            )
    if skipped := max(losses.get("skipped_updates", ()), default=0):
        yield (
            f"{LOSS}skipped_updates is {skipped:g}, expected 0: that many updates had NaN or inf"
            " and were undone. The training's output names their cause."
        )


def wrong_checkpoint(folder: Path) -> Iterator[str]:
    """Yield why the newest checkpoint cannot be read, or which of its numbers are not finite."""
    for path in numbered_checkpoints(folder)[:1]:
        try:
            checkpoint = read_checkpoint(str(path), "cpu")
        except ValueError as error:
            yield str(error)
            return
        broken = [name for name, tensor in _tensors(checkpoint) if not tensor.isfinite().all()]
        if broken:
            more = f" and {len(broken) - 3} more" if len(broken) > 3 else ""
            yield (
                f"{', '.join(broken[:3])}{more} hold NaN or inf in {path.name}: resume from an"
                " older checkpoint, with non_finite='skip'."
            )


def _tensors(saved: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of state dicts, by name."""
    if isinstance(saved, Mapping):
        for key, value in saved.items():
            yield from _tensors(value, f"{name}.{key}" if name else str(key))
    elif hasattr(saved, "isfinite"):
        yield name, saved


def read_curves(folder: Path) -> Curves:
    """Read all scalars that rsl_rl logged for TensorBoard.

    Args:
        folder: Log folder of a training.

    Returns:
        Iterations and values by tag; empty if the training used another logger.

    Raises:
        ValueError: If the folder is not a log folder.
    """
    has_events = any(folder.glob(EVENTS))
    has_config = (folder / AGENT).is_file()
    if not (has_events or has_config or (folder.is_dir() and numbered_checkpoints(folder))):
        raise ValueError(
            f"RUN is '{folder}', expected the log folder of a training: the one that holds"
            " events.out.tfevents..., model_<iteration>.pt and params/agent.yaml."
        )
    if not has_events:
        return {}
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    curves = {}
    for tag in accumulator.Tags()["scalars"]:
        scalars = accumulator.Scalars(tag)
        curves[tag] = ([s.step for s in scalars], [s.value for s in scalars])
    return curves

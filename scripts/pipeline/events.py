"""Read the curves of a training's log folder."""

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def read_curves(folder: Path) -> dict[str, tuple[list[int], list[float]]]:
    """Return iterations and values of all scalars that rsl_rl logged for TensorBoard, by tag."""
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    curves = {}
    for tag in accumulator.Tags()["scalars"]:
        scalars = accumulator.Scalars(tag)
        curves[tag] = ([s.step for s in scalars], [s.value for s in scalars])
    return curves

"""Read a training's log folder and say in plain words what looks wrong with it and what to try."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from rsl_tbptt.algorithms.update.health_limits import limit_of
from rsl_tbptt.checkpoints.agent_configs import AGENT, read_config
from rsl_tbptt.checkpoints.latest import numbered_checkpoints
from rsl_tbptt.checkpoints.reading import read_checkpoint

Curves = Mapping[str, Sequence[float]]
"""Values of each metric in the order of the updates, by name."""

Findings = tuple[str, list[str]]
"""What was looked at, in words, and what looks wrong with it."""

_LOSS = "Loss/"


def diagnose_run(folder: Path) -> bool:
    """Look at config, metrics and the newest checkpoint, and print a line for each finding.

    Args:
        folder: A training's log folder.

    Returns:
        Whether nothing that could be judged looks wrong.

    Raises:
        ValueError: If that is no log folder.
    """
    known = folder.is_dir() and (numbered_checkpoints(folder) or events(folder))
    if not (known or (folder / AGENT).is_file()):
        raise ValueError(
            f"RUN is '{folder}', expected the log folder of a training: the one that holds"
            " events.out.tfevents..., model_<iteration>.pt and params/agent.yaml."
        )
    checks: dict[str, Callable[[Path], Findings]] = {
        "config": check_config,
        "metrics": check_metrics,
        "checkpoint": check_checkpoint,
    }
    passed = True
    for name, check in checks.items():
        looked_at, wrong = check(folder)
        print(f"{name:<12} {'WRONG' if wrong else 'ok   '}  {looked_at}")
        for finding in wrong:
            print(f"{'':<12} -      {finding}")
        passed &= not wrong
    verdict = "nothing that was judged looks wrong" if passed else "see what stands below WRONG"
    print(f"\n{verdict}", flush=True)
    return passed


def check_config(folder: Path) -> Findings:
    """Look for options that cannot work together, as Isaac Lab and mjlab noted them."""
    if not (folder / AGENT).is_file():
        return f"not judged: no {AGENT}, which rsl_rl's own runners do not write", []
    try:
        config = read_config(folder / AGENT)
    except ValueError as error:
        return str(AGENT), [str(error)]
    algorithm = config.get("algorithm") or {}
    wrong = []
    models = [config.get(role) or {} for role in ("actor", "critic", "student", "policy")]
    if algorithm.get("gradient_length") == 1 and any(model.get("rnn_type") for model in models):
        wrong.append(
            "gradient_length is 1, expected the number of steps to remember: no gradient goes from"
            " one step to the one before, so nothing teaches the memory what to keep. Try 16 or"
            " more; of TbpttPPO None is the whole rollout."
        )
    return f"{AGENT}: {str(algorithm.get('class_name')).rpartition(':')[2]}", wrong


def check_metrics(folder: Path) -> Findings:
    """Hold what each update reported against the limits of docs/health.md."""
    curves = read_curves(folder) if events(folder) else {}
    losses = {tag[len(_LOSS) :]: v for tag, (_, v) in curves.items() if tag.startswith(_LOSS)}
    num_updates = max(map(len, losses.values()), default=0)
    if not num_updates:
        return "not judged: no TensorBoard events", []
    wrong = [*_of_limits(losses), *_of_skipped(losses)]
    unjudged = _of_too_few(losses)
    if not any(limit_of(name) for name in losses):
        return f"{num_updates} updates, by an algorithm that does not watch its health", wrong
    return f"{num_updates} updates{unjudged}", wrong


def _of_too_few(losses: Curves) -> str:
    """Name the metrics that have a limit, but too few updates for it."""
    few = [
        f"{name} ({len(values)} of {limit.updates})"
        for name, values in losses.items()
        if (limit := limit_of(name)) and len(values) < limit.updates
    ]
    return f"; not judged, too few updates: {', '.join(few)}" if few else ""


def _of_limits(losses: Curves) -> list[str]:
    """Return what is usually beyond its limit at the end: in the last quarter of the updates."""
    wrong = []
    for name, values in losses.items():
        limit = limit_of(name)
        if limit is None or len(values) < limit.updates:
            continue
        value = median(values[-max(limit.updates, len(values) // 4) :])
        if limit.broken(value):
            wrong.append(f"{limit.describe(name, value)} {limit.advice}")
    return wrong


def _of_skipped(losses: Curves) -> list[str]:
    """Return whether updates were undone."""
    num_skipped = max(losses.get("skipped_updates", ()), default=0)
    if num_skipped == 0:
        return []
    return [
        f"Loss/skipped_updates is {num_skipped:g}, expected 0: so many updates met NaN or inf and"
        " were undone. The training's output names what they came from."
    ]


def check_checkpoint(folder: Path) -> Findings:
    """Look whether the newest checkpoint can be read and holds numbers."""
    path = next(iter(numbered_checkpoints(folder)), None)
    if path is None:
        return "not judged: no model_<iteration>.pt", []
    try:
        checkpoint = read_checkpoint(str(path), "cpu")
    except ValueError as error:
        return path.name, [str(error)]
    broken = [name for name, tensor in _tensors(checkpoint) if not torch.isfinite(tensor).all()]
    if not broken:
        return path.name, []
    more = f" and {len(broken) - 3} more" if len(broken) > 3 else ""
    return path.name, [
        f"{', '.join(broken[:3])}{more} hold NaN or inf: resume from an older checkpoint, with"
        " non_finite='skip'."
    ]


def read_curves(folder: Path) -> dict[str, tuple[list[int], list[float]]]:
    """Read all scalars that rsl_rl logged for TensorBoard.

    Args:
        folder: Log folder of a training.

    Returns:
        Iterations and values by tag.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    curves = {}
    for tag in accumulator.Tags()["scalars"]:
        scalars = accumulator.Scalars(tag)
        curves[tag] = ([s.step for s in scalars], [s.value for s in scalars])
    return curves


def events(folder: Path) -> list[Path]:
    """Return the TensorBoard event files of a folder."""
    return sorted(folder.glob("*tfevents*"))


def _tensors(saved: Any, name: str = "") -> list[tuple[str, torch.Tensor]]:
    """Return the floating-point tensors of state dicts, by name."""
    if isinstance(saved, torch.Tensor):
        return [(name, saved)] if saved.is_floating_point() else []
    if not isinstance(saved, Mapping):
        return []
    inner = [(f"{name}.{key}" if name else str(key), value) for key, value in saved.items()]
    return [found for key, value in inner for found in _tensors(value, key)]

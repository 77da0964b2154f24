"""Find what is wrong with a training in the config, metrics and checkpoints of its log folder."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rsl_tbptt.algorithms.health import RETURN, RETURN_ERROR, Limit, limits_of
from rsl_tbptt.checkpoints.reading import numbered_checkpoints, read_checkpoint
from rsl_tbptt.files import AGENT, entry
from rsl_tbptt.tools.runs.resume import RunFacts
from rsl_tbptt.tools.simulate.memory_findings import judge_memory, read_memory

if TYPE_CHECKING:
    import torch

Curves = dict[str, tuple[list[int], list[float]]]
"""Iterations and values by tag of TensorBoard."""
Findings = tuple[str, list[str]]
"""A description of what was checked, and the problems that were found."""
LOSS = "Loss/"
"""Prefix of the tags of an update's metrics."""
TRAINED_RETURN, HELD_OUT_RETURN = "Train/mean_reward", f"{LOSS}{RETURN}"
"""Tags of the mean return of all environments, and of those that enter no loss."""
CLEAR_SHARE = 0.1
"""A gap between the two is clear beyond this share of the returns' range and twice its error."""
TEACHER_ACTS = f"{LOSS}teacher_action_share"
"""Tag of the share of environments in which the teacher acts."""
SKIPPED = "skipped: "
"""How the description of a check begins that lacked its files."""
EVENTS = "*tfevents*"
"""TensorBoard's files in a log folder."""


@dataclass(frozen=True)
class Judged:
    """A metric that has a limit, over the last quarter of the updates."""

    name: str
    limit: Limit
    num_updates: int
    """Updates that reported it."""
    value: float
    """Median."""

    @property
    def result(self) -> str:
        """``ok``, ``WRONG``, or ``too few updates`` to judge it by."""
        if self.num_updates < self.limit.updates:
            return "too few updates"
        return "WRONG" if self.limit.broken(self.value) else "ok"


def diagnose_run(folder: Path) -> bool:
    """Check config, metrics and the newest checkpoint, and print a line for each finding.

    Args:
        folder: A training's log folder.

    Returns:
        True if no check found anything wrong.

    Raises:
        ValueError: If the folder is not a log folder, or ``memory.json`` cannot be read.
    """
    found = find_wrong(RunFacts(folder), read_curves(folder))
    for name, (looked_at, wrong) in found.items():
        state = "WRONG" if wrong else "-    " if looked_at.startswith(SKIPPED) else "ok   "
        print(f"{name:<12} {state}  {looked_at}")
        for finding in wrong:
            print(f"{'':<12} -      {finding}")
    passed = not any(wrong for _, wrong in found.values())
    num_skipped = sum(looked_at.startswith(SKIPPED) for looked_at, _ in found.values())
    result = "no problems found" if passed else "see the lines below WRONG"
    print(f"\n{result}" + f" (skipped: {num_skipped})" * bool(num_skipped), flush=True)
    return passed


def find_wrong(run: RunFacts, curves: Curves) -> dict[str, Findings]:
    """Check config, metrics and the newest checkpoint of a training.

    Args:
        run: Its log folder.
        curves: Result of :func:`read_curves` there.

    Returns:
        Findings by ``config``, ``metrics`` and ``checkpoint``, and ``memory`` if `rsl-tbptt memory`
        has measured it.

    Raises:
        ValueError: If its result cannot be read.
    """
    found = {
        "config": check_config(run),
        "metrics": check_metrics(curves),
        "checkpoint": check_checkpoint(run),
    }
    if (remembered := read_memory(run.folder)) is not None:
        found["memory"] = judge_memory(remembered)
    return found


def check_config(run: RunFacts) -> Findings:
    """Look for options that cannot work together in the config that Isaac Lab or mjlab saved."""
    file = run.folder / AGENT
    if not file.is_file():
        return f"{SKIPPED}no {AGENT}, which rsl_rl's own runners do not write", []
    try:
        algorithm, *models = (
            entry(run.config, name, dict, file) or {}
            for name in ("algorithm", "actor", "critic", "student", "policy")
        )
    except ValueError as error:
        return str(AGENT), [str(error)]
    wrong = []
    if algorithm.get("gradient_length") == 1 and any(model.get("rnn_type") for model in models):
        wrong.append(
            "gradient_length is 1, expected the number of steps to remember: no gradient goes from"
            " one step to the one before, so the memory does not learn what to keep. Try 16 or"
            " more; for TbpttPPO None is the whole rollout."
        )
    return f"{AGENT}: {str(algorithm.get('class_name')).rpartition(':')[2]}", wrong


def check_metrics(curves: Curves) -> Findings:
    """Compare the last quarter of the metrics with the limits of docs/howto/health.md."""
    losses = {tag: values for tag, (_, values) in curves.items() if tag.startswith(LOSS)}
    num_updates = max(map(len, losses.values()), default=0)
    if not num_updates:
        return f"{SKIPPED}no TensorBoard events", []
    judged = judge(curves)
    too_few = [
        f"{one.name} ({one.num_updates} of {one.limit.updates})"
        for one in judged
        if one.result == "too few updates"
    ]
    wrong = [one.limit.describe(one.name, one.value) for one in judged if one.result == "WRONG"]
    wrong += [
        f"{tag} is {values[-1]}, expected a finite number: with non_finite='skip' the algorithm"
        " undoes such an update and names where NaN or inf came from."
        for tag, values in losses.items()
        if not math.isfinite(values[-1])
    ]
    if num_skipped := max(losses.get(f"{LOSS}skipped_updates", ()), default=0):
        wrong.append(
            f"Loss/skipped_updates is {num_skipped:g}, expected 0: that many updates had NaN or inf"
            " and were undone. The training's output names their cause."
        )
    wrong += find_gap(curves)
    if not judged:
        return f"{num_updates} updates, by an algorithm without health metrics", wrong
    unjudged = f"; too few updates for {', '.join(too_few)}" if too_few else ""
    return f"{num_updates} updates{unjudged}", wrong


def judge(curves: Curves) -> list[Judged]:
    """Return the metrics that have a limit, over the last quarter of the updates."""
    found = []
    names = [tag.removeprefix(LOSS) for tag in curves if tag.startswith(LOSS)]
    for name, limit in limits_of(names).items():
        _, values = curves[f"{LOSS}{name}"]
        last = values[-max(limit.updates, len(values) // 4) :]
        found.append(Judged(name, limit, len(values), median(last)))
    return found


def find_gap(curves: Curves) -> list[str]:
    """Return a message if all environments return clearly more than the held-out ones at the end.

    A teacher that acts in the others may return more.
    """
    tags = (TRAINED_RETURN, HELD_OUT_RETURN, f"{LOSS}{RETURN_ERROR}")
    if not {*tags} <= curves.keys() or any(curves.get(TEACHER_ACTS, ((), ()))[1][-1:]):
        return []
    iterations, logged = curves[TRAINED_RETURN]
    first = iterations[-1] - (iterations[-1] - iterations[0]) // 4
    trained, held_out, error = (
        median([v for it, v in zip(*curves[tag], strict=True) if it >= first] or [math.nan])
        for tag in tags
    )
    if not trained - held_out > max(2 * error, CLEAR_SHARE * (max(logged) - min(logged))):
        return []
    return [
        f"{TRAINED_RETURN} is {trained:.4g} and {HELD_OUT_RETURN} {held_out:.4g} (its standard"
        f" error is {error:.2g}), expected the same: updates fit the very episodes that go on, so"
        " on fresh ones the policy is worse than the first number says. Leave weight_average and"
        " learning_rate_updates at their defaults, or lower learning_rate; rsl-tbptt evaluate"
        " measures the policy."
    ]


def check_checkpoint(run: RunFacts) -> Findings:
    """Check that the newest checkpoint can be read and all its numbers are finite."""
    if not run.checkpoints:
        return f"{SKIPPED}no model_<iteration>.pt", []
    path = run.checkpoints[0]
    try:
        checkpoint = read_checkpoint(str(path), "cpu")
    except ValueError as error:
        return path.name, [str(error)]
    broken = [name for name, tensor in _tensors(checkpoint) if not tensor.isfinite().all()]
    if not broken:
        return path.name, []
    more = f" and {len(broken) - 3} more" if len(broken) > 3 else ""
    return path.name, [
        f"{', '.join(broken[:3])}{more} hold NaN or inf: resume from an older checkpoint, with"
        " non_finite='skip'."
    ]


def _tensors(saved: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of state dicts, by name."""
    if isinstance(saved, Mapping):
        for key, value in saved.items():
            yield from _tensors(value, f"{name}.{key}" if name else str(key))
    elif hasattr(saved, "isfinite"):
        yield name, saved


def is_log_folder(folder: Path) -> bool:
    """Return whether a training has written events, checkpoints or its config into a folder."""
    if not folder.is_dir():
        return False
    config = (folder / AGENT).is_file()
    return config or any(folder.glob(EVENTS)) or bool(numbered_checkpoints(folder))


def read_curves(folder: Path) -> Curves:
    """Read all scalars that rsl_rl logged for TensorBoard.

    Args:
        folder: Log folder of a training.

    Returns:
        Iterations and values by tag; empty if the training used another logger.

    Raises:
        ValueError: If the folder is not a log folder.
    """
    if not is_log_folder(folder):
        raise ValueError(
            f"RUN is '{folder}', expected the log folder of a training: the one that holds"
            " events.out.tfevents..., model_<iteration>.pt and params/agent.yaml."
        )
    if not any(folder.glob(EVENTS)):
        return {}
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    curves = {}
    for tag in accumulator.Tags()["scalars"]:
        scalars = accumulator.Scalars(tag)
        curves[tag] = ([s.step for s in scalars], [s.value for s in scalars])
    return curves

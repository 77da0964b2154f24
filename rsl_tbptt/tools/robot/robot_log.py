"""Compare what a robot's program logged, term by term, with what training would have computed.

A log has some of these arrays over T steps of one robot: ``raw/GROUP/TERM`` as measured and then
used, ``obs/GROUP`` as given to the policy, ``actions`` as the policy returned them, ``targets`` as
sent to the joints, and ``reset``, whether an episode starts with the step.
"""

import csv
import difflib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rsl_tbptt.deploy import GOLDEN, Policy
from rsl_tbptt.tools.robot.unitree import width_of
from rsl_tbptt.tools.robot.verify import read_golden, run_onnx

Log = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Difference:
    """How a term of a log differs from training's: logged = ratio * expected + offset."""

    name: str
    largest: float
    ratio: np.ndarray
    """Of each number, by least squares. Shape: (D,)."""
    offset: np.ndarray
    """Shape: (D,)."""
    cause: str = ""
    """Single mistake that explains all of it: "one step late" or "never reset"."""

    def __str__(self) -> str:
        """Return the comparison in one line."""
        text = f"{self.name}: largest difference {self.largest:.1e}"
        for word, values in (("ratio", self.ratio), ("offset", self.offset)):
            low, high = np.round([values.min(), values.max()], 6) + 0.0  # never -0
            text += f", {word} {low:.3g}" + (f" to {high:.3g}" if high - low > 1e-3 else "")
        return f"{text}, {self.cause}" if self.cause else text


def compare_log(
    bundle: Path, path: Path, tolerance: float = 1e-4
) -> tuple[list[Difference], list[str]]:
    """Compare a log with the steps that a bundle's policy would have taken.

    Args:
        bundle: Folder of ``rsl-tbptt export``.
        path: The log, ``.npz`` or ``.csv``.
        tolerance: Differences up to this are rounding.

    Returns:
        A difference for each term of observations and of targets and for the actions, and notes:
        arrays that could not be compared, with the reason.

    Raises:
        ValueError: If the log cannot be read, does not fit the bundle, or has nothing to compare.
    """
    policy = Policy(bundle)
    # If a checkpoint did not show the groups' widths, the bundle knows all groups joined.
    groups = policy.metadata["observation_groups"] or policy.metadata["inputs"]
    metadata, notes = {**policy.metadata, "observation_groups": groups}, []
    log = _read(path, metadata, read_golden(bundle / GOLDEN))
    num_steps = len(next(iter(log.values())))
    starts = log.get("reset", np.zeros(num_steps)).reshape(num_steps).astype(bool)
    starts[0] = True
    differences, observed = [], {}
    for name, group in groups.items():
        logged, (expected, names) = log.get(f"obs/{name}"), _observations(name, group, log, starts)
        observed[name] = expected if logged is None else logged.reshape(-1, *group["shape"])
        if logged is not None and expected is None:
            notes.append(f"obs/{name} is not compared: raw/{name}/TERM are not there")
        elif logged is not None:
            differences += _by_term(names, logged, expected, starts, tolerance)
    missing = [name for name, values in observed.items() if values is None]
    if "actions" not in log or missing:
        reason = f"obs/{missing[0]} is missing" if "actions" in log else "they are missing"
        notes.append(f"actions are not compared: {reason}")
    else:
        differences += _actions(policy, observed, log["actions"], starts, tolerance)
        if metadata["state_names"] and not starts[1:].any():
            notes.append("the log has no episode start, so a missing reset cannot be detected")
    if "targets" in log and "actions" in log and metadata["robot"].get("actions"):
        expected, names = _targets(metadata["robot"], log["actions"])
        differences += _by_term(names, log["targets"], expected, starts, tolerance)
    elif "targets" in log:
        notes.append("targets are not compared: the log or the bundle has no actions")
    if not differences:
        raise ValueError(f"Nothing in the log '{path}' can be compared: {'; '.join(notes)}.")
    return differences, notes


def _observations(
    name: str, group: Mapping[str, Any], log: Log, starts: np.ndarray
) -> tuple[Any, np.ndarray]:
    """Return a group as training computes it and the term of each number; None if not measured."""
    terms, steps = group.get("terms", ()), np.arange(len(starts))
    measured = [log.get(f"raw/{name}/{term['name']}") for term in terms]
    if not terms or any(values is None for values in measured):
        return None, np.zeros(0)
    parts, begin = [], np.maximum.accumulate(np.where(starts, steps, 0))
    for term, values in zip(terms, measured, strict=True):
        processed = np.asarray(values, float).reshape(len(steps), -1)
        if term["clip"] is not None:
            processed = np.clip(processed, *term["clip"])
        processed = processed * (1.0 if term["scale"] is None else np.asarray(term["scale"]))
        shape, length = term["shape"], term["history_length"]
        if length:
            ages = np.arange(length)[::-1]
            processed = processed[np.maximum(steps[:, None] - ages, begin[:, None])]
            shape = [length, -1] if group.get("history_order") == "time" else shape
        parts.append(processed.reshape(len(steps), *shape))
    names = [np.full(p.shape[1:], f"{name}/{t['name']}") for t, p in zip(terms, parts, strict=True)]
    values = np.concatenate(parts, axis=-1).reshape(len(steps), *group["shape"])
    return values, np.concatenate(names, axis=-1).ravel()


def _actions(
    policy: Policy, observed: Log, logged: np.ndarray, starts: np.ndarray, tolerance: float
) -> list[Difference]:
    """Compare the actions with the policy's; a memory that is never cleared explains them, too."""

    def act(reset: np.ndarray) -> np.ndarray:
        golden = {"reset": reset, **{f"obs/{name}": values for name, values in observed.items()}}
        return run_onnx(policy, golden, ("actions",))["actions"]

    names = np.full(logged[0].size, "actions")
    actions = _by_term(names, logged, act(starts), starts, tolerance)
    never = act(np.arange(len(starts)) == 0)
    if actions[0].largest > tolerance and np.abs(logged - never).max() <= tolerance:
        return [replace(actions[0], cause="never reset")]
    return actions


def _targets(robot: Mapping[str, Any], actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the targets that training sends to the joints, and the term of each number."""
    limit, parts, names, start = robot.get("clip_actions"), [], [], 0
    for term in robot["actions"]:
        values = actions[:, start : start + term["width"]].astype(float)
        values = values if limit is None else np.clip(values, -limit, limit)
        scale = 1.0 if term["scale"] is None else np.asarray(term["scale"])
        offset = 0.0 if term["offset"] is None else np.asarray(term["offset"])
        values = values * scale + offset
        values = values if term["clip"] is None else np.clip(values, *np.transpose(term["clip"]))
        parts.append(values)
        names += [f"actions/{term['name']}"] * term["width"]
        start += term["width"]
    return np.concatenate(parts, axis=1), np.array(names)


def _by_term(
    names: np.ndarray,
    logged: np.ndarray,
    expected: np.ndarray,
    starts: np.ndarray,
    tolerance: float,
) -> list[Difference]:
    """Compare values, (T, ...) each, by the names of their terms, (D,)."""
    logged, expected = (x.reshape(len(starts), -1).astype(float) for x in (logged, expected))
    # At an episode's first step, what a late program gives comes from before it.
    goes_on, differences = ~starts[1:], []
    for name in dict.fromkeys(names.tolist()):
        ours, theirs = logged[:, names == name], expected[:, names == name]
        moves = theirs - theirs.mean(axis=0)
        squares = np.square(moves).sum(axis=0)
        ratio = (moves * ours).sum(axis=0) / np.where(squares > 0.0, squares, 1.0)
        ratio = np.where(squares > 0.0, ratio, 1.0)
        offset = ours.mean(axis=0) - ratio * theirs.mean(axis=0)
        largest = float(np.abs(ours - theirs).max())
        lag = np.abs(ours[1:] - theirs[:-1])[goes_on]
        is_late = largest > tolerance and lag.size > 0 and lag.max() <= tolerance
        cause = "one step late" if is_late else ""
        differences.append(Difference(name, largest, ratio, offset, cause))
    return differences


def _read(path: Path, metadata: Mapping[str, Any], golden: Log) -> dict[str, np.ndarray]:
    """Read a log and check it; actions alone are taken for a replay of the golden observations.

    Raises:
        ValueError: If it cannot be read, or does not fit the bundle.
    """
    readers = {".csv": _read_csv, ".npz": read_golden}
    if path.suffix not in readers:
        raise ValueError(f"The log is '{path}', expected a file that ends in .npz or .csv.")
    log, widths = readers[path.suffix](path), dict(_widths(metadata))
    for name in widths.keys() - log.keys():
        for mistyped in difflib.get_close_matches(name, log.keys() - widths.keys(), 1, cutoff=0.9):
            raise ValueError(f"{mistyped} of the log is unknown: did you mean {name}?")
    log = {name: values for name, values in log.items() if name in widths}
    if "actions" in log and not any(name.startswith(("raw/", "obs/")) for name in log):
        log = {n: v for n, v in golden.items() if n == "reset" or n.startswith("obs/")} | log
    lengths = {name: values.shape[:1] for name, values in log.items()}
    if len({*lengths.values()}) != 1 or min(lengths.values()) < (2,):
        raise ValueError(
            f"The log has steps {lengths}, expected the same number, at least 2, of some of"
            f" {', '.join(widths)}; without observations those of {GOLDEN}."
        )
    for name, values in log.items():
        is_number = values.dtype.kind in "biuf" and bool(np.isfinite(values).all())
        if not is_number or values[0].size != widths[name]:
            raise ValueError(
                f"{name} of the log has {values[0].size} values of {values.dtype} at each step,"
                f" expected {widths[name]} finite numbers."
            )
    return log


def _widths(metadata: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the arrays that a log may have, and how many numbers each has per step."""
    yield "reset", 1
    for name, group in metadata["observation_groups"].items():
        yield f"obs/{name}", math.prod(group["shape"])
        for term in group.get("terms", ()):
            yield f"raw/{name}/{term['name']}", width_of(term)
    (width,) = metadata["outputs"]["actions"]["shape"]
    yield from (("actions", width), ("targets", width))


def _read_csv(path: Path) -> dict[str, np.ndarray]:
    """Read a table whose columns are named ``reset``, ``actions[0]``, ``raw/policy/angles[2]``.

    Raises:
        ValueError: If the file is not such a table.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header, *rows = [row for row in csv.reader(file) if row]
        table = np.asarray(rows, float).reshape(len(rows), len(header))
    except (ValueError, OSError) as error:
        raise ValueError(f"The table '{path}' cannot be read: {error}") from error
    columns: dict[str, list[int]] = {}
    for column, title in enumerate(header):
        name, _, number = title.strip().removesuffix("]").partition("[")
        columns.setdefault(name, []).append(column)
        if (number or "0") != str(len(columns[name]) - 1):
            raise ValueError(
                f"The column {title!r} is out of order, expected {name}[0], {name}[1], ..."
            )
    return {name: table[:, which] for name, which in columns.items()}

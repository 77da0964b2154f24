"""Find in a robot's log what its program does differently from training.

A log has some of these arrays over T steps of one robot: ``raw/GROUP/TERM`` as measured,
``obs/GROUP`` as given to the policy, ``actions`` as the policy returned them, ``targets`` as sent
to the joints, and ``reset``, whether an episode starts with the step.
"""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rsl_tbptt.deploy import GOLDEN, Policy
from rsl_tbptt.tools.progress import track
from rsl_tbptt.tools.robot_program import Fault, Part, RobotProgram, delayed
from rsl_tbptt.tools.runtime_configs import joints_of
from rsl_tbptt.tools.verify import read_golden, run_onnx

EXPLAINS = 0.5
"""A fault is reported only if it reduces the differences that it concerns below this share."""
EVIDENCE = 10.0
"""Least log-likelihood ratio of a fault: below it, a few steps of noise could be the cause."""
UNEXPLAINED = 0.1
"""Share of the logged values' deviation. A larger difference that no known fault explains is
reported: as a fault if the values are exact, as a note if noise may be the cause."""
UNLIKE_TRAINING = 5.0
"""A log's mean is reported if it is more standard deviations than this from training's mean."""
ROUNDING = 1e-4
"""Share of the logged values' deviation below which differences are ignored."""

Log = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Compared:
    """An array of a log, and how a program computes it."""

    name: str
    logged: np.ndarray
    """Shape: (T, ...)."""
    compute: Callable[[RobotProgram], np.ndarray]
    alternatives: Callable[[RobotProgram], Iterable[RobotProgram]] = RobotProgram.obs_alternatives
    is_exact: bool = True
    """Whether a program without fault gives exactly these values: no noisy sensor is read twice."""


@dataclass
class Diagnosis:
    """Differences and faults of the program that wrote a log."""

    differences: dict[str, float] = field(default_factory=dict)
    """Largest difference by array that remains when the faults are taken into account."""
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Arrays that could not be compared, with the reason, and other remarks."""


def diagnose_log(bundle: Path, path: Path) -> Diagnosis:
    """Compare a log with the steps that a bundle's policy would have taken.

    Args:
        bundle: Folder of ``rsl-tbptt export``.
        path: The log, ``.npz`` or ``.csv``.

    Returns:
        The differences, the faults that explain them, and notes.

    Raises:
        ValueError: If the log cannot be read, or does not fit the bundle.
    """
    policy = Policy(bundle)
    metadata = policy.metadata
    # If a checkpoint did not show the groups' widths, the bundle knows all groups joined.
    groups = metadata["observation_groups"] or metadata["inputs"]
    metadata = {**metadata, "observation_groups": groups}
    log, found = _read(path, metadata), Diagnosis()
    if not any(name.startswith(("raw/", "obs/")) for name in log) and "actions" in log:
        log = _as_replay(log, read_golden(bundle / GOLDEN))
        found.notes.append("the log has no observations: it is taken for a replay of the bundle's")
    starts = log.get("reset", np.zeros(len(next(iter(log.values()))), bool)).astype(bool)
    starts[0] = True
    trained = _trained(metadata, log, starts)
    _compare_observations(trained, log, found)
    _compare_actions(policy, trained, log, found)
    _compare_targets(metadata, starts, log, found)
    return found


def _trained(metadata: Mapping[str, Any], log: Log, starts: np.ndarray) -> RobotProgram:
    """Return the program of training, with the measured values as its input.

    Groups have no parts if a term is unknown or was not measured.
    """
    groups, shapes = {}, {}
    for name, group in metadata["observation_groups"].items():
        shapes[name] = (*group["shape"],)
        measured = [log.get(f"raw/{name}/{term['name']}") for term in group.get("terms", ())]
        known = all(values is not None for values in measured)
        terms = zip(group.get("terms", ()), measured, strict=True) if known else ()
        groups[name] = (*(_part(name, group, *term, metadata["robot"]) for term in terms),)
    return RobotProgram(starts, groups, shapes, normalizer=metadata["normalizer"])


def _part(
    name: str,
    group: Mapping[str, Any],
    term: Mapping[str, Any],
    values: Any,
    robot: Mapping[str, Any],
) -> Part:
    values = values.reshape(len(values), -1).astype(float)
    history = term["history_length"]
    by_time = group.get("history_order") == "time"
    return Part(
        f"{name}/{term['name']}",
        values,
        scale=1.0 if term["scale"] is None else term["scale"],
        clip=term["clip"],
        history=history,
        shape=(history, values.shape[1]) if by_time and history else (*term["shape"],),
        labels=(*joints_of(term, robot),),
        may_be_late=term.get("delay_max_lag", 0) > 0,
    )


def _compare_observations(trained: RobotProgram, log: Log, found: Diagnosis) -> None:
    for name, parts in trained.groups.items():
        logged = log.get(f"obs/{name}")
        if parts and logged is not None:
            seen = {k: v for k, v in trained.normalizer.items() if k == name}
            alone = replace(trained, groups={name: parts}, normalizer=seen)
            compute = functools.partial(_group, name)
            _explain(Compared(f"obs/{name}", logged, compute, is_exact=False), alone, found)
        elif logged is not None:
            found.notes.append(f"obs/{name} is not compared: raw/{name}/TERM are not there")
        if logged is not None and name in trained.normalizer and not found.faults:
            found.notes += _unlike_training(f"obs/{name}", logged, trained.normalizer[name])


def _unlike_training(name: str, logged: np.ndarray, seen: Mapping[str, Any]) -> Iterator[str]:
    """Yield a note on each number whose mean is far from its mean in training."""
    mean, divisor = np.asarray(seen["mean"]), np.asarray(seen["divisor"])
    for place, shift in enumerate((logged.mean(axis=0) - mean) / divisor):
        if abs(shift) > UNLIKE_TRAINING:
            yield (
                f"{name}[{place}] is {logged[:, place].mean():.3g} on average, in training it was"
                f" {mean[place]:.3g}, with a standard deviation of {divisor[place]:.2g}"
            )


def _group(name: str, program: RobotProgram) -> np.ndarray:
    return program.obs()[name]


def _compare_actions(policy: Policy, trained: RobotProgram, log: Log, found: Diagnosis) -> None:
    logged = log.get("actions")
    fixed = {name: log[f"obs/{name}"] for name in trained.groups if f"obs/{name}" in log}
    missing = [name for name, parts in trained.groups.items() if not parts and name not in fixed]
    if logged is None or missing:
        reason = f"obs/{missing[0]} is missing" if missing else "they are missing"
        found.notes.append(f"actions are not compared: {reason}")
        return
    if policy.metadata["state_names"] and not trained.starts[1:].any():
        found.notes.append("a forgotten reset cannot show: no episode starts within the log")

    def act(program: RobotProgram) -> np.ndarray:
        seen = {f"obs/{name}": values for name, values in program.obs().items()}
        trajectory = {"reset": program.clearings(), **seen}
        actions = run_onnx(policy, trajectory, ("actions",))["actions"]
        return delayed(actions) if program.acts_late else actions

    is_exact = fixed.keys() == trained.groups.keys()
    compared = Compared("actions", logged, act, RobotProgram.alternatives, is_exact)
    _explain(compared, replace(trained, fixed=fixed), found)


def _compare_targets(
    metadata: Mapping[str, Any], starts: np.ndarray, log: Log, found: Diagnosis
) -> None:
    robot = metadata["robot"]
    actions = robot.get("actions", ())
    if not {"actions", "targets"} <= log.keys() or not actions:
        return
    limit, ends = robot.get("clip_actions"), np.cumsum([action["width"] for action in actions])
    parts = [
        Part(
            f"actions/{action['name']}",
            values.astype(float),
            scale=1.0 if action["scale"] is None else action["scale"],
            offset=0.0 if action["offset"] is None else action["offset"],
            clip=None if limit is None else (-limit, limit),
            limits=None if action["clip"] is None else np.asarray(action["clip"]),
            labels=(*action["joint_names"],),
        )
        for action, values in zip(actions, np.split(log["actions"], ends[:-1], axis=1), strict=True)
    ]
    compared = Compared("targets", log["targets"], functools.partial(_group, "actions"))
    _explain(compared, RobotProgram(starts, {"actions": (*parts,)}), found)


def _explain(compared: Compared, trained: RobotProgram, found: Diagnosis) -> None:
    """Search for the program that computes the logged values, changing one thing at a time."""
    # A late program's values at an episode's first step come from before it, which is not logged.
    valid = ~trained.starts if not trained.starts.all() else trained.starts

    def in_rows(values: np.ndarray) -> np.ndarray:
        return values.reshape(len(valid), -1)[valid].astype(float)

    logged = in_rows(compared.logged)
    deviation = logged.std(axis=0) + 0.1 * logged.std() + 1e-12
    program, expected = trained, in_rows(compared.compute(trained))
    while True:
        error = _root_mean_square(expected - logged) / deviation
        others = [*compared.alternatives(program)] if error.max() > ROUNDING else []
        tried = track(others, f"programs that may have made the {compared.name}")
        values = [in_rows(compared.compute(other)) for other in tried]
        gains = [_gain(logged, expected, other, ROUNDING * deviation) for other in values]
        if max(gains, default=0.0) <= 0.0:
            break
        best = gains.index(max(gains))
        program, expected = others[best], values[best]
    found.differences[compared.name] = float(np.abs(expected - logged).max())
    found.faults += program.faults(trained)
    if error.max() > UNEXPLAINED:
        text = f"{compared.name} differ by {error.max():.0%} of their deviation"
        if compared.is_exact:
            found.faults.append(Fault("unexplained", f"{text}, and no known fault explains it"))
        else:
            found.notes.append(f"{text}, which may be noise")


def _gain(logged: np.ndarray, one: np.ndarray, other: np.ndarray, rounding: np.ndarray) -> float:
    """Return how much better ``other`` fits than ``one``, as a log-likelihood, or 0 if unclear.

    Each number is compared at the steps where the two differ most: a memory that is not cleared
    shows only after the start of an episode.
    """
    between = np.abs(other - one)
    most = between.max(axis=0)
    if not (changed := most > rounding).any():
        return 0.0
    most_steps = (between >= 0.5 * most)[:, changed]
    errors = [(each - logged)[:, changed] for each in (other, one)]
    there = [_root_mean_square(e, where=most_steps) + rounding[changed] for e in errors]
    ratios = np.log(np.divide(*there))
    evidence = -float((ratios * most_steps.sum(axis=0)).sum())
    if ratios.mean() > math.log(EXPLAINS) or evidence < EVIDENCE:
        return 0.0
    everywhere = [_root_mean_square(e) + rounding[changed] for e in errors]
    return -float(np.log(np.divide(*everywhere)).sum())


def _root_mean_square(values: np.ndarray, **options: Any) -> np.ndarray:
    return np.sqrt(np.square(values).mean(axis=0, **options))


def _as_replay(log: Log, golden: Log) -> Log:
    """Return a log with the observations of the golden trajectory.

    Raises:
        ValueError: If its length differs.
    """
    steps, expected = len(log["actions"]), len(golden["actions"])
    if steps != expected:
        raise ValueError(
            f"The log has {steps} steps of actions and no observations, expected the {expected} of"
            f" {GOLDEN}, replayed: log obs/GROUP or raw/GROUP/TERM, too."
        )
    inputs = {n: v for n, v in golden.items() if n == "reset" or n.startswith("obs/")}
    return {**inputs, **log}


def _read(path: Path, metadata: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Read a log and check it.

    Raises:
        ValueError: If it cannot be read, or does not fit the bundle.
    """
    if path.suffix == ".csv":
        log = _read_csv(path)
    elif path.suffix == ".npz":
        log = read_golden(path)
    else:
        raise ValueError(f"The log is '{path}', expected a file that ends in .npz or .csv.")
    widths = dict(_widths(metadata))
    log = {name: values for name, values in log.items() if name in widths}
    if not log:
        raise ValueError(
            f"The log '{path}' has none of the arrays that can be compared: {', '.join(widths)}."
        )
    if wrong := [n for n, v in log.items() if v.ndim == 0 or v.dtype.kind not in "biuf"]:
        raise ValueError(f"{', '.join(wrong)} of the log: expected numbers of shape (T, ...).")
    lengths = {name: len(values) for name, values in log.items()}
    if len({*lengths.values()}) > 1 or min(lengths.values()) < 2:
        raise ValueError(
            f"The log has steps {lengths}, expected the same number of each, at least 2."
        )
    for name, values in log.items():
        if widths[name] != values[0].size:
            raise ValueError(
                f"{name} of the log has {values[0].size} numbers per step, expected {widths[name]}."
            )
        if not np.isfinite(values).all():
            step = int(np.argmin(np.isfinite(values.reshape(len(values), -1)).all(axis=1)))
            raise ValueError(f"{name} of the log is not finite at step {step}, expected numbers.")
    groups = metadata["observation_groups"].items()
    shapes = {"reset": (), **{f"obs/{name}": group["shape"] for name, group in groups}}
    return {n: v.reshape(len(v), *shapes.get(n, v.shape[1:])) for n, v in log.items()}


def _widths(metadata: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the arrays that a log may have, and how many numbers each has per step."""
    yield "reset", 1
    for name, group in metadata["observation_groups"].items():
        yield f"obs/{name}", math.prod(group["shape"])
        for term in group.get("terms", ()):
            yield (
                f"raw/{name}/{term['name']}",
                math.prod(term["shape"]) // (term["history_length"] or 1),
            )
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

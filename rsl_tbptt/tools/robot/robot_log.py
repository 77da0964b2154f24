"""Find in a robot's log what its program does differently from training.

A log has some of these arrays over T steps of one robot: ``raw/GROUP/TERM`` as measured,
``obs/GROUP`` as given to the policy, ``actions`` as the policy returned them, ``targets`` as sent
to the joints, and ``reset``, whether an episode starts with the step.
"""

import csv
import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rsl_tbptt.deploy import GOLDEN, Policy
from rsl_tbptt.tools.progress import track
from rsl_tbptt.tools.robot.log_noise import gain, is_more_than_noise, size, without_spikes
from rsl_tbptt.tools.robot.robot_program import Fault, Part, RobotProgram, delayed, usual_orders
from rsl_tbptt.tools.robot.runtime_configs import width_of
from rsl_tbptt.tools.robot.verify import read_golden, run_onnx

UNLIKE_TRAINING = 5.0
"""A log's mean is reported if it is more standard deviations than this from training's mean."""
JOINT_FUNCTIONS = ("joint_pos", "joint_pos_rel", "joint_vel", "joint_vel_rel", "joint_effort")
"""Isaac Lab's and mjlab's functions of all joints, if no parameter selects some."""

Log = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Compared:
    """An array of a log, and how a program computes it."""

    name: str
    logged: np.ndarray
    """Shape: (T, ...)."""
    compute: Callable[[RobotProgram], np.ndarray]
    terms: Callable[[RobotProgram], np.ndarray]
    """Returns the name of each number's term."""
    alternatives: Callable[[RobotProgram], Iterable[RobotProgram]] = RobotProgram.obs_alternatives
    is_exact: bool = True
    """Whether a program without fault gives exactly these values: no noisy sensor is read twice."""
    is_white: bool = True
    """Whether the noise of a step does not reach later steps through a memory."""


@dataclass
class Diagnosis:
    """Differences and faults of the program that wrote a log."""

    differences: dict[str, float] = field(default_factory=dict)
    """Largest difference by compared array that remains when the faults are corrected."""
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Arrays that could not be compared, with the reason, and other remarks."""


def diagnose_log(bundle: Path, path: Path, tolerance: float = 1e-4) -> Diagnosis:
    """Compare a log with the steps that a bundle's policy would have taken.

    Args:
        bundle: Folder of ``rsl-tbptt export``.
        path: The log, ``.npz`` or ``.csv``.
        tolerance: Differences up to this are rounding.

    Returns:
        The differences, the faults that explain them, and notes. A difference that is more than
        noise and that no known fault explains is a fault, too.

    Raises:
        ValueError: If the log cannot be read, does not fit the bundle, or has nothing to compare.
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
    _compare_observations(trained, log, tolerance, found)
    _compare_actions(policy, trained, log, tolerance, found)
    _compare_targets(metadata, starts, log, tolerance, found)
    if not found.differences and not found.faults:
        raise ValueError(f"Nothing in the log '{path}' can be compared: {'; '.join(found.notes)}.")
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
    history, width = term["history_length"], values.shape[1]
    names, all_joints = _joint_names(term, robot), robot.get("joint_names", ())
    by_time = group.get("history_order") == "time"
    return Part(
        f"{name}/{term['name']}",
        values,
        scale=1.0 if term["scale"] is None else term["scale"],
        clip=term["clip"],
        history=history,
        shape=(history, width) if by_time and history else (*term["shape"],),
        labels=(*names,) if len(names) == width else (),
        orders=usual_orders(all_joints) if len(all_joints) == width else (),
        may_be_late=term.get("delay_max_lag", 0) > 0,
    )


def _joint_names(term: Mapping[str, Any], robot: Mapping[str, Any]) -> Sequence[str]:
    """Return the joints of a term's numbers, or none if their order is not certain."""
    if "parameters" not in term:  # a bundle that does not tell which joints a term selects
        return ()
    given = [each for each in term["parameters"].values() if isinstance(each, Mapping)]
    selected = [each["joint_names"] for each in given if "joint_names" in each]
    if selected:
        return selected[0] if len(selected) == 1 else ()
    is_certain = term["function"] in JOINT_FUNCTIONS and "joint_names" in robot
    moved = {action.get("entity") for action in robot.get("actions", ())}
    return robot["joint_names"] if is_certain and {e.get("entity") for e in given} <= moved else ()


def _compare_observations(
    trained: RobotProgram, log: Log, tolerance: float, found: Diagnosis
) -> None:
    for name, parts in trained.groups.items():
        logged = log.get(f"obs/{name}")
        if parts and logged is not None:
            seen = {k: v for k, v in trained.normalizer.items() if k == name}
            alone = replace(trained, groups={name: parts}, normalizer=seen)
            compared = _as_group(f"obs/{name}", logged, name, is_exact=False)
            _explain(compared, alone, tolerance, found)
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


def _as_group(name: str, logged: np.ndarray, group: str, *, is_exact: bool) -> Compared:
    """Compare an array with a group of the program."""
    return Compared(
        name,
        logged,
        compute=lambda program: program.obs()[group],
        terms=lambda program: program.terms(group),
        is_exact=is_exact,
    )


def _compare_actions(
    policy: Policy, trained: RobotProgram, log: Log, tolerance: float, found: Diagnosis
) -> None:
    logged = log.get("actions")
    fixed = {name: log[f"obs/{name}"] for name in trained.groups if f"obs/{name}" in log}
    missing = [name for name, parts in trained.groups.items() if not parts and name not in fixed]
    if logged is None or missing:
        reason = "they are missing" if logged is None else f"obs/{missing[0]} is missing"
        found.notes.append(f"actions are not compared: {reason}")
        return
    if policy.metadata["state_names"] and not trained.starts[1:].any():
        found.notes.append("a forgotten reset cannot show: no episode starts within the log")

    def act(program: RobotProgram) -> np.ndarray:
        seen = {f"obs/{name}": values for name, values in program.obs().items()}
        trajectory = {"reset": program.clearings(), **seen}
        actions = run_onnx(policy, trajectory, ("actions",))["actions"]
        return delayed(actions) if program.acts_late else actions

    names = np.full(logged[0].size, "actions")
    compared = Compared(
        "actions",
        logged,
        act,
        terms=lambda _: names,
        alternatives=RobotProgram.alternatives,
        is_exact=fixed.keys() == trained.groups.keys(),
        is_white=not policy.metadata["state_names"],
    )
    _explain(compared, replace(trained, fixed=fixed), tolerance, found)


def _compare_targets(
    metadata: Mapping[str, Any], starts: np.ndarray, log: Log, tolerance: float, found: Diagnosis
) -> None:
    robot = metadata["robot"]
    actions = robot.get("actions", ())
    if "targets" not in log:
        return
    if "actions" not in log or not actions:
        reason = "the bundle does not describe them" if "actions" in log else "actions are missing"
        found.notes.append(f"targets are not compared: {reason}")
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
            orders=usual_orders(action["joint_names"]),
        )
        for action, values in zip(actions, np.split(log["actions"], ends[:-1], axis=1), strict=True)
    ]
    compared = _as_group("targets", log["targets"], "actions", is_exact=True)
    _explain(compared, RobotProgram(starts, {"actions": (*parts,)}), tolerance, found)


def _explain(compared: Compared, trained: RobotProgram, tolerance: float, found: Diagnosis) -> None:
    """Report the faults that explain the differences, and the terms that still differ."""
    # A late program's values at an episode's first step come from before it, which is not logged.
    valid = ~trained.starts if not trained.starts.all() else trained.starts

    def in_rows(values: np.ndarray) -> np.ndarray:
        return values.reshape(len(valid), -1)[valid].astype(float)

    def computed(program: RobotProgram) -> np.ndarray:
        return in_rows(compared.compute(program))

    logged = in_rows(compared.logged)
    program = _likeliest(compared, trained, logged, computed, tolerance)
    expected = computed(program)
    found.faults += program.faults(trained)
    difference, terms = np.abs(logged - expected), compared.terms(program)
    if compared.is_exact or _was_read_once(terms, logged, difference <= tolerance):
        differs, is_hidden = difference.max(axis=0) > tolerance, np.zeros(len(terms), bool)
    else:
        readings = logged, expected, computed(program.read_again())
        differs = is_more_than_noise(*readings, tolerance, is_white=compared.is_white)
        is_hidden = ~differs & (size(difference) > 0.5 * size(logged) + tolerance)
    if not is_hidden.all():
        found.differences[compared.name] = _largest(difference)
    for term in dict.fromkeys(terms):
        its = terms == term
        if any(differs[its]):
            text = f"{term}: {differs[its].sum()} of {its.sum()} numbers differ by up to"
            text += f" {_largest(difference[:, its]):.2g}, and no known fault explains it"
            found.faults.append(Fault("unexplained", text))
        elif all(is_hidden[its]):
            found.notes.append(f"{term} is not compared: its noise hides it")


def _likeliest(
    compared: Compared,
    program: RobotProgram,
    logged: np.ndarray,
    computed: Callable[[RobotProgram], np.ndarray],
    tolerance: float,
) -> RobotProgram:
    """Search for the program that computes the logged values, changing one thing at a time."""
    expected, target = computed(program), without_spikes(logged)
    while _largest(expected - logged) > tolerance:
        current, others = without_spikes(expected), [*compared.alternatives(program)]
        tried = track(others, f"programs that may have made the {compared.name}")
        values = [without_spikes(computed(other)) for other in tried]
        gains = [gain(target, current, other, tolerance) for other in values]
        if max(gains, default=0.0) <= 0.0:
            break
        program = others[gains.index(max(gains))]
        expected = computed(program)
    return program


def _was_read_once(terms: np.ndarray, logged: np.ndarray, agrees: np.ndarray) -> bool:
    """Return whether the program used the very values of the log, so that nothing is noise.

    If sensors were read again, some terms agree as well: the command and the last actions.

    Args:
        terms: Name of each number's term. Shape: (D,).
        logged: Shape: (T, D).
        agrees: Where numbers agree. Shape: (T, D).
    """
    moving = {*terms[np.ptp(logged, axis=0) > 0.0]}
    agreeing = moving - {*terms[~agrees.all(axis=0)]}
    return bool(agrees.all(axis=1).mean() > 0.8) or len(agreeing) > 0.5 * len(moving)


def _largest(values: np.ndarray) -> float:
    return float(np.abs(values).max())


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
    readers = {".csv": _read_csv, ".npz": read_golden}
    if path.suffix not in readers:
        raise ValueError(f"The log is '{path}', expected a file that ends in .npz or .csv.")
    log = readers[path.suffix](path)
    widths = dict(_widths(metadata))
    for name in widths.keys() - log.keys():
        for mistyped in difflib.get_close_matches(name, log.keys() - widths.keys(), 1, cutoff=0.9):
            raise ValueError(f"{mistyped} of the log is unknown: did you mean {name}?")
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

"""Write configs that programs on robots read, and find what these do not do as training did.

The values come from the checkpoint; nothing is guessed. If a value is missing or the program has no
form for it, a key that the program needs is null, so that the program refuses the file. Comments in
the file then list what to settle. See docs/howto/runtimes.md.

rl_sar's state machine gets up, lies down and holds the robot in the order of its motors, whatever
``joint_mapping`` says. So all that it reads has that order, observations and actions too.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rsl_tbptt.tools.robot.c_code import of_actions, per_action

Metadata = Mapping[str, Any]
"""Content of ``policy.json``."""
Config = tuple[dict[str, Any], list[str]]
"""Values by key, None if unknown, and texts that say what is missing."""

OBSERVATIONS = {
    "base_lin_vel": (None, None),  # rl_sar has lin_vel, but never fills it
    "base_ang_vel": ("ang_vel", "base_ang_vel"),
    "projected_gravity": ("gravity_vec", "projected_gravity"),
    "generated_commands": ("commands", "velocity_commands"),
    "joint_pos_rel": ("dof_pos", "joint_pos_rel"),
    "joint_vel_rel": ("dof_vel", "joint_vel_rel"),
    "last_action": ("actions", "last_action"),
}
"""Names of observations in rl_sar and in Unitree's programs, by Isaac Lab's and mjlab's functions;
None if the program has no such observation."""
JOINT_TERMS = ("joint_pos_rel", "joint_vel_rel", "last_action")
"""Functions that return a number for each joint."""
SENSORS = {"imu_ang_vel": "base_ang_vel", "imu_lin_vel": "base_lin_vel"}
"""Functions that mjlab's sensors stand for, by the names of the sensors."""
PARAMETERS = ("command_name", "action_name", "sensor_name", "biased")
"""Parameters of functions that programs can do without, or that are looked at."""
JOYSTICK = {"lin_vel_x", "lin_vel_y", "ang_vel_z"}
"""Ranges of the command that the programs take from a joystick."""


def write_config(
    path: Path,
    metadata: Metadata,
    config: Callable[[Metadata], Config],
    gate: str,
    under: str | None = None,
) -> None:
    """Write a program's config as YAML.

    Args:
        path: The file.
        metadata: Content of ``policy.json``.
        config: Returns values and what is missing.
        gate: Key that is null if something is missing, so that the program refuses the file. If it
            were left out, rl_sar would keep the previous policy's value.
        under: Key that all values stand under.
    """
    import yaml

    values, missing = config(metadata)
    step_dt = metadata["robot"].get("step_dt", "unknown")
    lines = [f"# {metadata['checkpoint']}, trained with a control step of {step_dt} s."]
    if missing:
        lines += [f"# {gate} is null, so that the program refuses this file. Settle these:"]
        lines += [f"# - {' '.join(each.split())}" for each in missing]
        lines += [f"# Then write {gate}: {values[gate] or '...'}"]
        values[gate] = None
    known = {k: v for k, v in values.items() if v is not None or k == gate}
    content = known if under is None else {under: known}
    text = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=100)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, text]), encoding="utf-8")


def unitree_config(metadata: Metadata) -> Config:
    """Return a ``deploy.yaml`` for unitree_rl_lab and unitree_rl_mjlab.

    Stiffness and damping are in the order of motors, all else in the order of actions.

    Raises:
        ValueError: If two observations have the same name there.
    """
    robot, missing = metadata["robot"], missing_for(metadata, 1)
    terms, names, joints = terms_of(metadata), names_in(metadata, 1), moved_joints(robot)
    if len({*names}) < len(names):
        raise ValueError(
            f"Observations for the target 'unitree' are {names}, expected each once: its"
            " deploy.yaml tells them apart by name."
        )
    if any(group.get("history_order") == "time" for group in _groups(metadata)):
        missing.append("training joins histories by time, the program term by term")
    if (limit := robot.get("clip_actions")) is not None:
        missing.append(f"training clips actions at {limit}, the program does not")
    for term in terms:
        of_term = [*joints_of(term, robot)]
        if function_of(term) in ("joint_vel_rel", "last_action") and of_term != joints:
            missing.append(f"{term['name']} has {of_term}, the program {joints} in this order")
    sdk_names = robot.get("joint_sdk_names", [])
    motors = [sdk_names.index(joint) for joint in joints] if {*joints} <= {*sdk_names} else None
    commands = (term for term in terms if function_of(term) == "generated_commands")
    ranges = next((_ranges(term, robot) for term in commands), None)
    observations = {
        name: {"params": _params(term, robot), "clip": term["clip"], "scale": scale_of(term)}
        | {"history_length": history(term)}
        for name, term in zip(names, terms, strict=True)
    }
    actions = {
        action["kind"]: {"clip": action["clip"], "joint_names": action["joint_names"]}
        | {name: per_action(action[name], action["width"]) for name in ("scale", "offset")}
        | {"joint_ids": None}
        for action in robot.get("actions", ())
    }
    values = {
        "joint_ids_map": motors or None,
        "step_dt": robot.get("step_dt"),
        "stiffness": _by_motor(robot, "joint_stiffness"),
        "damping": _by_motor(robot, "joint_damping"),
        "default_joint_pos": of_joints(robot, "default_joint_pos", joints),
        "commands": {"base_velocity": {"ranges": ranges}} if ranges else {},
        "actions": actions,
        "observations": observations,
    }
    return values, missing


def _params(term: Mapping[str, Any], robot: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Unitree's programs need to know of a term's joints: none of it, or their places.

    unitree_rl_lab looks at it for positions alone.
    """
    joints, of_term = moved_joints(robot), [*joints_of(term, robot)]
    if function_of(term) != "joint_pos_rel" or of_term == joints or not {*of_term} <= {*joints}:
        return {}
    return {"asset_cfg": {"joint_ids": [joints.index(joint) for joint in of_term]}}


def rl_sar_config(metadata: Metadata) -> Config:
    """Return a ``config.yaml`` for rl_sar, with all arrays in the order of motors.

    rl_sar clips after it scales, adds the default positions to all actions, and has one scale for
    each kind of observation.
    """
    robot, terms, missing = metadata["robot"], terms_of(metadata), missing_for(metadata, 0)
    joints, length = motors(metadata)[0], _history(terms)
    sdk_names = robot.get("joint_sdk_names", [])
    if sdk_names and sdk_names[: len(joints)] != joints:
        missing.append(f"the policy moves {joints}, expected the first motors of {sdk_names}")
    if clips := {term["name"]: term["clip"] for term in terms if term["clip"] is not None}:
        missing.append(f"clip_obs: training clips before it scales, {clips}")
    if "name" not in robot:
        missing.append("ROBOT, in this path and below, stands for rl_sar's name of the robot")
    defaults, offsets = of_joints(robot, "default_joint_pos", joints), by_joint(robot, "offset")
    offset = [offsets.get(joint) for joint in joints]
    if defaults and offset != defaults:
        missing.append(f"offsets of actions are {offset}, rl_sar adds default_dof_pos")
    if any(action["clip"] is not None for action in robot.get("actions", ())):
        missing.append("training clips the targets of joints, rl_sar does not")
    num_actions, clip = metadata["outputs"]["actions"]["shape"][0], robot.get("clip_actions")
    scales = by_joint(robot, "scale")
    kp, kd = (of_joints(robot, f"joint_{name}", joints) for name in ("stiffness", "damping"))
    values = {
        "model_name": "policy.pt",
        "num_observations": sum(_widths(metadata).values()),
        "observations": [*_widths(metadata)],
        "observations_history": [*range(length)][::-1] if length > 1 else [],
        "observations_history_priority": "term",
        "clip_obs": math.inf,
        "clip_actions_lower": [] if clip is None else [-clip] * num_actions,
        "clip_actions_upper": [] if clip is None else [clip] * num_actions,
        "rl_kp": kp,
        "rl_kd": kd,
        # If these were left out, rl_sar would keep those of the previous policy, in its order.
        "fixed_kp": kp and [*kp],
        "fixed_kd": kd and [*kd],
        "num_of_dofs": num_actions,
        "wheel_indices": [],
        "action_scale": [scales[joint] for joint in joints] if {*joints} <= {*scales} else None,
        **_scales(metadata, missing),
        "default_dof_pos": defaults,
        "joint_mapping": [*range(len(joints))] if sdk_names else None,
    }
    return values, missing


def _scales(metadata: Metadata, missing: list[str]) -> dict[str, Any]:
    scales: dict[str, Any] = {}
    names, terms = names_in(metadata, 0), terms_of(metadata)
    for term, name in zip(terms, names, strict=True):
        numbers = scale_of(term)
        key, scale = f"{name}_scale", numbers if name == "commands" else numbers[0]
        has_key = name in ("commands", "ang_vel", "dof_pos", "dof_vel")
        if not has_key and {*numbers} != {1.0}:
            missing.append(f"{term['name']} is scaled by {numbers}, which rl_sar has no key for")
        elif name != "commands" and len({*numbers}) > 1:
            missing.append(f"{term['name']} is scaled by {numbers}, rl_sar has one for all")
        elif has_key and scales.setdefault(key, scale) != scale:
            missing.append(f"{key} is {scales[key]} and {scale}, rl_sar has one for all")
    return scales


def motors(metadata: Metadata) -> tuple[list[str], np.ndarray]:
    """Return joints in the order of their motors, and their places in the policy's actions, (A,).

    Without names of motors, they are in the order of actions.
    """
    joints, robot = moved_joints(metadata["robot"]), metadata["robot"]
    sdk_names = robot.get("joint_sdk_names", ())
    is_known = {*joints} <= {*sdk_names}
    order = sorted(joints, key=sdk_names.index) if is_known else joints
    places = [joints.index(joint) for joint in order]
    return order, np.array(places or range(metadata["outputs"]["actions"]["shape"][0]))


def _history(terms: list[Any]) -> int:
    return max(map(history, terms), default=1)


def _widths(metadata: Metadata) -> dict[str, int]:
    """Return rl_sar's observations, with how many numbers each has in a step."""
    joints, found = motors(metadata)[0], {}
    for term, name in zip(terms_of(metadata), names_in(metadata, 0), strict=True):
        found[name] = len(joints) if function_of(term) in JOINT_TERMS else width_of(term)
    return found


def observation_order(metadata: Metadata) -> np.ndarray:
    """Return the place in rl_sar's observations of each number that the policy takes.

    rl_sar joins histories term by term, oldest step first.

    Args:
        metadata: Content of ``policy.json``.

    Returns:
        A row for each of the first steps of an episode: what rl_sar has not seen yet is taken from
        its first observation. The last row holds from then on. Shape: (H, D).
    """
    groups = metadata["observation_groups"].values()
    if not groups or not all("terms" in group for group in groups):
        return np.arange(sum(math.prod(i["shape"]) for i in metadata["inputs"].values()))[None]
    joints, robot = motors(metadata)[0], metadata["robot"]
    length, widths = _history(terms_of(metadata)), _widths(metadata)
    ends = np.cumsum([*widths.values()]) * length
    begins = dict(zip(widths, [0, *ends], strict=False))
    names = iter(names_in(metadata, 0))

    def places(term: Mapping[str, Any], name: str, first: int) -> np.ndarray:
        """Return places in a term's history, shape (steps, numbers)."""
        selected = [joints.index(each) for each in joints_of(term, robot) if each in joints]
        if len(selected) != width_of(term):
            selected = [*range(width_of(term))]
        steps = np.maximum(np.arange(length - history(term), length), first)
        return begins[name] + steps[:, None] * widths[name] + np.array(selected)

    named = [[(term, next(names)) for term in group["terms"]] for group in groups]
    rows = []
    for first in reversed(range(length)):
        row = []
        for group, terms in zip(groups, named, strict=True):
            parts = [places(term, name, first) for term, name in terms]
            by_time = group.get("history_order") == "time"
            row += [np.concatenate(parts, axis=1)] if by_time else parts
        rows.append(np.concatenate([each.ravel() for each in row]))
    return np.stack(rows)


def missing_for(metadata: Metadata, program: int) -> list[str]:
    """Return what a program needs and the checkpoint does not have, or the program cannot do.

    Args:
        metadata: Content of ``policy.json``.
        program: 0 for rl_sar, 1 for Unitree's.
    """
    robot, terms = metadata["robot"], terms_of(metadata)
    keys = ("step_dt", "default_joint_pos", "joint_stiffness", "joint_damping")
    missing = [f"{key} is not known" for key in keys if key not in robot]
    if not _groups(metadata) or not all("terms" in group for group in _groups(metadata)):
        missing.append("not every observation group tells its terms")
    if modified := [term["name"] for term in terms if term.get("modifiers")]:
        missing.append(f"what the modifiers of {modified} do, which no program knows")
    missing += [
        f"the program has no observation like {term['name']}, or never fills it: train without it,"
        " or add it there"
        for term in terms
        if not OBSERVATIONS.get(function_of(term), (None, None))[program]
    ]
    missing += unknown_parameters(metadata)
    joints, moved = robot.get("joint_names", []), moved_joints(robot)
    if not moved or not {*moved} <= {*robot.get("joint_sdk_names", ())}:
        missing.append(
            f"the motor of each joint, the joints being {moved}: describe_robot() can return"
            " joint_sdk_names"
        )
    kinds = [action["kind"] for action in robot.get("actions", ())]
    if kinds != ["JointPositionAction"] or sorted(moved) != sorted(joints):
        missing.append(f"actions are {kinds} of {moved}, expected positions of all {joints}")
    if kinds and None in (of_actions(robot, "scale"), of_actions(robot, "offset")):
        missing.append("scale or offset of actions is not known")
    return missing


def unknown_parameters(metadata: Metadata) -> Iterator[str]:
    """Yield parameters of terms that change what they return in a way that no program knows."""
    robot, known = metadata["robot"], {*PARAMETERS}
    entities = [action["entity"] for action in robot.get("actions", ()) if action.get("entity")]
    joints = moved_joints(robot)
    for term in terms_of(metadata):
        name, function = term["name"], function_of(term)
        if function not in OBSERVATIONS:
            continue
        if "parameters" not in term:
            yield (
                f"which joints {name} selects, and its other parameters: the checkpoint is of an"
                " earlier release, which did not record them"
            )
        for key, value in term.get("parameters", {}).items():
            is_entity = isinstance(value, Mapping) and "entity" in value
            is_other = is_entity and entities and value["entity"] not in entities
            if is_other or not (is_entity or key in known):
                yield f"{name} has the parameter {key}: {value}, which no program knows"
        of_term = [*joints_of(term, robot)]
        if function in JOINT_TERMS and not (of_term and {*of_term} <= {*joints}):
            yield f"{name} has the joints {of_term}, expected some of those of actions, {joints}"
        if function == "generated_commands" and _ranges(term, robot) is None:
            yield (
                f"{name} is not known to be a velocity, a command with the ranges"
                f" {sorted(JOYSTICK)}: the program takes it from a joystick"
            )


def names_in(metadata: Metadata, program: int) -> list[str]:
    """Return a program's names of the terms; terms that it does not know keep theirs."""
    unknown = (None, None)
    return [
        OBSERVATIONS.get(function_of(term), unknown)[program] or term["name"]
        for term in terms_of(metadata)
    ]


def function_of(term: Mapping[str, Any]) -> str:
    """Return the function of a term, or the one that a sensor of mjlab stands for."""
    function = term.get("function", term["name"])
    sensor = str(term.get("parameters", {}).get("sensor_name", "")).split("/")[-1]
    return SENSORS.get(sensor, function) if function == "builtin_sensor" else function


def joints_of(term: Mapping[str, Any], robot: Mapping[str, Any]) -> Sequence[str]:
    """Return the joints of a term's numbers in their order; none if the numbers are not theirs."""
    parameters = term.get("parameters", {})
    selected = [each for each in parameters.values() if isinstance(each, Mapping)]
    if function_of(term) == "last_action" and "actions" in robot:
        joints = moved_joints(robot, parameters.get("action_name"))
    else:
        known = (each["joint_names"] for each in selected if "joint_names" in each)
        joints = next(known, robot.get("joint_names", ()))
    return joints if len(joints) == width_of(term) else ()


def moved_joints(robot: Mapping[str, Any], action_name: str | None = None) -> list[str]:
    """Return the joints of actions in their order, of one term if it is named."""
    if "actions" not in robot:
        return [*robot.get("joint_names", ())]
    actions = [each for each in robot["actions"] if action_name in (None, each["name"])]
    return [joint for action in actions for joint in action["joint_names"]]


def of_joints(robot: Mapping[str, Any], key: str, joints: Sequence[str]) -> list[float] | None:
    """Return a property of joints in their order; None if it is not known of one."""
    values = dict(zip(robot.get("joint_names", ()), robot.get(key, ()), strict=False))
    return [values[joint] for joint in joints] if {*joints} <= {*values} else None


def by_joint(robot: Mapping[str, Any], name: str) -> dict[str, float]:
    """Return the scale or offset of actions by joint, as far as they are known."""
    return dict(zip(moved_joints(robot), of_actions(robot, name) or (), strict=False))


def terms_of(metadata: Metadata) -> list[Any]:
    """Return the terms of all observation groups in their order."""
    return [term for group in _groups(metadata) for term in group.get("terms", ())]


def _groups(metadata: Metadata) -> list[Any]:
    return [*metadata["observation_groups"].values()]


def history(term: Mapping[str, Any]) -> int:
    """Return how many steps a term shows, at least 1."""
    return max(term["history_length"], 1)


def width_of(term: Mapping[str, Any]) -> int:
    """Return how many numbers a term has in a step."""
    return math.prod(term["shape"]) // history(term)


def scale_of(term: Mapping[str, Any]) -> list[float]:
    """Return the scale of each number of a term."""
    return per_action(1.0 if term["scale"] is None else term["scale"], width_of(term))


def _ranges(term: Mapping[str, Any], robot: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the ranges of a term's command if it is a velocity in the plane."""
    name = term.get("parameters", {}).get("command_name")
    ranges = robot.get("command_ranges", {}).get(name, {})
    return ranges if {*ranges} >= JOYSTICK and width_of(term) == len(JOYSTICK) else None


def _by_motor(robot: Mapping[str, Any], key: str) -> list[float] | None:
    """Return a gain for each motor, 0 for motors that the policy does not move."""
    sdk_names, joints = robot.get("joint_sdk_names", []), robot.get("joint_names", ())
    if key not in robot or not {*joints} <= {*sdk_names}:
        return None
    gains = dict(zip(joints, robot[key], strict=True))
    return [gains.get(motor, 0.0) for motor in sdk_names]

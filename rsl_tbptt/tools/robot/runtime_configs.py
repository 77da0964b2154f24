"""Write config files for robot programs, and list where a program would differ from training.

The values come from the checkpoint; nothing is guessed. If a value is missing or the program has no
form for it, a key that the program needs is null, so that the program refuses the file. Comments in
the file then list what to settle. See docs/howto/runtimes.md.

rl_sar's state machine gets up, lies down and holds the robot in the order of its motors, whatever
``joint_mapping`` says. So all that it reads has that order, observations and actions too.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Metadata = Mapping[str, Any]
"""Content of ``policy.json``."""
Config = tuple[dict[str, Any], list[str]]
"""Values by key, None if unknown, and texts that say what is missing."""

OBSERVATIONS = {
    "base_ang_vel": ("ang_vel", "base_ang_vel"),
    "projected_gravity": ("gravity_vec", "projected_gravity"),
    "generated_commands": ("commands", "velocity_commands"),
    "joint_pos_rel": ("dof_pos", "joint_pos_rel"),
    "joint_vel_rel": ("dof_vel", "joint_vel_rel"),
    "last_action": ("actions", "last_action"),
}
"""Names of observations in rl_sar and in Unitree's programs, by Isaac Lab's and mjlab's functions.

rl_sar has lin_vel, too, but never fills it."""
JOINT_TERMS = ("joint_pos_rel", "joint_vel_rel", "last_action")
"""Functions that return a number for each joint."""
PARAMETERS = ("command_name", "action_name", "sensor_name", "biased")
"""Parameters of functions that programs can do without, or that are looked at."""
JOYSTICK = {"lin_vel_x", "lin_vel_y", "ang_vel_z"}
"""Ranges of the command that the programs take from a joystick."""


def write_yaml(path: Path, metadata: Metadata, config: Config, gate: str, under: str = "") -> None:
    """Write a program's config as YAML.

    Args:
        path: The file.
        metadata: Content of ``policy.json``.
        config: Values and what is missing.
        gate: Key that is null if something is missing, so that the program refuses the file. If it
            were left out, rl_sar would keep the previous policy's value.
        under: Key that all values stand under.
    """
    import yaml

    values, missing = config
    step_dt = metadata["robot"].get("step_dt", "unknown")
    lines = [f"# {metadata['checkpoint']}, trained with a control step of {step_dt} s."]
    if missing:
        lines += [f"# {gate} is null, so that the program refuses this file. Settle these:"]
        lines += [f"# - {' '.join(lack.split())}" for lack in missing]
        lines += [f"# Then write {gate}: {values[gate] or '...'}"]
        values[gate] = None
    set_values = {k: v for k, v in values.items() if v is not None or k == gate}
    content = {under: set_values} if under else set_values
    text = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=100)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, text]), encoding="utf-8")


def unitree_config(metadata: Metadata) -> Config:
    """Return a ``deploy.yaml`` for unitree_rl_lab and unitree_rl_mjlab.

    Stiffness and damping are in the order of motors, all else in the order of actions.
    """
    robot, missing = metadata["robot"], missing_for(metadata)
    terms, names, joints = terms_of(metadata), names_in(metadata, 1), moved_joints(robot)
    if len({*names}) < len(names):
        missing.append(f"observations are {names}, expected each once: the program goes by name")
    if (limit := robot.get("clip_actions")) is not None:
        missing.append(f"training clips actions at {limit}, the program does not")
    for term in terms:
        of_term = [*joints_of(term, robot)]
        if function_of(term) in JOINT_TERMS and of_term != joints:
            missing.append(f"{term['name']} has {of_term}, the program {joints} in this order")
    sdk_names = robot.get("joint_sdk_names", [])
    motors = [sdk_names.index(joint) for joint in joints] if {*joints} <= {*sdk_names} else None
    ranges = next(filter(None, (_ranges(term, robot) for term in terms)), None)
    observations = {
        name: {"params": {}, "clip": term["clip"], "scale": scale_of(term)}
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


def rl_sar_config(metadata: Metadata) -> Config:
    """Return a ``config.yaml`` for rl_sar, with all arrays in the order of motors.

    rl_sar clips after it scales, adds the default positions to all actions, and has one scale for
    each kind of observation.
    """
    robot, terms, missing = metadata["robot"], terms_of(metadata), missing_for(metadata)
    joints, length = motors(metadata)[0], max(map(history, terms), default=1)
    sdk_names = robot.get("joint_sdk_names", [])
    if sdk_names and sdk_names[: len(joints)] != joints:
        missing.append(f"the policy moves {joints}, expected the first motors of {sdk_names}")
    if clips := {term["name"]: term["clip"] for term in terms if term["clip"] is not None}:
        missing.append(f"clip_obs: training clips before it scales, {clips}")
    if "name" not in robot:
        missing.append("ROBOT, in this path and below, stands for rl_sar's name of the robot")
    defaults = of_joints(robot, "default_joint_pos", joints)
    offset = [by_joint(robot, "offset").get(joint) for joint in joints]
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
    """Return rl_sar's keys of scales; it has one for all numbers but those of commands."""
    scales: dict[str, Any] = {}
    for term, name in zip(terms_of(metadata), names_in(metadata, 0), strict=True):
        numbers, has_key = scale_of(term), name in ("commands", "ang_vel", "dof_pos", "dof_vel")
        scale = numbers if name == "commands" else numbers[0]
        earlier = scales.setdefault(f"{name}_scale", scale) if has_key else 1.0
        if earlier != scale or (name != "commands" and len({*numbers}) > 1):
            missing.append(f"{term['name']} is scaled by {numbers}, rl_sar by {earlier}")
    return scales


def motors(metadata: Metadata) -> tuple[list[str], np.ndarray]:
    """Return joints in the order of their motors, and their places in the policy's actions, (A,).

    Without names of motors, they are in the order of actions.
    """
    joints, robot = moved_joints(metadata["robot"]), metadata["robot"]
    sdk_names = robot.get("joint_sdk_names", ())
    order = sorted(joints, key=sdk_names.index) if {*joints} <= {*sdk_names} else joints
    places = [joints.index(joint) for joint in order]
    return order, np.array(places or range(metadata["outputs"]["actions"]["shape"][0]))


def _widths(metadata: Metadata) -> dict[str, int]:
    """Return rl_sar's observations, with how many numbers each has in a step."""
    joints, widths = motors(metadata)[0], {}
    for term, name in zip(terms_of(metadata), names_in(metadata, 0), strict=True):
        widths[name] = len(joints) if function_of(term) in JOINT_TERMS else width_of(term)
    return widths


def observation_order(metadata: Metadata) -> np.ndarray:
    """Return the place in rl_sar's observations of each number that the policy takes.

    rl_sar joins histories term by term, oldest step first.

    Args:
        metadata: Content of ``policy.json``.

    Returns:
        A row for each of the first steps of an episode: what rl_sar has not seen yet is taken from
        its first observation. The last row holds from then on. Shape: (H, D).
    """
    if not _tells_terms(metadata):
        return np.arange(sum(math.prod(i["shape"]) for i in metadata["inputs"].values()))[None]
    joints, robot, terms = motors(metadata)[0], metadata["robot"], terms_of(metadata)
    length, widths = max(map(history, terms), default=1), _widths(metadata)
    starts = itertools.accumulate((width * length for width in widths.values()), initial=0)
    begins = dict(zip(widths, starts, strict=False))

    def places(term: Mapping[str, Any], name: str, first: int) -> np.ndarray:
        """Return the places of a term's numbers, step by step."""
        selected = [joints.index(joint) for joint in joints_of(term, robot) if joint in joints]
        if len(selected) != width_of(term):
            selected = [*range(width_of(term))]
        steps = np.maximum(np.arange(length - history(term), length), first)
        return (begins[name] + steps[:, None] * widths[name] + np.array(selected)).ravel()

    named = [*zip(terms, names_in(metadata, 0), strict=True)]
    firsts = reversed(range(length))
    return np.stack([np.concatenate([places(*term, first) for term in named]) for first in firsts])


def missing_for(metadata: Metadata) -> list[str]:
    """Return what both programs need and the checkpoint does not have, or neither can do."""
    robot, terms = metadata["robot"], terms_of(metadata)
    keys = ("step_dt", "default_joint_pos", "joint_stiffness", "joint_damping")
    missing = [f"{key} is not known" for key in keys if key not in robot]
    if not _tells_terms(metadata):
        missing.append("not every observation group tells its terms, with their parameters")
    if any(
        group.get("history_order") == "time" for group in metadata["observation_groups"].values()
    ):
        missing.append("training joins histories by time, the program term by term")
    if modified := [term["name"] for term in terms if term.get("modifiers")]:
        missing.append(f"what the modifiers of {modified} do, which no program knows")
    missing += [
        f"the program has no observation like {term['name']}: train without it, or add it there"
        for term in terms
        if function_of(term) not in OBSERVATIONS
    ]
    missing += _unknown_parameters(metadata)
    joints, moved = robot.get("joint_names", []), moved_joints(robot)
    if not moved or not {*moved} <= {*robot.get("joint_sdk_names", ())}:
        missing.append(f"the motors of {moved}: describe_robot() can return joint_sdk_names")
    kinds = [action["kind"] for action in robot.get("actions", ())]
    if kinds != ["JointPositionAction"] or sorted(moved) != sorted(joints):
        missing.append(f"actions are {kinds} of {moved}, expected positions of all {joints}")
    if kinds and None in (of_actions(robot, "scale"), of_actions(robot, "offset")):
        missing.append("scale or offset of actions is not known")
    return missing


def _unknown_parameters(metadata: Metadata) -> Iterator[str]:
    """Yield parameters of terms that change what they return in a way that no program knows."""
    robot, joints = metadata["robot"], moved_joints(metadata["robot"])
    entities = [action["entity"] for action in robot.get("actions", ()) if action.get("entity")]
    for term in terms_of(metadata):
        name, function = term["name"], function_of(term)
        if function not in OBSERVATIONS:
            continue
        for key, value in term.get("parameters", {}).items():
            entity = value.get("entity") if isinstance(value, Mapping) else None
            is_other = entity is None or (entities and entity not in entities)
            if is_other and key not in PARAMETERS:
                yield f"{name} has the parameter {key}: {value}, which no program knows"
        of_term = [*joints_of(term, robot)]
        if function in JOINT_TERMS and not (of_term and {*of_term} <= {*joints}):
            yield f"{name} has the joints {of_term}, expected some of those of actions, {joints}"
        if function == "generated_commands" and _ranges(term, robot) is None:
            yield f"{name} is not known to be a velocity with the ranges {sorted(JOYSTICK)}"


def names_in(metadata: Metadata, program: int) -> list[str]:
    """Return the names of terms in rl_sar (0) or in Unitree's programs (1), if these know them."""
    terms = terms_of(metadata)
    return [OBSERVATIONS.get(function_of(term), (term["name"],) * 2)[program] for term in terms]


def function_of(term: Mapping[str, Any]) -> str:
    """Return the function of a term, or the one that a sensor of mjlab stands for."""
    function = term.get("function", term["name"])
    sensor = str(term.get("parameters", {}).get("sensor_name", "")).split("/")[-1]
    return "base_ang_vel" if (function, sensor) == ("builtin_sensor", "imu_ang_vel") else function


def joints_of(term: Mapping[str, Any], robot: Mapping[str, Any]) -> Sequence[str]:
    """Return the joints of a term's numbers in their order; none if the numbers are not theirs."""
    if function_of(term) not in JOINT_TERMS:  # a robot of three joints has other terms as wide
        return ()
    parameters = term.get("parameters", {})
    selected = [values for values in parameters.values() if isinstance(values, Mapping)]
    if function_of(term) == "last_action" and "actions" in robot:
        joints = moved_joints(robot, parameters.get("action_name"))
    else:
        lists = (values["joint_names"] for values in selected if "joint_names" in values)
        joints = next(lists, robot.get("joint_names", ()))
    return joints if len(joints) == width_of(term) else ()


def moved_joints(robot: Mapping[str, Any], action_name: str | None = None) -> list[str]:
    """Return the joints of actions in their order, of one term if it is named."""
    if "actions" not in robot:
        return [*robot.get("joint_names", ())]
    actions = [action for action in robot["actions"] if action_name in (None, action["name"])]
    return [joint for action in actions for joint in action["joint_names"]]


def of_joints(robot: Mapping[str, Any], key: str, joints: Sequence[str]) -> list[float] | None:
    """Return a property of joints in their order; None if it is not known of one."""
    values = dict(zip(robot.get("joint_names", ()), robot.get(key, ()), strict=False))
    return [values[joint] for joint in joints] if {*joints} <= {*values} else None


def by_joint(robot: Mapping[str, Any], name: str) -> dict[str, float]:
    """Return the scale or offset of actions by joint, as far as they are known."""
    return dict(zip(moved_joints(robot), of_actions(robot, name) or (), strict=False))


def per_action(value: Any, width: int) -> Any:
    """Return one number per action: repeats a single number, keeps a list or None."""
    return [float(value)] * width if isinstance(value, (int, float)) else value


def of_actions(robot: Mapping[str, Any], name: str) -> list[float] | None:
    """Return the scale or offset of every action in order; None if one is not known."""
    values = [per_action(action[name], action["width"]) for action in robot.get("actions", ())]
    return [*itertools.chain(*values)] if values and None not in values else None


def terms_of(metadata: Metadata) -> list[Any]:
    """Return the terms of all observation groups in their order."""
    return [
        term for group in metadata["observation_groups"].values() for term in group.get("terms", ())
    ]


def _tells_terms(metadata: Metadata) -> bool:
    """Return whether all terms are known; earlier releases did not record their parameters."""
    groups = metadata["observation_groups"].values()
    return bool(groups) and all("parameters" in t for g in groups for t in g.get("terms", [{}]))


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
    gains = dict(zip(robot.get("joint_names", ()), robot.get(key, ()), strict=False))
    values = [gains.get(motor, 0.0) for motor in robot.get("joint_sdk_names", ())]
    return values if values and gains else None

"""Write a bundle's folder for unitree_rl_lab and unitree_rl_mjlab: docs/howto/runtimes.md.

The config's values come from the checkpoint; nothing is guessed. If a value is missing or the
programs have no form for it, ``joint_ids_map`` is null, so that they refuse the file. Comments in
the file then list what to settle.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import onnx

from rsl_tbptt.deploy import METADATA, ONNX
from rsl_tbptt.files import write_json

Metadata = Mapping[str, Any]
"""Content of ``policy.json``."""

CLASS = Path(__file__).with_name("unitree.h")
"""Template of the class that the programs call."""
OBSERVATIONS = {
    "base_ang_vel": "base_ang_vel",
    "projected_gravity": "projected_gravity",
    "generated_commands": "velocity_commands",
    "joint_pos_rel": "joint_pos_rel",
    "joint_vel_rel": "joint_vel_rel",
    "last_action": "last_action",
}
"""The programs' names of observations, by Isaac Lab's and mjlab's functions."""
JOINT_TERMS = ("joint_pos_rel", "joint_vel_rel", "last_action")
"""Functions that return a number for each joint."""
PARAMETERS = ("command_name", "action_name", "sensor_name", "biased")
"""Parameters of functions that the programs can do without, or that are looked at."""
JOYSTICK = {"lin_vel_x", "lin_vel_y", "ang_vel_z"}
"""Ranges of the command that the programs take from a joystick."""


def write_unitree(folder: Path, model: onnx.ModelProto, metadata: Metadata) -> None:
    """Write ONNX, config, and the class that the programs call.

    Args:
        folder: The folder for the programs.
        model: One step with a single input ``obs``.
        metadata: Content of a ``policy.json`` for ``model``.
    """
    for name in ("params", "exported"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "params" / "deploy.yaml").write_text(config_text(metadata), encoding="utf-8")
    onnx.save(model, folder / "exported" / ONNX)
    write_json(folder / "exported" / METADATA, metadata)
    text = Template(CLASS.read_text(encoding="utf-8")).substitute(_class_in_cpp(metadata))
    (folder / "policy_unitree.h").write_text(text, encoding="utf-8")


def _class_in_cpp(metadata: Metadata) -> dict[str, Any]:
    """Return what the template of the class is filled with.

    The states and the heads' predictions lie one after another in one array of numbers.
    """
    names, num_states = [*metadata["outputs"]], len(metadata["state_names"])
    widths = [math.prod(metadata["outputs"][name]["shape"]) for name in names[1:]]
    *starts, end = itertools.accumulate(widths, initial=0)
    before = [f"state_.data() + {start}" for start in starts[:num_states]]
    after = [f"after.data() + {start}" for start in starts]
    return {
        "checkpoint": metadata["checkpoint"].replace("*/", "* /"),
        "parameters": ", ".join(["const float *"] * (1 + num_states) + ["float *"] * len(names)),
        "arguments": ", ".join(["obs.data()", *before, "actions.data()", *after]),
        "num_obs": metadata["inputs"]["obs"]["shape"][0],
        "num_actions": metadata["outputs"]["actions"]["shape"][0],
        "num_numbers": end,
    }


def config_text(metadata: Metadata) -> str:
    """Return a ``deploy.yaml``, with comments that say what is missing."""
    import yaml

    values, missing = _config(metadata), _missing(metadata)
    step_dt = metadata["robot"].get("step_dt", "unknown")
    lines = [f"# {metadata['checkpoint']}, trained with a control step of {step_dt} s."]
    if missing:
        lines += ["# joint_ids_map is null, so that the program refuses this file. Settle these:"]
        lines += [f"# - {' '.join(lack.split())}" for lack in missing]
        lines += [f"# Then write joint_ids_map: {values['joint_ids_map'] or '...'}"]
        values["joint_ids_map"] = None
    values = {k: v for k, v in values.items() if v is not None or k == "joint_ids_map"}
    text = yaml.safe_dump(values, sort_keys=False, default_flow_style=None, width=100)
    return "\n".join([*lines, text])


def _config(metadata: Metadata) -> dict[str, Any]:
    """Return the values of a ``deploy.yaml``, None if unknown.

    Stiffness and damping are in the order of motors, all else in the order of actions.
    """
    robot, terms = metadata["robot"], terms_of(metadata)
    joints, motors = moved_joints(robot), robot.get("joint_sdk_names", [])
    is_known = joints and {*joints} <= {*motors}
    ranges = next(filter(None, (_ranges(term, robot) for term in terms)), None)
    observations = {
        name: {"params": {}, "clip": term["clip"], "scale": scale_of(term)}
        | {"history_length": history(term)}
        for name, term in zip(names_in(terms), terms, strict=True)
    }
    actions = {
        action["kind"]: {"clip": action["clip"], "joint_names": action["joint_names"]}
        | {name: per_action(action[name], action["width"]) for name in ("scale", "offset")}
        | {"joint_ids": None}
        for action in robot.get("actions", ())
    }
    return {
        "joint_ids_map": [motors.index(joint) for joint in joints] if is_known else None,
        "step_dt": robot.get("step_dt"),
        # 0 for motors that the policy does not move
        "stiffness": _of_joints(robot, "joint_stiffness", motors, 0.0),
        "damping": _of_joints(robot, "joint_damping", motors, 0.0),
        "default_joint_pos": _of_joints(robot, "default_joint_pos", joints),
        "commands": {"base_velocity": {"ranges": ranges}} if ranges else {},
        "actions": actions,
        "observations": observations,
    }


def _missing(metadata: Metadata) -> list[str]:
    """Return what the programs need and the checkpoint does not have, or they cannot do."""
    robot, terms = metadata["robot"], terms_of(metadata)
    groups = metadata["observation_groups"].values()
    keys = ("step_dt", "default_joint_pos", "joint_stiffness", "joint_damping")
    missing = [f"{key} is not known" for key in keys if key not in robot]
    # Earlier releases did not record the parameters of terms.
    if not groups or any("parameters" not in t for g in groups for t in g.get("terms", [{}])):
        missing.append("not every observation group tells its terms, with their parameters")
    if any(group.get("history_order") == "time" for group in groups):
        missing.append("training joins histories by time, the program term by term")
    if modified := [term["name"] for term in terms if term.get("modifiers")]:
        missing.append(f"what the modifiers of {modified} do, which no program knows")
    missing += [
        f"the program has no observation like {term['name']}: train without it, or add it there"
        for term in terms
        if function_of(term) not in OBSERVATIONS
    ]
    missing += _unknown_parameters(terms, robot)
    if len({*(names := names_in(terms))}) < len(names):
        missing.append(f"observations are {names}, expected each once: the program goes by name")
    joints, moved = robot.get("joint_names", []), moved_joints(robot)
    if not moved or not {*moved} <= {*robot.get("joint_sdk_names", ())}:
        missing.append(f"the motors of {moved}: describe_robot() can return joint_sdk_names")
    kinds = [action["kind"] for action in robot.get("actions", ())]
    if kinds != ["JointPositionAction"] or sorted(moved) != sorted(joints):
        missing.append(f"actions are {kinds} of {moved}, expected positions of all {joints}")
    if kinds and None in (of_actions(robot, "scale"), of_actions(robot, "offset")):
        missing.append("scale or offset of actions is not known")
    if (limit := robot.get("clip_actions")) is not None:
        missing.append(f"training clips actions at {limit}, the program does not")
    return missing


def _unknown_parameters(terms: Sequence[Any], robot: Mapping[str, Any]) -> Iterator[str]:
    """Yield parameters of terms that change what they return in a way that no program knows."""
    joints = moved_joints(robot)
    entities = [action["entity"] for action in robot.get("actions", ()) if action.get("entity")]
    for term in terms:
        name, function = term["name"], function_of(term)
        if function not in OBSERVATIONS:
            continue
        for key, value in term.get("parameters", {}).items():
            entity = value.get("entity") if isinstance(value, Mapping) else None
            is_other = entity is None or (entities and entity not in entities)
            if is_other and key not in PARAMETERS:
                yield f"{name} has the parameter {key}: {value}, which no program knows"
        if function in JOINT_TERMS and (of_term := joints_of(term, robot)) != joints:
            yield f"{name} has {of_term}, the program {joints} in this order"
        if function == "generated_commands" and _ranges(term, robot) is None:
            yield f"{name} is not known to be a velocity with the ranges {sorted(JOYSTICK)}"


def names_in(terms: Sequence[Any]) -> list[str]:
    """Return the programs' names of terms, or training's of those that they do not know."""
    return [OBSERVATIONS.get(function_of(term), str(term["name"])) for term in terms]


def function_of(term: Mapping[str, Any]) -> str:
    """Return the function of a term, or the one that a sensor of mjlab stands for."""
    function = term.get("function", term["name"])
    sensor = str(term.get("parameters", {}).get("sensor_name", "")).split("/")[-1]
    return "base_ang_vel" if (function, sensor) == ("builtin_sensor", "imu_ang_vel") else function


def joints_of(term: Mapping[str, Any], robot: Mapping[str, Any]) -> list[str]:
    """Return the joints of a term of JOINT_TERMS in order; none if its numbers are not theirs."""
    parameters = term.get("parameters", {})
    selected = [values for values in parameters.values() if isinstance(values, Mapping)]
    if function_of(term) == "last_action" and "actions" in robot:
        joints = moved_joints(robot, parameters.get("action_name"))
    else:
        lists = (values["joint_names"] for values in selected if "joint_names" in values)
        joints = next(lists, robot.get("joint_names", ()))
    return [*joints] if len(joints) == width_of(term) else []


def moved_joints(robot: Mapping[str, Any], action_name: str | None = None) -> list[str]:
    """Return the joints of actions in their order, of one term if it is named."""
    if "actions" not in robot:
        return [*robot.get("joint_names", ())]
    actions = [action for action in robot["actions"] if action_name in (None, action["name"])]
    return [joint for action in actions for joint in action["joint_names"]]


def _of_joints(
    robot: Mapping[str, Any], key: str, joints: Sequence[str], default: float | None = None
) -> list[float] | None:
    """Return a property of joints in their order; None if it is not known."""
    known = dict(zip(robot.get("joint_names", ()), robot.get(key, ()), strict=False))
    values = [known.get(joint, default) for joint in joints]
    return values if known and values and None not in values else None


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

"""Write the configs that rl_sar and Unitree's programs read; see docs/howto/runtimes.md.

The values come from the checkpoint; nothing is guessed. If a value is missing or the program has no
form for it, a key that the program needs is null, so that the program refuses the file. Comments in
the file then list what to settle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rsl_tbptt.tools.c_code import of_actions, per_action

Metadata = Mapping[str, Any]
"""Content of ``policy.json``."""
Config = tuple[dict[str, Any], list[str]]
"""Values by key, None if unknown, and texts that say what is missing."""

OBSERVATIONS = {
    "base_lin_vel": ("lin_vel", None),
    "base_ang_vel": ("ang_vel", "base_ang_vel"),
    "projected_gravity": ("gravity_vec", "projected_gravity"),
    "generated_commands": ("commands", "velocity_commands"),
    "joint_pos_rel": ("dof_pos", "joint_pos_rel"),
    "joint_vel_rel": ("dof_vel", "joint_vel_rel"),
    "last_action": ("actions", "last_action"),
}
"""Names of observations in rl_sar and in Unitree's programs, by Isaac Lab's and mjlab's functions;
None if the program has no such observation."""


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
        lines += [f"# - {each}" for each in missing]
        lines += [f"# Then write {gate}: {values[gate] or '...'}"]
        values[gate] = None
    known = {k: v for k, v in values.items() if v is not None or k == gate}
    content = known if under is None else {under: known}
    text = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=100)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, text]), encoding="utf-8")


def rl_sar_config(metadata: Metadata) -> Config:
    """Return a ``config.yaml`` for rl_sar.

    rl_sar clips after it scales, adds the default positions to all actions, and has one scale for
    each kind of observation and one history for all of them.
    """
    robot, missing = metadata["robot"], _missing(metadata)
    terms, names = terms_of(metadata), _named(metadata, 0, missing)
    histories = sorted({history(term) for term in terms})
    length = histories[0] if len(histories) == 1 else 1
    if len(histories) > 1:
        missing.append(f"observations have histories of {histories} steps, rl_sar has one for all")
    if clips := {term["name"]: term["clip"] for term in terms if term["clip"] is not None}:
        missing.append(f"clip_obs: training clips before it scales, {clips}")
    if "name" not in robot:
        missing.append("ROBOT, in this path and below, stands for rl_sar's name of the robot")
    offset = of_actions(robot, "offset")
    if offset != robot.get("default_joint_pos"):
        missing.append(f"offsets of actions are {offset}, rl_sar adds default_dof_pos")
    if any(action["clip"] is not None for action in robot.get("actions", ())):
        missing.append("training clips the targets of joints, rl_sar does not")
    num_actions, clip = metadata["outputs"]["actions"]["shape"][0], robot.get("clip_actions")
    values = {
        "model_name": "policy.pt",
        "num_observations": sum(map(_width, terms)),
        "observations": names,
        "observations_history": [*range(length)][::-1] if length > 1 else [],
        "observations_history_priority": _history_order(metadata),
        "clip_obs": math.inf,
        "clip_actions_lower": [] if clip is None else [-clip] * num_actions,
        "clip_actions_upper": [] if clip is None else [clip] * num_actions,
        "rl_kp": robot.get("joint_stiffness"),
        "rl_kd": robot.get("joint_damping"),
        "num_of_dofs": num_actions,
        "wheel_indices": [],
        "action_scale": of_actions(robot, "scale"),
        **_rl_sar_scales(terms, names, missing),
        "default_dof_pos": robot.get("default_joint_pos"),
        "joint_mapping": _motors(robot),
    }
    return values, missing


def _rl_sar_scales(terms: list[Any], names: list[str], missing: list[str]) -> dict[str, Any]:
    scales: dict[str, Any] = {}
    for term, name in zip(terms, names, strict=True):
        numbers = _scale(term)
        if name == "commands":
            scales["commands_scale"] = numbers
        elif name in ("lin_vel", "ang_vel", "dof_pos", "dof_vel") and len({*numbers}) == 1:
            scales[f"{name}_scale"] = numbers[0]
        elif {*numbers} != {1.0}:
            missing.append(f"{term['name']} is scaled by {numbers}, which rl_sar has no key for")
    return scales


def unitree_config(metadata: Metadata) -> Config:
    """Return a ``deploy.yaml`` for unitree_rl_lab and unitree_rl_mjlab.

    Stiffness and damping are in the order of motors, all else in the order of joints.

    Raises:
        ValueError: If two observations have the same name there.
    """
    robot, missing = metadata["robot"], _missing(metadata)
    terms, names = terms_of(metadata), _named(metadata, 1, missing)
    if len({*names}) < len(names):
        raise ValueError(
            f"Observations for the target 'unitree' are {names}, expected each once: its"
            " deploy.yaml tells them apart by name."
        )
    if _history_order(metadata) == "time":
        missing.append("training joins histories by time, the program term by term")
    motors, ranges = _motors(robot), robot.get("command_ranges", {})
    if "velocity_commands" in names and "base_velocity" not in ranges:
        missing.append("commands: base_velocity: ranges, to which the joystick is limited")
    observations = {
        name: {"params": {}, "clip": term["clip"], "scale": _scale(term)}
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
        "joint_ids_map": motors,
        "step_dt": robot.get("step_dt"),
        "stiffness": _by_motor(robot, "joint_stiffness", motors),
        "damping": _by_motor(robot, "joint_damping", motors),
        "default_joint_pos": robot.get("default_joint_pos"),
        "commands": {name: {"ranges": limits} for name, limits in ranges.items()},
        "actions": actions,
        "observations": observations,
    }
    return values, missing


def _missing(metadata: Metadata) -> list[str]:
    """Return what both programs need and the checkpoint does not have."""
    robot, groups = metadata["robot"], metadata["observation_groups"]
    keys = ("step_dt", "default_joint_pos", "joint_stiffness", "joint_damping")
    missing = [f"{key} is not known" for key in keys if key not in robot]
    if not groups or not all("terms" in group for group in groups.values()):
        missing.append("not every observation group tells its terms")
    if modified := [term["name"] for term in terms_of(metadata) if term.get("modifiers")]:
        missing.append(f"what the modifiers of {modified} do, which no program knows")
    joints, actions = robot.get("joint_names"), robot.get("actions", ())
    if _motors(robot) is None:
        missing.append(f"the motor of each joint, the joints being {joints}")
    kinds = [action["kind"] for action in actions]
    moved = [joint for action in actions for joint in action["joint_names"]]
    if (kinds, moved) != (["JointPositionAction"], joints):
        missing.append(f"actions are {kinds} of {moved}, expected positions of all joints in order")
    if actions and None in (of_actions(robot, "scale"), of_actions(robot, "offset")):
        missing.append("scale or offset of actions is not known")
    return missing


def _named(metadata: Metadata, program: int, missing: list[str]) -> list[str]:
    """Return a program's names of the terms; terms that it does not know keep theirs."""
    names = []
    for term in terms_of(metadata):
        known = OBSERVATIONS.get(term.get("function"), OBSERVATIONS.get(term["name"]))
        names.append((known and known[program]) or term["name"])
        if not (known and known[program]):
            missing.append(f"whether the program has an observation like {term['name']}")
    return names


def terms_of(metadata: Metadata) -> list[Any]:
    """Return the terms of all observation groups in their order."""
    groups = metadata["observation_groups"].values()
    return [term for group in groups for term in group.get("terms", ())]


def _history_order(metadata: Metadata) -> str:
    """Return whether steps of histories are joined by "term" or by "time"."""
    groups = metadata["observation_groups"].values()
    return "time" if any(group.get("history_order") == "time" for group in groups) else "term"


def history(term: Mapping[str, Any]) -> int:
    """Return how many steps a term shows, at least 1."""
    return max(term["history_length"], 1)


def _width(term: Mapping[str, Any]) -> int:
    """Return how many numbers a term has in a step."""
    return math.prod(term["shape"]) // history(term)


def _scale(term: Mapping[str, Any]) -> list[float]:
    return per_action(1.0 if term["scale"] is None else term["scale"], _width(term))


def _motors(robot: Mapping[str, Any]) -> list[int] | None:
    """Return the motor of each joint; None if one is not known."""
    joints, motors = robot.get("joint_names", ()), robot.get("joint_sdk_names", ())
    known = joints and {*joints} <= {*motors}
    return [motors.index(joint) for joint in joints] if known else None


def _by_motor(robot: Mapping[str, Any], key: str, motors: list[int] | None) -> list[float] | None:
    """Return a gain for each motor, 0 for motors that the policy does not move."""
    if motors is None or key not in robot:
        return None
    gains = dict(zip(motors, robot[key], strict=True))
    return [gains.get(motor, 0.0) for motor in range(len(robot["joint_sdk_names"]))]

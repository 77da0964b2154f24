"""Write the folder that rl_sar reads; see docs/howto/runtimes.md.

rl_sar's state machine gets up, lies down and holds the robot in the order of its motors, whatever
``joint_mapping`` says. So ``policy.pt`` takes observations and returns actions in that order.
"""

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from rsl_tbptt.tools.robot.runtime_configs import (
    JOINT_TERMS,
    Config,
    Metadata,
    by_joint,
    function_of,
    history,
    joints_of,
    missing_for,
    moved_joints,
    names_in,
    of_joints,
    scale_of,
    terms_of,
    width_of,
)


class InMotorOrder(nn.Module):
    """A policy that takes rl_sar's observations and returns actions in the order of motors.

    rl_sar's history begins with zeros. Training's repeats the first observation, and so does this.
    rl_sar loads the file anew where an episode starts.
    """

    order: torch.Tensor
    action_order: torch.Tensor

    def __init__(self, policy: Any, order: torch.Tensor, action_order: torch.Tensor) -> None:
        """Keep the orders.

        Args:
            policy: The policy in TorchScript.
            order: Place in rl_sar's observations of each of the policy's, at the first steps of an
                episode; the last row holds from then on. Shape: (H, D), H steps of history.
            action_order: Place in the policy's actions of each motor's. Shape: (A,).
        """
        super().__init__()
        self.policy = policy
        self.register_buffer("order", order)
        self.register_buffer("action_order", action_order)
        self.step: int = 0

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Return actions, (1, A), for rl_sar's observations, (1, any)."""
        order = self.order[self.step]
        self.step = min(self.step + 1, self.order.size(0) - 1)
        return self.policy(obs.index_select(1, order)).index_select(1, self.action_order)

    @torch.jit.export
    def reset(self) -> None:
        """Start an episode."""
        self.step = 0
        self.policy.reset()


def write_policy(torchscript: Path, metadata: Metadata, path: Path) -> None:
    """Write a policy in TorchScript that takes rl_sar's observations.

    Args:
        torchscript: The policy, which takes training's observations.
        metadata: Content of ``policy.json``.
        path: The file.
    """
    order, action_order = map(torch.from_numpy, (observation_order(metadata), motors(metadata)[1]))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".torch.jit")
        policy = torch.jit.load(str(torchscript))
        torch.jit.script(InMotorOrder(policy, order, action_order)).save(str(path))


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

"""Write a bundle's folders for programs that run policies on robots: docs/howto/runtimes.md."""

import copy
import math
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import nn

from rsl_tbptt.deploy import METADATA, ONNX
from rsl_tbptt.files import write_json
from rsl_tbptt.models.one_step import STATES
from rsl_tbptt.tools.robot.c_code import C_CODE, Exported, write_c
from rsl_tbptt.tools.robot.runtime_configs import (
    JOINT_TERMS,
    Metadata,
    by_joint,
    function_of,
    history,
    joints_of,
    motors,
    moved_joints,
    observation_order,
    of_joints,
    rl_sar_config,
    scale_of,
    terms_of,
    unitree_config,
    unknown_parameters,
    write_config,
)
from rsl_tbptt.tools.robot.verify import torchscript

GYM_TERMS = {
    "base_ang_vel": 1,
    "projected_gravity": 0,
    "generated_commands": 3,
    "joint_pos_rel": 1,
    "joint_vel_rel": 1,
    "last_action": 0,
    "gait_phase": 0,
}
"""Functions of unitree_rl_gym's observations in order, with the number of their scales there."""
STATE_INPUTS, STATE_OUTPUTS = ([f"{name}_{end}" for name in STATES] for end in ("in", "out"))


def write_unitree_gym(folder: Path, exported: Exported) -> None:
    """Write TorchScript under the name that unitree_rl_gym's own export gives it.

    Raises:
        ValueError: If the program cannot give the policy what it saw in training.
    """
    metadata = exported.metadata
    terms = terms_of(metadata)
    given = [function_of(term) for term in terms]
    problems = [*_other_than_plain(metadata)]
    if terms and given not in ([*GYM_TERMS], [*GYM_TERMS][:-1]):
        problems.append(f"it gives {[*GYM_TERMS]}, the policy takes {given}")
    if with_history := [term["name"] for term in terms if history(term) > 1]:
        problems.append(f"it gives one step, {with_history} have a history")
    for term in terms:
        num_scales = GYM_TERMS.get(function_of(term), 0)
        scales = {*scale_of(term)} - ({1.0} if num_scales == 0 else set())
        if len(scales) > num_scales:
            problems.append(f"{term['name']} has the scales {scale_of(term)}")
    _refuse("unitree_gym", problems)
    path = folder / "policy_lstm_1.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(_torchscript(exported), path)


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


def write_rl_sar(folder: Path, exported: Exported) -> None:
    """Write TorchScript and config for rl_sar, in the folders that it looks for.

    Raises:
        ValueError: If the robot's name is no name of a folder.
    """
    metadata = exported.metadata
    robot = metadata["robot"].get("name", "ROBOT")
    if not re.fullmatch(r"\w[\w.-]*", str(robot), re.ASCII):
        raise ValueError(
            f"The robot's name is {robot!r}, expected one such as 'go2', of letters, digits, '_',"
            " '-' and '.': rl_sar's folder is named after it. describe_robot() of the environment"
            " returns it."
        )
    name = f"{robot}/rsl_tbptt"
    path = folder / "policy" / name / "config.yaml"
    write_config(path, metadata, rl_sar_config, gate="model_name", under=name)
    order, action_order = map(torch.from_numpy, (observation_order(metadata), motors(metadata)[1]))
    with torchscript():
        policy = InMotorOrder(torch.jit.load(str(_torchscript(exported))), order, action_order)
        torch.jit.script(policy).save(str(path.with_name("policy.pt")))


def write_unitree(folder: Path, exported: Exported) -> None:
    """Write ONNX, config, C code and the class that unitree_rl_lab and unitree_rl_mjlab call."""
    (folder / "exported").mkdir(parents=True, exist_ok=True)
    onnx.save(exported.model, folder / "exported" / ONNX)
    path = folder / "params" / "deploy.yaml"
    write_config(path, exported.metadata, unitree_config, gate="joint_ids_map")
    write_c(folder / C_CODE, exported, extra=("policy_unitree.h",))


def write_legged_control2(folder: Path, exported: Exported) -> None:
    """Write ONNX whose states are matrices, (1, L*H), and ``policy.json`` for it.

    Raises:
        ValueError: If the program cannot give the policy what it saw in training.
    """
    metadata = exported.metadata
    problems = [*_other_than_plain(metadata)]
    problems += [
        f"{term['name']} has the scales {scale_of(term)}"
        for term in terms_of(metadata)
        if {*scale_of(term)} != {1.0}
    ]
    _refuse("legged_control2", problems)
    model = _with_flat_states(exported.model)
    states = [name for name in metadata["outputs"] if name in STATE_OUTPUTS]
    flat = [[1, math.prod(shape)] for shape in metadata["state_shapes"]]
    for entry in model.metadata_props:
        entry.value = str(flat) if entry.key == "state_shapes" else entry.value
    if lengths := [str(history(term)) for term in terms_of(metadata)]:
        # The program reads mjlab's observation_terms_history_length by its older name.
        model.metadata_props.add(key="observation_history_lengths", value=",".join(lengths))
    folder.mkdir(exist_ok=True)
    onnx.save(model, folder / ONNX)
    width = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    shapes = {name: {"shape": shape} for name, shape in zip(states, flat, strict=True)}
    changed = {
        "inputs": {"obs": {"shape": [width], "dtype": "float32"}},
        "outputs": {**metadata["outputs"], **shapes},
        "state_shapes": flat,
    }
    write_json(folder / METADATA, {**metadata, **changed})


TARGETS: dict[str, Callable[[Path, Exported], None]] = {
    "c": write_c,
    "legged_control2": write_legged_control2,
    "rl_sar": write_rl_sar,
    "unitree": write_unitree,
    "unitree_gym": write_unitree_gym,
}
"""Functions that write a target's folder, by the name of both."""


def _other_than_plain(metadata: Metadata) -> Iterator[str]:
    """Yield what a program cannot do that knows each observation, and all joints in one order.

    What a checkpoint does not record is not doubted.
    """
    robot, terms = metadata["robot"], terms_of(metadata)
    for term in terms:
        if term["clip"] is not None or term.get("modifiers"):
            yield f"{term['name']} is clipped or modified before the policy sees it"
    if any(action["clip"] is not None for action in robot.get("actions", ())):
        yield "targets of joints are clipped"
    if not (joints := robot.get("joint_names", [])):
        return
    recorded = [term for term in terms if "parameters" in term]
    yield from unknown_parameters({**metadata, "observation_groups": {"": {"terms": recorded}}})
    for term in recorded:
        of_term = [*joints_of(term, robot)]
        if function_of(term) in JOINT_TERMS and of_term != joints:
            yield f"{term['name']} has the joints {of_term}, expected {joints}"
    if moved_joints(robot) != joints:
        yield f"actions move the joints {moved_joints(robot)}, expected {joints}"
    offsets = [*by_joint(robot, "offset").values()]
    if offsets and offsets != of_joints(robot, "default_joint_pos", joints):
        yield f"offsets of actions are {offsets}, expected the default positions"


def _refuse(target: str, problems: list[str]) -> None:
    """Refuse a target that cannot be right.

    Raises:
        ValueError: If there are problems.
    """
    if problems:
        raise ValueError(
            f"The policy does not fit the program of '{target}': {'; '.join(problems)}. Train"
            " without that, or leave out this target and write the program around policy.pt or"
            " policy.onnx of the bundle."
        )


def _torchscript(exported: Exported) -> Path:
    """Return the TorchScript file.

    Raises:
        ValueError: If there is none.
    """
    if not exported.torchscript.exists():
        raise ValueError(
            "The target needs TorchScript, which this release of torch no longer has: export with"
            " an earlier one."
        )
    return exported.torchscript


def _with_flat_states(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose states go in and come out as (1, L*H) instead of (L, 1, H)."""
    model = copy.deepcopy(model)
    graph = model.graph
    for value in (*graph.input, *graph.output):
        name, dims = value.name, value.type.tensor_type.shape.dim
        if name not in (*STATE_INPUTS, *STATE_OUTPUTS):
            continue
        inner, shape = f"{name}_by_layer", [dim.dim_value for dim in dims]
        flat = [1, math.prod(shape)]
        for node in graph.node:
            for names in (node.input, node.output):
                names[:] = [inner if each == name else each for each in names]
        goes_in = name in STATE_INPUTS
        target = np.array(shape if goes_in else flat, np.int64)
        graph.initializer.append(numpy_helper.from_array(target, f"{name}_shape"))
        before, after = (name, inner) if goes_in else (inner, name)
        reshape = helper.make_node("Reshape", [before, f"{name}_shape"], [after])
        graph.node.insert(0 if goes_in else len(graph.node), reshape)
        value.CopyFrom(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, flat))
    onnx.checker.check_model(model)
    return model

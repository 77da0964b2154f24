"""Write the files of a bundle: a policy for robots, and what a program needs to run it."""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import torch
from onnx_ir.passes.common import ClearMetadataAndDocStringPass
from onnxscript import optimizer
from torch import nn

from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.deploy import FORMAT, GOLDEN, METADATA, ONNX, groups_in
from rsl_tbptt.files import write_json
from rsl_tbptt.models.one_step import OneStep, StatefulPolicy
from rsl_tbptt.tools.machine import versions
from rsl_tbptt.tools.robot.c_code import of_actions
from rsl_tbptt.tools.robot.golden import Trajectory, seen_by_normalizer
from rsl_tbptt.tools.robot.runtime_configs import terms_of
from rsl_tbptt.tools.robot.targets import TARGETS, Exported
from rsl_tbptt.tools.robot.verify import TORCHSCRIPT, torchscript
from rsl_tbptt.tools.templates import fill

OPSET = 18
"""The operator set that rsl_rl exports with; the file states the oldest equal one."""
README = Path(__file__).with_name("readme.md.j2")
"""Template for people who run the policy, filled with the content of ``policy.json``."""
RESET = "Where an episode starts, or the robot stands up, pass zeros as all states."

Groups = Mapping[str, torch.Tensor]
"""One observation of each group that a policy sees, in the policy's order. Shape: (1, ...)."""


def onnx_model(step: OneStep) -> onnx.ModelProto:
    """Return a step as ONNX, with its constants folded, for runtimes as old as possible."""
    # It warns four times without torchvision, whose operators no policy has.
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        # Both come from torch's own exporter: flat views of the LSTM's weights, a pytree rename.
        warnings.filterwarnings("ignore", message="The tensor attributes? .*_flat_weights")
        warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
        program: Any = torch.onnx.export(
            step,
            step.get_dummy_inputs(),
            input_names=step.input_names,
            output_names=step.output_names,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    # torch's own pass does not fold large weights: every step would slice and join them.
    size = 2**31
    optimizer.optimize(program.model, input_size_limit=size, output_size_limit=size)
    ClearMetadataAndDocStringPass()(program.model)  # stack traces, with paths on this machine
    nodes = [node for node in program.model.graph.all_nodes() if not node.domain]
    # An operator is the same in all sets since the one that last changed it.
    opset = max(onnx.defs.get_schema(node.op_type, OPSET).since_version for node in nodes)
    program.model.opset_imports[""] = opset
    model = onnx_ir.to_proto(program.model)
    model.ir_version = onnx.helper.find_min_ir_version_for(model.opset_import)
    return model


def _versions_of(model: onnx.ModelProto) -> dict[str, int]:
    opsets = {each.domain: each.version for each in model.opset_import}
    return {"opset": opsets[""], "ir_version": model.ir_version}


def export_torchscript(policy: MLPModel, groups: Groups, path: Path) -> None:
    """Write a policy as TorchScript: one tensor in, one out, the state inside."""
    with torchscript():
        torch.jit.script(StatefulPolicy(policy, groups).eval()).save(str(path))


@dataclass(frozen=True)
class Recorded:
    """A policy and its golden trajectory."""

    policy: MLPModel
    trajectory: Trajectory
    source: str
    """Origin of the trajectory, as text for people."""
    knows_widths: bool = True
    """False if only the groups' total width is known. The widths in the trajectory are then
    arbitrary ones with that total, and ONNX takes a single ``obs``."""


def write_bundle(
    folder: Path,
    recorded: Recorded,
    heads: Mapping[str, nn.Module],
    robot: Mapping[str, Any],
    about: Mapping[str, Any],
    *,
    single_input: bool = False,
    targets: Sequence[str] = (),
) -> dict[str, Any]:
    """Write all files of a bundle.

    Args:
        folder: Folder to write into.
        recorded: The policy and its trajectory.
        heads: Auxiliary heads by the names of their outputs.
        robot: Properties of the robot, from the checkpoint.
        about: ``checkpoint`` and ``iteration``.
        single_input: Whether ONNX takes one ``obs`` of all groups joined.
        targets: Names in ``TARGETS`` of programs that get a folder as well.

    Returns:
        The content of ``policy.json``.
    """
    policy, trajectory, knows_widths = recorded.policy, recorded.trajectory, recorded.knows_widths
    groups = {name: torch.from_numpy(each[:1]) for name, each in groups_in(trajectory).items()}
    step = OneStep(policy, groups, heads, single_input=single_input or not knows_widths)
    golden = f"{len(trajectory['reset'])} steps, {recorded.source}"
    model = onnx_model(step)
    about = {**about, "trained_as": type(policy).__name__, "golden": golden}
    about["onnx"] = _versions_of(model)
    metadata = describe(step, groups if knows_widths else {}, robot, about)
    onnx.save(_with_metadata(model, metadata), folder / ONNX)
    if hasattr(torch.jit, "script"):
        export_torchscript(policy, groups, folder / TORCHSCRIPT)
    if targets:
        joined = onnx_model(OneStep(policy, groups, heads, single_input=True))
        joined = _with_metadata(joined, metadata)
        of_joined = {**metadata, "onnx": _versions_of(joined)}
        exported = Exported(joined, folder / TORCHSCRIPT, of_joined, trajectory)
        for name in dict.fromkeys(targets):
            TARGETS[name](folder / name, exported)
    if not knows_widths:
        joined = [each.reshape(len(each), -1) for each in groups_in(trajectory).values()]
        others = {name: each for name, each in trajectory.items() if not name.startswith("obs/")}
        trajectory = {"obs/obs": np.concatenate(joined, axis=1), **others}
    np.savez_compressed(folder / GOLDEN, allow_pickle=False, **trajectory)
    (folder / "README.md").write_text(fill(README, **metadata), encoding="utf-8")
    write_json(folder / METADATA, metadata)
    return metadata


def _with_metadata(model: onnx.ModelProto, metadata: Mapping[str, Any]) -> onnx.ModelProto:
    for name, value in onnx_metadata(metadata).items():
        model.metadata_props.add(key=name, value=value)
    return model


def describe(
    step: OneStep, groups: Groups, robot: Mapping[str, Any], about: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the content of ``policy.json``; see :func:`write_bundle` for the arguments."""
    state = {name.removesuffix("_in"): list(zeros.shape) for name, zeros in step.state.items()}
    inputs = {name: each for name, each in step.inputs.items() if name not in step.state}
    robot = _finite(robot)
    known = robot.get("observation_groups", {})
    robot = {name: value for name, value in robot.items() if name != "observation_groups"}
    step_dt = robot.get("step_dt")
    with torch.no_grad():
        outputs = dict(zip(step.output_names, step(*step.get_dummy_inputs()), strict=True))
    return {
        "format": FORMAT,
        **about,
        "inputs": {
            name: {"shape": [*each.shape[1:]], "dtype": str(each.dtype).removeprefix("torch.")}
            for name, each in inputs.items()
        },
        "observation_groups": {
            name: known.get(name, {"shape": [*each.shape[1:]]}) for name, each in groups.items()
        },
        "normalizer": _normalizer(step.policy, groups),
        "outputs": {
            name: {"shape": state.get(name.removesuffix("_out"), [*each.shape[1:]])}
            for name, each in outputs.items()
        },
        "state_names": [*state],
        "state_shapes": [*state.values()],
        "reset": RESET,
        "control_hz": None if step_dt is None else round(1 / step_dt, 6),
        "robot": robot,
        "versions": versions(),
    }


def _finite(value: Any) -> Any:
    """Replace infinite limits of clips by float32's largest numbers: JSON has no infinity."""
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    if isinstance(value, float) and math.isinf(value):
        return math.copysign(torch.finfo(torch.float32).max, value)
    return value


def _normalizer(policy: MLPModel, groups: Groups) -> dict[str, Any]:
    """Return the mean and the divisor of each normalised group, (D,) each."""
    normalizer: Any = policy.obs_normalizer
    if not groups:
        return {}
    return {
        name: {"mean": mean[0].tolist(), "divisor": (std[0] + normalizer.eps).tolist()}
        for name, (mean, std) in seen_by_normalizer(policy, groups).items()
    }


def onnx_metadata(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the metadata of the ONNX file, from what :func:`describe` returned.

    mjlab's readers split lists at commas, so lists are joined by commas, at full precision. Values
    that those readers have no form for are JSON.
    """
    robot = metadata["robot"]
    joints = ("joint_names", "joint_stiffness", "joint_damping", "default_joint_pos")
    found = {name: robot[name] for name in (*joints, "command_names") if name in robot}
    if terms := terms_of(metadata):
        found["observation_names"] = [term["name"] for term in terms]
        defaults = {"scale": 1.0, "clip": [-math.inf, math.inf]}
        for name in ("scale", "clip", "history_length", "flatten_history_dim"):
            values = [defaults.get(name) if t[name] is None else t[name] for t in terms]
            found[f"observation_terms_{name}"] = values
    if (scales := of_actions(robot, "scale")) is not None:
        found["action_scale"] = scales
    known = ("state_names", "reset", "control_hz")
    found |= {name: metadata[name] for name in known if metadata[name] is not None}
    texts = {name: _csv(value) for name, value in found.items()}
    for name in ("observation_groups", "state_shapes", "versions"):
        texts[name] = json.dumps(metadata[name])
    return {"run_path": metadata["checkpoint"], **texts}


def _csv(value: Any, separator: str = ",") -> str:
    if not isinstance(value, (list, tuple)):
        return str(value)
    return separator.join(_csv(each, ";") for each in value)

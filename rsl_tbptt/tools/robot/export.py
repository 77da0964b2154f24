"""Export a checkpoint's policy as a bundle for robots, compared with the trained policy.

A bundle is a folder. ``policy.onnx`` has the state as inputs and outputs. ``policy.json`` and
``README.md`` describe inputs and outputs. ``golden.npz`` is a trajectory to check any program that
runs the policy.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import torch
from onnx_ir.passes.common import ClearMetadataAndDocStringPass
from onnxscript import optimizer
from torch import nn

from rsl_tbptt.algorithms.curricula import COUNTER
from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.deploy import FORMAT, GOLDEN, METADATA, ONNX, groups_in
from rsl_tbptt.files import complete, output_path, write_json
from rsl_tbptt.installation import versions
from rsl_tbptt.models.one_step import OneStep
from rsl_tbptt.tools.robot import golden
from rsl_tbptt.tools.robot.unitree import of_actions, terms_of, write_unitree
from rsl_tbptt.tools.robot.verify import verify
from rsl_tbptt.tools.run import Run
from rsl_tbptt.tools.simulate.evaluate import started
from rsl_tbptt.tools.simulate.policies import build_policy, groups_of, saved_heads

MARK = b'"state_names"'
"""Bytes in the ``policy.json`` of every bundle."""
OPSET = 18
"""The operator set that rsl_rl exports with; the file states the oldest equal one."""
README = Path(__file__).with_name("bundle.md")
"""Template for people who run the policy, filled with the content of ``policy.json``."""
RESET = "Where an episode starts, or the robot stands up, pass zeros as all states."

Groups = Mapping[str, torch.Tensor]
"""One observation of each group that a policy sees, in the policy's order. Shape: (1, ...)."""


def export(
    run: Run,
    output: Path | None = None,
    *,
    single_input: bool = False,
    unitree: bool = False,
    steps: int = 200,
    tolerance: float = 1e-4,
    seed: int = 0,
    drawn: bool = False,
    **where: Any,
) -> dict[str, Any]:
    """Export a checkpoint's policy; write files only if they act like the trained policy.

    Args:
        run: The policy.
        output: New folder, or that of an earlier export, whose files are replaced. None means a new
            ``exported/model_<iteration>`` next to the checkpoint.
        single_input: Let ONNX take one ``obs`` of all groups joined.
        unitree: Write a folder for Unitree's programs as well.
        steps: Length of the golden trajectory, at least 2.
        tolerance: Largest difference of an action, or of a head's prediction, that passes.
        seed: Seed of the trajectory.
        drawn: Draw its observations instead of simulating the policy's task, from the shapes that
            the checkpoint records. They are also drawn if the platform is not installed, and for
            rsl_rl alone without ``task``.
        where: ``task``, ``overrides`` and ``device`` of the simulation; see
            :func:`rsl_tbptt.tools.simulate.evaluate.started`.

    Returns:
        The content of ``policy.json``, and ``output``: the folder, or None if a difference is too
        large.

    Raises:
        ValueError: If the policy does not fit its config, its task is unknown to its platform, an
            option is wrong, nothing can be written to ``output``, or it has a policy of an earlier
            export that would not be written again.
    """
    if steps < 2:
        raise ValueError(f"steps is {steps}, expected at least 2: one step shows no memory.")
    heads = saved_heads(run.auxiliary)
    output = _folder(run, output, unitree)
    policy, trajectory, about = _recorded(run, heads, steps, seed, drawn, where)
    robot = {"clip_actions": run.clip_actions, **run.robot}
    forms = {"single_input": single_input, "unitree": unitree}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bundle = write_bundle(folder, policy, trajectory, heads, robot, about, **forms)
        bundle["max_difference"] = differences = verify(folder)
        passed = all(value <= tolerance for value in differences.values())  # false for NaN
        if passed:
            write_json(folder / METADATA, bundle)
            publish(folder, output)
    return {**bundle, "output": output if passed else None}


def _folder(run: Run, output: Path | None, unitree: bool) -> Path:
    """Return the folder to write.

    Raises:
        ValueError: If it cannot be written or would keep a policy of an earlier export.
    """
    # Not in exported/ itself: Isaac Lab's play writes there and would replace the compared files.
    name = run.checkpoint.stem.replace(".", "_")  # output_path takes a name with a dot for a file
    output = output_path(output, run.checkpoint.parent / "exported" / name, MARK, METADATA)
    policies = {path.name for path in output.glob("*") if path.is_dir() or path.name == "policy.pt"}
    if kept := sorted(policies - ({"unitree"} if unitree else set())):
        raise ValueError(
            f"{output} has {kept} of an earlier export, expected only what this one writes: they"
            " would keep the earlier policy. Delete them, or name another --output."
        )
    return output


def _can_simulate(run: Run, task: str | None) -> bool:
    """Return whether there is a platform to simulate on; it says itself if it lacks the task."""
    if run.platform.TASKS is None:  # rsl_rl alone
        return bool(task)
    return importlib.util.find_spec(run.platform.PACKAGES[0]) is not None


def _recorded(
    run: Run,
    heads: Mapping[str, nn.Module],
    steps: int,
    seed: int,
    drawn: bool,
    where: Mapping[str, Any],
) -> tuple[MLPModel, golden.Trajectory, dict[str, Any]]:
    """Return a policy with its golden trajectory, and what ``policy.json`` says about them.

    Raises:
        ValueError: If nothing simulates, and the checkpoint does not record observations' shapes.
    """
    simulation = None
    if drawn or not _can_simulate(run, where.get("task")):
        if missing := [name for name in run.groups if name not in run.shapes]:
            raise ValueError(
                f"{run.checkpoint} does not record the shapes of {missing}, expected an environment"
                " that shows them: name its task with --task, or with --env for rsl_rl alone."
            )
        policy = build_policy(run)
        groups = {
            name: torch.zeros(1, *run.shapes[name], dtype=run.dtypes.get(name, torch.float32))
            for name in groups_of(policy)
        }
        trajectory = golden.draw(policy, heads, groups, steps, seed)
        source = "drawn, with mean and deviation of the policy's normaliser if it has one"
    else:
        try:
            with started(run, num_envs=1, seed=seed, **where) as start:
                policy, trajectory = start.policy, golden.record(start, heads, steps, seed)
        except (AssertionError, IndexError, RuntimeError, ValueError) as error:
            raise ValueError(
                f"No golden trajectory can be recorded in one environment: {error} If a task needs"
                " more environments, draw the trajectory with --drawn."
            ) from error
        source = f"one robot of {start.task}, noise included, seed {seed}"
        if run.platform.TASKS is not None:  # those of rsl_rl alone name code
            simulation = {"platform": run.platform.name, "task": start.task}
    about = {"checkpoint": run.checkpoint.name, "iteration": run.iteration}
    about[COUNTER] = run.counted_steps
    about |= {"golden": f"{steps} steps, {source}", "simulation": simulation}
    return policy, trajectory, about


def publish(folder: Path, output: Path) -> None:
    """Copy the files of one folder into another, each atomically, ``policy.json`` last."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    for file in sorted(files, key=lambda file: file.name == METADATA):
        with complete(output / file.relative_to(folder)) as unfinished:
            shutil.copyfile(file, unfinished)


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
    for node in nodes:  # GRUs that are forward need not say so, and emx-onnx-cgen 1.4 refuses it
        if node.op_type == "GRU" and node.attributes["direction"].value == "forward":
            node.attributes.pop("direction")
    # An operator is the same in all sets since the one that last changed it.
    opset = max(onnx.defs.get_schema(node.op_type, OPSET).since_version for node in nodes)
    program.model.opset_imports[""] = opset
    model = onnx_ir.to_proto(program.model)
    model.ir_version = onnx.helper.find_min_ir_version_for(model.opset_import)
    return model


def write_bundle(
    folder: Path,
    policy: MLPModel,
    trajectory: golden.Trajectory,
    heads: Mapping[str, nn.Module],
    robot: Mapping[str, Any],
    about: Mapping[str, Any],
    *,
    single_input: bool = False,
    unitree: bool = False,
) -> dict[str, Any]:
    """Write all files of a bundle.

    Args:
        folder: Folder to write into.
        policy: The policy.
        trajectory: Its golden trajectory.
        heads: Auxiliary heads by the names of their outputs.
        robot: Properties of the robot, from the checkpoint.
        about: ``checkpoint``, ``iteration``, ``golden``, the origin of the trajectory in words, and
            ``simulation``, its platform and registered task or None.
        single_input: Whether ONNX takes one ``obs`` of all groups joined.
        unitree: Whether Unitree's programs get a folder as well.

    Returns:
        The content of ``policy.json``.
    """
    groups = {name: torch.from_numpy(steps[:1]) for name, steps in groups_in(trajectory).items()}
    step = OneStep(policy, groups, heads)
    about = {**about, "trained_as": type(policy).__name__}

    def written(step: OneStep) -> tuple[onnx.ModelProto, dict[str, Any]]:
        model = onnx_model(step)
        versions = {"opset": model.opset_import[0].version, "ir_version": model.ir_version}
        metadata = describe(step, groups, robot, {**about, "onnx": versions})
        onnx.helper.set_model_props(model, onnx_metadata(metadata))
        return model, metadata

    model, metadata = written(step.joined() if single_input else step)
    onnx.save(model, folder / ONNX)
    if unitree:
        write_unitree(folder / "unitree", *written(step.joined()))
    np.savez_compressed(folder / GOLDEN, allow_pickle=False, **trajectory)
    text = README.read_text(encoding="utf-8").format(**metadata)
    (folder / "README.md").write_text(text, encoding="utf-8")
    write_json(folder / METADATA, metadata)
    return metadata


def describe(
    step: OneStep, groups: Groups, robot: Mapping[str, Any], about: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the content of ``policy.json``; see :func:`write_bundle` for the arguments."""
    state = {name.removesuffix("_in"): list(zeros.shape) for name, zeros in step.state.items()}
    inputs = {name: value for name, value in step.inputs.items() if name not in step.state}
    robot = _finite(robot)
    described = robot.get("observation_groups", {})
    robot = {name: value for name, value in robot.items() if name != "observation_groups"}
    step_dt, normalizer = robot.get("step_dt"), step.policy.obs_normalizer
    with torch.no_grad():
        outputs = dict(zip(step.output_names, step(*step.get_dummy_inputs()), strict=True))
    return {
        "format": FORMAT,
        **about,
        "inputs": {
            name: {"shape": [*value.shape[1:]], "dtype": str(value.dtype).removeprefix("torch.")}
            for name, value in inputs.items()
        },
        "observation_groups": {
            name: described.get(name, {"shape": [*rows.shape[1:]]}) for name, rows in groups.items()
        },
        "normalizer": {
            name: {"mean": mean[0].tolist(), "divisor": (std[0] + normalizer.eps).tolist()}
            for name, (mean, std) in golden.seen_by_normalizer(step.policy, groups).items()
        },
        "outputs": {
            name: {"shape": state.get(name.removesuffix("_out"), [*value.shape[1:]])}
            for name, value in outputs.items()
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
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return math.copysign(torch.finfo(torch.float32).max, value)
    return value


def onnx_metadata(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the metadata of the ONNX file, from what :func:`describe` returned.

    mjlab's readers split lists at commas, so lists are joined by commas, at full precision. Values
    that those readers have no form for are JSON.
    """
    robot = metadata["robot"]
    joints = ("joint_names", "joint_stiffness", "joint_damping", "default_joint_pos")
    properties = {name: robot[name] for name in (*joints, "command_names") if name in robot}
    if terms := terms_of(metadata):
        properties["observation_names"] = [term["name"] for term in terms]
        defaults = {"scale": 1.0, "clip": [-math.inf, math.inf]}
        for name in ("scale", "clip", "history_length", "flatten_history_dim"):
            values = [defaults.get(name) if t[name] is None else t[name] for t in terms]
            properties[f"observation_terms_{name}"] = values
    if (scales := of_actions(robot, "scale")) is not None:
        properties["action_scale"] = scales
    keys = ("state_names", "reset", "control_hz")
    properties |= {name: metadata[name] for name in keys if metadata[name] is not None}
    texts = {name: _csv(value) for name, value in properties.items()}
    for name in ("observation_groups", "state_shapes", "versions"):
        texts[name] = json.dumps(metadata[name])
    return {"run_path": metadata["checkpoint"], **texts}


def _csv(value: Any, separator: str = ",") -> str:
    if not isinstance(value, (list, tuple)):
        return str(value)
    return separator.join(_csv(item, ";") for item in value)

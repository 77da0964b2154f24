"""Write a bundle's folders for programs that run policies on robots: docs/howto/runtimes.md."""

from __future__ import annotations

import copy
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from rsl_tbptt.deploy import METADATA, ONNX
from rsl_tbptt.files import write_json
from rsl_tbptt.models.one_step import STATES
from rsl_tbptt.tools.c_code import C_CODE, write_c
from rsl_tbptt.tools.runtime_configs import (
    history,
    rl_sar_config,
    terms_of,
    unitree_config,
    write_config,
)

STATE_INPUTS, STATE_OUTPUTS = ([f"{name}_{end}" for name in STATES] for end in ("in", "out"))


@dataclass(frozen=True)
class Exported:
    """An exported policy, from which targets are written."""

    model: onnx.ModelProto
    """One step with a single input ``obs``, and with the bundle's metadata."""
    torchscript: Path
    """The bundle's TorchScript file, which newer releases of torch may not write."""
    metadata: Mapping[str, Any]
    """Content of ``policy.json``."""
    trajectory: Mapping[str, np.ndarray]
    """The golden trajectory."""


def write_c_code(folder: Path, exported: Exported) -> None:
    """Write the policy in C."""
    write_c(folder, exported.model, exported.metadata, exported.trajectory)


def write_unitree_gym(folder: Path, exported: Exported) -> None:
    """Write TorchScript under the name that unitree_rl_gym's own export gives it."""
    _copy_torchscript(exported, folder / "policy_lstm_1.pt")


def write_rl_sar(folder: Path, exported: Exported) -> None:
    """Write TorchScript and config for rl_sar, in the folders that it looks for."""
    name = f"{exported.metadata['robot'].get('name', 'ROBOT')}/rsl_tbptt"
    _copy_torchscript(exported, folder / "policy" / name / "policy.pt")
    path = folder / "policy" / name / "config.yaml"
    write_config(path, exported.metadata, rl_sar_config, gate="model_name", under=name)


def write_unitree(folder: Path, exported: Exported) -> None:
    """Write ONNX, config, C code and the class that unitree_rl_lab and unitree_rl_mjlab call."""
    (folder / "exported").mkdir(parents=True, exist_ok=True)
    onnx.save(exported.model, folder / "exported" / ONNX)
    path = folder / "params" / "deploy.yaml"
    write_config(path, exported.metadata, unitree_config, gate="joint_ids_map")
    extra = ("policy_unitree.h",)
    write_c(folder / C_CODE, exported.model, exported.metadata, exported.trajectory, extra)


def write_legged_control2(folder: Path, exported: Exported) -> None:
    """Write ONNX whose states are matrices, (1, L*H), and ``policy.json`` for it."""
    model, metadata = _with_flat_states(exported.model), exported.metadata
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
    "c": write_c_code,
    "legged_control2": write_legged_control2,
    "rl_sar": write_rl_sar,
    "unitree": write_unitree,
    "unitree_gym": write_unitree_gym,
}
"""Functions that write a target's folder, by the name of both."""


def _copy_torchscript(exported: Exported, path: Path) -> None:
    """Copy the TorchScript file.

    Raises:
        ValueError: If there is none.
    """
    if not exported.torchscript.exists():
        raise ValueError(
            "The target needs TorchScript, which this release of torch no longer has: export with"
            " an earlier one."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(exported.torchscript, path)


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

"""Runs a policy exported by ``rsl-tbptt export`` with onnxruntime: no torch, no simulator.

::

    policy = Policy("exported/model_1000")
    policy.reset()  # when an episode starts, or the robot stands up
    actions = policy.step({"policy": observations})

This file alone also runs on Python 3.8, which many robots have.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

ONNX, METADATA, GOLDEN = "policy.onnx", "policy.json", "golden.npz"
"""Files of a bundle."""
FORMAT = 1
"""Version of ``policy.json``, raised when a reader of the previous version would misread it."""


class Policy:
    """One robot's policy with its state.

    ``metadata`` has the content of ``policy.json``: inputs, their terms, joints, gains, frequency.
    """

    def __init__(self, folder: str | Path, threads: int = 1) -> None:
        """Load a bundle.

        Args:
            folder: The folder that ``rsl-tbptt export`` wrote.
            threads: Threads of onnxruntime; networks of this size do not profit from a second one.

        Raises:
            ValueError: If the folder is not a bundle, or its files are of different policies.
        """
        folder = Path(folder)
        self.metadata = read_metadata(folder)
        try:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = threads
            providers = ["CPUExecutionProvider"]
            path = str(folder / ONNX)
            self._session = onnxruntime.InferenceSession(path, options, providers=providers)
        except Exception as error:  # onnxruntime raises exception types of its own
            raise ValueError(_no_bundle(folder, error)) from error
        _check_is_of(self.metadata, self._session, folder)
        self._inputs = {
            name: np.zeros(form["shape"], form["dtype"])
            for name, form in self.metadata["inputs"].items()
        }
        names, shapes = self.metadata["state_names"], self.metadata["state_shapes"]
        self._zeros = {
            f"{name}_in": np.zeros(shape, np.float32) for name, shape in zip(names, shapes)
        }
        self.outputs: dict[str, np.ndarray] = {}
        """All outputs of the last step by name, with auxiliary heads, as batches of one."""
        self.reset()

    def reset(self) -> None:
        """Clear the state at the start of an episode."""
        self.state = dict(self._zeros)

    def step(self, observations: Mapping[str, Any] | np.ndarray) -> np.ndarray:
        """Return the actions for the observations of one control step.

        Args:
            observations: Observation groups by name, or an array if there is only one input. The
                metadata has their shapes and the order of each group's terms, scaled and clipped as
                in training.

        Returns:
            The actions. Shape: (A,).

        Raises:
            ValueError: If a name or shape differs from the metadata.
        """
        if not isinstance(observations, Mapping):
            observations = dict.fromkeys(self._inputs, observations)
        groups = self.metadata["observation_groups"]
        is_joined = [value.ndim for value in self._inputs.values()] == [1] and "obs" in self._inputs
        if is_joined and observations.keys() == groups.keys():
            observations = {"obs": join([observations[name] for name in groups])}
        shapes = {name: np.shape(value) for name, value in observations.items()}
        expected = {name: like.shape for name, like in self._inputs.items()}
        if shapes != expected:
            raise ValueError(
                f"observations are {shapes}, expected {expected} as in {METADATA}, which lists the"
                " terms of each in order."
            )
        feeds = {
            name: np.asarray(observations[name], like.dtype)[np.newaxis]
            for name, like in self._inputs.items()
        }
        values = self._session.run(None, {**feeds, **self.state})
        self.outputs = dict(zip(self.metadata["outputs"], map(np.asarray, values)))
        self.state = {name: self.outputs[name.replace("_in", "_out")] for name in self._zeros}
        return self.outputs["actions"][0]


def read_metadata(folder: Path) -> dict[str, Any]:
    """Read ``policy.json`` of a bundle.

    Raises:
        ValueError: If it cannot be read, has another version, or an entry has another form.
    """
    path = folder / METADATA
    try:
        metadata: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(_no_bundle(folder, error)) from error
    form = metadata.get("format") if isinstance(metadata, dict) else None
    if form != FORMAT:
        writer = metadata.get("versions") if isinstance(metadata, dict) else None
        version = writer.get("rsl-tbptt") if isinstance(writer, dict) else None
        raise ValueError(
            f"format is {form!r} in '{path}', expected {FORMAT}: read it with rsl-tbptt"
            f" {version or 'of the version that wrote it'}, or export the policy again."
        )
    for name, rule in _ENTRIES.items():
        if not rule(metadata.get(name)):
            raise ValueError(
                f"{name} is {metadata.get(name)!r} in '{path}', expected it as `rsl-tbptt export`"
                " writes it: export the policy again."
            )
    return metadata


def _no_bundle(folder: Path, error: Exception) -> str:
    return (
        f"The bundle is '{folder}', expected a folder of `rsl-tbptt export` with {ONNX} and"
        f" {METADATA}: {error}"
    )


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


def _is_bound(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and value > 0)


def _are_arrays(value: Any) -> bool:
    """Return whether a value describes arrays by name."""
    return isinstance(value, dict) and all(
        isinstance(form, dict) and _is_shape(form.get("shape")) for form in value.values()
    )


_ENTRIES: dict[str, Callable[[Any], bool]] = {
    # A bundle may come from anybody: no other folder's file.
    "checkpoint": lambda value: isinstance(value, str) and Path(value).name == value,
    "inputs": lambda value: (
        _are_arrays(value) and all(form.get("dtype") in _DTYPES for form in value.values())
    ),
    "observation_groups": _are_arrays,
    "outputs": lambda value: _are_arrays(value) and "actions" in value,
    "state_names": lambda value: isinstance(value, list) and all(isinstance(n, str) for n in value),
    "state_shapes": lambda value: isinstance(value, list) and all(map(_is_shape, value)),
    "control_hz": lambda value: value is None or isinstance(value, (int, float)),
    "normalizer": lambda value: isinstance(value, dict),
    "robot": lambda value: isinstance(value, dict) and _is_bound(value.get("clip_actions")),
}
"""Whether an entry has its form, by its name."""
_DTYPES = {n: n for n in ("float16", "uint8", "int8", "int16", "int32", "int64", "bool")}
_DTYPES.update(float32="float", float64="double")
"""ONNX's names of types by numpy's."""


def _check_is_of(metadata: Mapping[str, Any], session: Any, folder: Path) -> None:
    """Check that a model has the inputs and outputs that its metadata describes.

    Raises:
        ValueError: If it has others.
    """
    expected = {
        name: ([1, *form["shape"]], f"tensor({_DTYPES[form['dtype']]})")
        for name, form in metadata["inputs"].items()
    }
    for name, shape in zip(metadata["state_names"], metadata["state_shapes"]):
        expected[f"{name}_in"] = (shape, "tensor(float)")
    inputs = {node.name: (node.shape, node.type) for node in session.get_inputs()}
    outputs = {node.name: node.shape for node in session.get_outputs()}
    actions = [1, *metadata["outputs"]["actions"]["shape"]]
    differ = inputs != expected or outputs.get("actions") != actions
    if differ or [*outputs] != [*metadata["outputs"]]:
        raise ValueError(
            f"'{folder / ONNX}' has the inputs {inputs} and the outputs {outputs}, expected"
            f" {expected} and {[*metadata['outputs']]} as in {METADATA}: it is another policy's."
            " Export the policy again."
        )


def join(groups: Sequence[Any]) -> np.ndarray:
    """Join observation groups, (...) each, into one flat input, (D,)."""
    return np.concatenate([np.ravel(group).astype(np.float32) for group in groups])


def groups_in(golden: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the observation groups of a golden trajectory in order, shape (T, ...) each."""
    prefix = "obs/"
    return {k[len(prefix) :]: v for k, v in golden.items() if k.startswith(prefix)}

"""A trained policy as ``rsl-tbptt export`` wrote it, run by onnxruntime: no torch, no simulator.

::

    policy = Policy("exported/model_1000")
    policy.reset()  # where an episode starts, or the robot stands up
    actions = policy.step({"policy": observations})
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

ONNX, METADATA, GOLDEN = "policy.onnx", "policy.json", "golden.npz"
"""Files of a bundle."""


class Policy:
    """One robot's policy with its memory.

    Its ``metadata`` is what ``policy.json`` says: inputs, their terms, joints, gains, frequency.
    """

    def __init__(self, folder: str | Path, threads: int = 1) -> None:
        """Load a bundle.

        Args:
            folder: The folder that ``rsl-tbptt export`` wrote.
            threads: Of onnxruntime; networks of this size leave nothing to a second one.

        Raises:
            ValueError: If the folder is no bundle.
        """
        folder = Path(folder)
        try:
            text = (folder / METADATA).read_text(encoding="utf-8")
            self.metadata: dict[str, Any] = json.loads(text)
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = threads
            providers = ["CPUExecutionProvider"]
            path = str(folder / ONNX)
            self._session = onnxruntime.InferenceSession(path, options, providers=providers)
        except Exception as error:  # onnxruntime has kinds of its own
            raise ValueError(
                f"The bundle is '{folder}', expected a folder of `rsl-tbptt export` with {ONNX} and"
                f" {METADATA}: {error}"
            ) from error
        self._inputs = {
            name: np.zeros(each["shape"], each["dtype"])
            for name, each in self.metadata["inputs"].items()
        }
        names, shapes = self.metadata["state_names"], self.metadata["state_shapes"]
        self._zeros = {
            f"{name}_in": np.zeros(shape, np.float32)
            for name, shape in zip(names, shapes, strict=True)
        }
        self._joins = [*self._inputs] == ["obs"]
        self._checked = False
        self.outputs: dict[str, np.ndarray] = {}
        """All outputs of the last step by name, auxiliary heads included, with a batch of one."""
        self.reset()

    def reset(self) -> None:
        """Clear the memory: an episode begins."""
        self.state = dict(self._zeros)

    def step(self, observations: Mapping[str, Any] | np.ndarray) -> np.ndarray:
        """Return the actions for the observations of one control step.

        Args:
            observations: Observation groups by name, or one array where there is one input. Their
                shapes stand in the metadata, and the terms of each in their order: scaled and
                clipped as in training.

        Returns:
            The actions. Shape: (A,).

        Raises:
            ValueError: At the first step if a name or shape is another.
        """
        if not isinstance(observations, Mapping):
            observations = dict.fromkeys(self._inputs, observations)
        elif self._joins and observations.keys() == self.metadata["observation_groups"].keys():
            groups = [observations[name] for name in self.metadata["observation_groups"]]
            observations = {"obs": join(groups)}
        if not self._checked:
            self._check(observations)
        feeds = {
            name: np.asarray(observations[name], like.dtype)[np.newaxis]
            for name, like in self._inputs.items()
        }
        values = self._session.run(None, {**feeds, **self.state})
        self.outputs = dict(zip(self.metadata["outputs"], map(np.asarray, values), strict=True))
        self.state = {name: self.outputs[name.replace("_in", "_out")] for name in self._zeros}
        return self.outputs["actions"][0]

    def _check(self, observations: Mapping[str, Any]) -> None:
        """Compare names and shapes with the metadata.

        Raises:
            ValueError: If one is another.
        """
        given = {name: np.shape(value) for name, value in observations.items()}
        expected = {name: like.shape for name, like in self._inputs.items()}
        if given != expected:
            raise ValueError(
                f"observations are {given}, expected {expected} as in {METADATA}, where the terms"
                " of each stand in their order."
            )
        self._checked = True


def join(groups: Sequence[Any]) -> np.ndarray:
    """Return observation groups, (...) each, as one input takes them: flat, (D,)."""
    return np.concatenate([np.ravel(group).astype(np.float32) for group in groups])


def groups_in(golden: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the observation groups of a golden trajectory in their order, shape (T, ...) each."""
    prefix = "obs/"
    return {k.removeprefix(prefix): v for k, v in golden.items() if k.startswith(prefix)}

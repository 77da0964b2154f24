"""Runs a policy exported by ``rsl-tbptt export`` with onnxruntime: no torch, no simulator.

::

    policy = Policy("exported/model_1000")
    policy.reset()  # when an episode starts, or the robot stands up
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
    """One robot's policy with its state.

    ``metadata`` has the content of ``policy.json``: inputs, their terms, joints, gains, frequency.
    """

    def __init__(self, folder: str | Path, threads: int = 1) -> None:
        """Load a bundle.

        Args:
            folder: The folder that ``rsl-tbptt export`` wrote.
            threads: Threads of onnxruntime; networks of this size do not profit from a second one.

        Raises:
            ValueError: If the folder is not a bundle.
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
        except Exception as error:  # onnxruntime raises exception types of its own
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
        # A policy's own group may be called "obs", too.
        own = self.metadata["observation_groups"].get("obs", {}).get("shape")
        self._joins = [*self._inputs] == ["obs"] and own != self.metadata["inputs"]["obs"]["shape"]
        self._checked = False
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
            ValueError: At the first step, if a name or shape differs from the metadata.
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
            ValueError: If one differs.
        """
        given = {name: np.shape(value) for name, value in observations.items()}
        expected = {name: like.shape for name, like in self._inputs.items()}
        if given != expected:
            raise ValueError(
                f"observations are {given}, expected {expected} as in {METADATA}, which lists the"
                " terms of each in order."
            )
        self._checked = True


def join(groups: Sequence[Any]) -> np.ndarray:
    """Join observation groups, (...) each, into one flat input, (D,)."""
    return np.concatenate([np.ravel(group).astype(np.float32) for group in groups])


def groups_in(golden: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the observation groups of a golden trajectory in order, shape (T, ...) each."""
    prefix = "obs/"
    return {k.removeprefix(prefix): v for k, v in golden.items() if k.startswith(prefix)}

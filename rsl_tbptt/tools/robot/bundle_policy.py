"""Runs an exported policy in many environments, in place of the trained one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from rsl_tbptt.deploy import METADATA, Policy, join
from rsl_tbptt.tools.robot.c_code import CPolicy


class BundlePolicy:
    """A bundle's policy, stepped as on a robot, with one state per environment."""

    def __init__(self, bundle: Path, form: str, groups: Sequence[str]) -> None:
        """Load a bundle.

        Args:
            bundle: The folder.
            form: "onnx" or "c".
            groups: Names of the policy's observation groups in its order. They are needed if the
                bundle does not know them, since its checkpoint did not show their widths.

        Raises:
            ValueError: If the folder is not a bundle, or lacks that form.
        """
        self._policy: Any = CPolicy(bundle) if form == "c" else Policy(bundle)
        self._begin = self._policy.state
        known = self._policy.metadata["observation_groups"]
        self._groups, self._joins = [*(known or groups)], not known
        self._states = []

    def __call__(self, obs: TensorDict) -> torch.Tensor:
        """Return the actions, (N, A), for observations, batch size (N,)."""
        groups = {name: obs[name].cpu().numpy() for name in self._groups}
        self._states = self._states or [self._begin] * len(obs)
        actions = []
        for env, state in enumerate(self._states):
            self._policy.state = state
            seen = {name: values[env] for name, values in groups.items()}
            seen = {"obs": join([*seen.values()])} if self._joins else seen
            actions.append(self._policy.step(seen))
            self._states[env] = self._policy.state
        return torch.from_numpy(np.stack(actions)).to(next(iter(obs.values())).device)

    def reset(self, dones: torch.Tensor | None = None) -> None:
        """Clear the memory where an episode ended, or everywhere."""
        for env in range(len(self._states)):
            if dones is None or dones[env]:
                self._states[env] = self._begin


def checkpoint_of(bundle: Path) -> Path:
    """Return the checkpoint of a bundle that lies in ``exported/`` next to it.

    Raises:
        ValueError: If the checkpoint is not there, or the folder is not a bundle.
    """
    name = Policy(bundle).metadata["checkpoint"]
    if Path(name).name != name:  # a bundle may come from anybody
        raise ValueError(
            f"checkpoint is {name!r} in '{bundle / METADATA}', expected a file's name without a"
            " folder: name the checkpoint with --checkpoint."
        )
    checkpoint = bundle.resolve().parent.parent / name
    if not checkpoint.is_file():
        raise ValueError(
            f"The checkpoint of '{bundle}' is not at '{checkpoint}': name it with --checkpoint."
        )
    return checkpoint

"""Let a bundle act in many environments: in place of its checkpoint, or where that is missing."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tensordict import TensorDict

from rsl_tbptt.algorithms.curricula import COUNTER
from rsl_tbptt.deploy import METADATA, Policy, join, read_metadata
from rsl_tbptt.tools.platforms import PLATFORMS, load_platform
from rsl_tbptt.tools.simulate.evaluate import Start
from rsl_tbptt.tools.simulate.policies import groups_of

MOST_APART = 1e-3
"""Largest difference of a bundle's actions from its checkpoint's; an export passes with 1e-4."""


class BundlePolicy:
    """A bundle's policy, stepped as on a robot, with one state per environment."""

    def __init__(self, bundle: Path, groups: Sequence[str] = ()) -> None:
        """Load a bundle.

        Args:
            bundle: The folder.
            groups: Names of the policy's observation groups in its order. They are needed if the
                bundle does not know them, since its checkpoint did not show their widths.

        Raises:
            ValueError: If the folder is not a bundle.
        """
        self._policy = Policy(bundle)
        self._begin = self._policy.state
        groups_of_policy = self._policy.metadata["observation_groups"]
        self.groups, self._joins = [*(groups_of_policy or groups)], not groups_of_policy
        self._states = []

    def __call__(self, obs: TensorDict) -> torch.Tensor:
        """Return the actions, (N, A), for observations, batch size (N,)."""
        groups = {name: obs[name].cpu().numpy() for name in self.groups}
        self._states = self._states or [self._begin] * len(obs)
        actions = []
        for env, state in enumerate(self._states):
            self._policy.state = state
            observed = {name: values[env] for name, values in groups.items()}
            observed = {"obs": join([*observed.values()])} if self._joins else observed
            actions.append(self._policy.step(observed))
            self._states[env] = self._policy.state
        return torch.from_numpy(np.stack(actions)).to(next(iter(obs.values())).device)

    def reset(self, dones: torch.Tensor | None = None) -> None:
        """Clear the memory where an episode ended, or everywhere."""
        for env in range(len(self._states)):
            if dones is None or dones[env]:
                self._states[env] = self._begin


class LoneBundle(BundlePolicy):
    """A bundle without its checkpoint, which tells itself where it is simulated.

    A bundle may come from anybody: it names a known platform, a registered task, and numbers.
    """

    def __init__(self, bundle: Path, platform: str | None = None) -> None:
        """Load a bundle.

        Args:
            bundle: The folder.
            platform: One of :data:`PLATFORMS`. None takes the bundle's.

        Raises:
            ValueError: If the folder is not a bundle, or tells too little.
        """
        super().__init__(bundle)
        metadata, self._file = self._policy.metadata, bundle.resolve() / METADATA
        self.checkpoint = self._file.with_name(metadata["checkpoint"])
        self.shapes = {n: group["shape"] for n, group in metadata["observation_groups"].items()}
        if not self.shapes:
            raise ValueError(
                f"observation_groups is {{}} in '{self._file}', expected the groups that the policy"
                " sees: name the checkpoint with --checkpoint."
            )
        self.clip_actions = metadata["robot"].get("clip_actions")
        steps = metadata.get(COUNTER)
        self.counted_steps = steps if isinstance(steps, int) else None
        self.platform = load_platform(platform or self._told("platform"))

    def trained_task(self) -> str:
        """Return the registered id of its task.

        Raises:
            ValueError: If the bundle does not tell.
        """
        return self._told("task")

    def _told(self, name: str) -> str:
        """Return the platform or the task.

        Raises:
            ValueError: If the bundle does not tell.
        """
        # Any other platform's task is the name of code.
        platforms = [name for name in PLATFORMS if load_platform(name).TASKS is not None]
        noted = self._policy.metadata.get("simulation")
        entry = noted if isinstance(noted, dict) else {}
        # Isaac Lab would import the module in front of a colon.
        is_id = isinstance(entry.get("task"), str) and ":" not in entry["task"]
        if not is_id or entry.get("platform") not in platforms:
            raise ValueError(
                f"simulation is {noted!r} in '{self._file}', expected a platform of {platforms} and"
                " the id of a registered task: name the checkpoint with --checkpoint, or --platform"
                " and --task (for rsl_rl alone --env), or export the policy again."
            )
        return entry[name]


def exported_policy(bundle: Path, start: Start) -> BundlePolicy:
    """Load a bundle to act in place of its checkpoint, under whose name the result is written.

    Args:
        bundle: The folder.
        start: The checkpoint's policy, and its environments.

    Raises:
        ValueError: If the folder is not a bundle, or acts differently on the first observations.
    """
    policy = BundlePolicy(bundle, groups_of(start.policy))
    with torch.inference_mode():
        actions, expected = policy(start.obs), start.policy(start.obs)
    start.policy.reset()
    if not torch.allclose(actions, expected, rtol=MOST_APART, atol=MOST_APART, equal_nan=True):
        raise ValueError(
            f"The policy in '{bundle}' is not the checkpoint's, expected its export: their first"
            f" actions are {(actions - expected).abs().max().item():.2g} apart. Name the checkpoint"
            " that it was exported from with --checkpoint."
        )
    return policy


def checkpoint_of(bundle: Path) -> Path | None:
    """Return the checkpoint of a bundle that lies in ``exported/`` next to it; None without one.

    Raises:
        ValueError: If the folder is not a bundle.
    """
    checkpoint = bundle.resolve().parent.parent / read_metadata(bundle)["checkpoint"]
    return checkpoint if checkpoint.is_file() else None

"""The form of what an algorithm can be extended by: one class of hooks, one file per extension.

An algorithm holds its extensions in a list and calls each hook of all of them, in that order. A new
extension is a file here and an entry in the list of ``ppo.py`` or ``distillation.py``::

    rollout     start_training, begin_rollout, act, reward, process_env_step
    update      labels, wrap; in each step accumulate, step; then metrics, advance
    no update   drop_rollout
    files       state_dict, check, load_state_dict; running_state, resume
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.core.accumulate import Loss
from rsl_tbptt.core.rollout import Rollout


class Extension:
    """A part of an algorithm. Every method does nothing by default.

    An update that is undone restores its attributes, so replace them and do not change them in
    place. Inside a step only tensors at fixed addresses may be read and written.
    """

    name = ""
    """Key of its state in checkpoints; empty for none."""

    loaded_with: tuple[str, ...] = ("actor",)
    """Parts in rsl_rl's ``load_cfg`` of which any loads the state."""

    modules: Sequence[nn.Module] = ()
    """Modules that an update changes."""

    optimizers: Sequence[torch.optim.Optimizer] = ()
    """Its own optimisers."""

    reported: tuple[str, ...] = ()
    """Names of the values that its losses report."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Parameters that its own optimisers train."""
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        return [parameter for group in groups for parameter in group["params"]]

    def stateful_models(self) -> dict[str, Any]:
        """Return its models with hidden states, which an update that is undone must not lose.

        The keys are their roles in checkpoints.
        """
        return {}

    def observed_groups(self) -> set[str]:
        """Return the observation groups that it reads."""
        return set()

    def start_training(self) -> None:
        """Prepare before the first rollout; a policy that only plays does not need this.

        Raises:
            ValueError: If something that training needs is missing.
        """

    def begin_rollout(self) -> None:
        """Prepare before the first step of each rollout."""

    def act(self, obs: TensorDict, step: int) -> None:
        """Look at the observations (N,) of a step of the rollout, before the policy acts."""

    def reward(self, obs: TensorDict, rewards: torch.Tensor) -> torch.Tensor:
        """Return the rewards (N,) of a step, given those of the environment."""
        return rewards

    def process_env_step(self, step: int, rewards: torch.Tensor, dones: torch.Tensor) -> None:
        """Look at a step's rewards (N,), those of the environment, and dones (N,)."""

    def drop_rollout(self, num_steps: int) -> None:
        """Undo changes of a rollout that is dropped after some steps; states continue."""

    def labels(self) -> dict[str, torch.Tensor]:
        """Return its labels of the stored rollout, shape (T, N, ...) each."""
        return {}

    def wrap(self, loss: Loss) -> Loss:
        """Return a loss that includes its own."""
        return loss

    def accumulate(
        self, rollout: Rollout, segments: Sequence[torch.Tensor], num_samples: int, num_parts: int
    ) -> dict[str, torch.Tensor]:
        """Add gradients of a step to the parameters that nothing else trains.

        Args:
            rollout: All observation groups of the rollout.
            segments: The segments of the step; see ``Indices``.
            num_samples: Samples of the step, over all processes.
            num_parts: Minimum number of micro-batches.

        Returns:
            Sums of values to report. Shape: () each.
        """
        return {}

    def step(self, rate: torch.Tensor) -> None:
        """Step its own optimisers; the algorithm's learning rate, (), is on the device."""

    def metrics(self) -> dict[str, torch.Tensor]:
        """Return values of the update over all processes, shape () each."""
        return {}

    def advance(self, metrics: dict[str, float]) -> None:
        """Advance after an update that is kept, and complete the metrics to log in place."""

    def inputs(self) -> dict[str, torch.Tensor]:
        """Return recorded values that may be NaN, by their names for a user: (T, N, D) each."""
        return {}

    def broadcast(self) -> None:
        """Copy the first process's parameters to all processes."""

    def state_dict(self) -> dict[str, Any]:
        """Return its entry of a checkpoint, tensors and plain values."""
        return {}

    def check(self, saved: Mapping[str, Any]) -> None:
        """Check that the entry of a checkpoint fits; nothing is changed.

        Raises:
            ValueError: If it does not.
        """

    def load_state_dict(self, saved: Mapping[str, Any], *, with_optimizer: bool) -> None:
        """Restore a checked entry, or start anew if it is empty."""

    def running_state(self) -> dict[str, Any]:
        """Return what only the continuation of running episodes needs, by name."""
        return {}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Restore values of ``running_state`` of any extensions; the episodes continue."""

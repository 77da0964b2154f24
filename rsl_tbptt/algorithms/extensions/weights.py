"""Weights of the samples of a distillation: ``imitation_weight``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from rsl_tbptt.algorithms.extensions import Extension
from rsl_tbptt.algorithms.option_checks import OptionGroup
from rsl_tbptt.compat.versions import import_function
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.user_functions import unwritten

OPTION = "imitation_weight"


@dataclass(kw_only=True)
class WeightOptions(OptionGroup):
    """The option of :class:`SampleWeights`."""

    imitation_weight: str | Callable[..., Any] | None = None
    """Weight of each sample in the loss: an observation group or ``"module:function"``.

    None weighs all steps equally. See docs/reference/distillation.md#what-counts.
    """


@dataclass(frozen=True)
class Transitions:
    """A rollout of T steps of N environments, as given to a function that weighs its steps."""

    obs: TensorDict
    """All observation groups of the environment, before each step. Batch size (T, N)."""

    actions: torch.Tensor
    """The actions executed, the student's or the teacher's. Shape: (T, N, A)."""

    labels: torch.Tensor
    """The teacher's actions. Shape: (T, N, A)."""

    rewards: torch.Tensor
    """Rewards of each step. Shape: (T, N)."""

    dones: torch.Tensor
    """Which steps ended an episode. Shape: (T, N), bool."""

    episode_steps: torch.Tensor
    """Steps of the episode before this one, 0 at its first. Shape: (T, N), int64.

    They are counted over rollouts, from the first step of the training on.
    """


class SampleWeights(Extension):
    """Computes the weights of each rollout once it is complete."""

    def __init__(
        self, weight: str | Callable[..., Any], storage: RolloutStorage, ranks: Ranks
    ) -> None:
        """Find the observation group or import the function.

        Args:
            weight: The option ``imitation_weight``.
            storage: The storage of rollouts.
            ranks: The processes that train together.

        Raises:
            ValueError: If there is no such group and no such function to import.
        """
        self._storage, self._option, self._ranks = storage, weight, ranks
        groups = list(map(str, storage.observations.keys()))
        if isinstance(weight, str) and weight in groups:
            self._weigh = lambda transitions: transitions.obs[weight].squeeze(-1)
        else:
            self._weigh = import_function(OPTION, weight, groups)
        shape = storage.dones.shape[:2]
        self.given = torch.ones(shape, device=storage.dones.device, dtype=storage.rewards.dtype)
        """Values of the group or the function. Shape: (T, N)."""
        self.values = torch.ones_like(self.given)
        """The same with NaN for negative values: the update stops at NaN or inf."""
        self._episode_steps = torch.zeros(shape, device=self.given.device, dtype=torch.int64)
        self.steps_so_far = self._episode_steps[0].clone()
        """Steps of each environment's running episode. Shape: (N,), int64."""

    def observed_groups(self) -> set[str]:
        """Return the group that holds the weights, or all, which a function may read."""
        stored = {*map(str, self._storage.observations.keys())}
        return (
            {self._option} if isinstance(self._option, str) and self._option in stored else stored
        )

    def process_env_step(self, step: int, rewards: torch.Tensor, dones: torch.Tensor) -> None:
        """Count the steps of each episode."""
        self._episode_steps[step] = self.steps_so_far
        self.steps_so_far = torch.where(dones.bool(), 0, self.steps_so_far + 1)

    def start_training(self) -> None:
        """Compute weights of what is stored, since the first update is a rollout away.

        Raises:
            ValueError: If the function fails on some rank; see ``try_out``.
        """
        self._ranks.run_together(self.try_out)

    def running_state(self) -> dict[str, Any]:
        """Return the steps of the running episodes."""
        return {"episode_steps": self.steps_so_far}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        if "episode_steps" in state:
            self.steps_so_far = state["episode_steps"].to(self.given.device)

    def try_out(self) -> None:
        """Compute weights of what is stored when training starts.

        Raises:
            ValueError: If the function fails, writes into the rollout, or the weights have another
                form.
        """
        transitions = self._transitions()
        given = {**vars(transitions), **dict(transitions.obs.items())}
        del given["obs"]
        with unwritten(f"{OPTION}, {self._option!r},", given):
            self.complete()

    @torch.no_grad()
    def complete(self) -> None:
        """Compute the weights of the stored rollout.

        Raises:
            ValueError: If the function fails, or the weights have another form.
        """
        try:
            weights = self._weigh(self._transitions())
            if not isinstance(weights, torch.Tensor) or weights.is_complex():
                raise ValueError(f"the weights are {getattr(weights, 'dtype', type(weights))}")
            if weights.shape != self.given.shape:
                raise ValueError(f"the weights have shape {tuple(weights.shape)}")
        except Exception as error:  # a user's function can raise anything
            raise ValueError(
                f"{OPTION} is {self._option!r}, expected weights of a rollout, a tensor of shape"
                f" {tuple(self.given.shape)}; it fails ({type(error).__name__}: {error})."
            ) from error
        self.given.copy_(weights)
        self.values.copy_(torch.where(self.given >= 0, self.given, torch.nan))

    def _transitions(self) -> Transitions:
        """Return the stored rollout; its tensors are the storage's own."""
        storage = self._storage
        return Transitions(
            obs=storage.observations,
            actions=storage.actions,
            labels=storage.privileged_actions,
            rewards=storage.rewards.squeeze(-1),
            dones=storage.dones.squeeze(-1).bool(),
            episode_steps=self._episode_steps,
        )


def or_one(sums: torch.Tensor) -> torch.Tensor:
    """Return sums of weights as divisors, of any shape: 1 for a sum of 0, so that 0 / 0 is 0."""
    return torch.where(sums == 0, 1.0, sums)

"""What each robot-step of a rollout weighs in the loss: an observation group, or a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from rsl_tbptt.compat.versions import resolve_callable

OPTION = "imitation_weight"


@dataclass(frozen=True)
class Transitions:
    """A rollout of T steps of N environments, as a function that weighs its steps sees it."""

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


class SampleWeights:
    """Finds the weights of each rollout once it is complete."""

    def __init__(self, weight: str | Callable[..., Any], storage: RolloutStorage) -> None:
        """Find the observation group or the function.

        Args:
            weight: The option ``imitation_weight``.
            storage: Where rollouts are stored.

        Raises:
            ValueError: If the group does not exist or has more than one value, or the function
                cannot be imported.
        """
        self._storage, self._option = storage, weight
        self._group, self._function = None, None
        if isinstance(weight, str) and ":" not in weight:
            _check_group(weight, storage.observations)
            self._group = weight
        else:
            self._function = _resolve(weight)
        shape = storage.dones.shape[:2]
        self.given = torch.ones(shape, device=storage.dones.device, dtype=storage.rewards.dtype)
        """What the group or the function says. Shape: (T, N)."""
        self.values = torch.ones_like(self.given)
        """The same, with NaN where it is negative: no update goes on with NaN or inf."""
        self._episode_steps = torch.zeros(shape, device=self.given.device, dtype=torch.int64)
        self._steps_so_far = self._episode_steps[0].clone()

    def count_step(self, step: int, dones: torch.Tensor) -> None:
        """Count the steps of each episode.

        Args:
            step: Step of the rollout.
            dones: Which episodes ended with it. Shape: (N,).
        """
        self._episode_steps[step] = self._steps_so_far
        self._steps_so_far = torch.where(dones.bool(), 0, self._steps_so_far + 1)

    @torch.no_grad()
    def complete(self) -> None:
        """Weigh the stored rollout.

        Raises:
            ValueError: If the function fails or returns another shape.
        """
        if self._group is not None:
            self.given.copy_(self._storage.observations[self._group].view_as(self.given))
        else:
            self.given.copy_(self._computed())
        self.values.copy_(torch.where(self.given >= 0, self.given, torch.nan))

    def _computed(self) -> torch.Tensor:
        """Return what the function says of the stored rollout. Shape: (T, N).

        Raises:
            ValueError: If it fails or returns another shape.
        """
        assert self._function is not None
        storage, shape = self._storage, self.given.shape
        transitions = Transitions(
            obs=storage.observations,
            actions=storage.actions,
            labels=storage.privileged_actions,
            rewards=storage.rewards.squeeze(-1),
            dones=storage.dones.squeeze(-1).bool(),
            episode_steps=self._episode_steps,
        )
        expected = f"expected a function of the rollout that returns its weights, {tuple(shape)}"
        try:
            weights = self._function(transitions)
        except Exception as error:  # a user's function can raise anything
            raise ValueError(
                f"{OPTION} is {self._option!r}, which fails on a rollout"
                f" ({type(error).__name__}: {error}): {expected}."
            ) from error
        if not isinstance(weights, torch.Tensor) or weights.shape != shape:
            found = tuple(weights.shape) if isinstance(weights, torch.Tensor) else repr(weights)
            raise ValueError(f"{OPTION} is {self._option!r}, which returned {found}: {expected}.")
        return weights


def sample_weights(
    weight: str | Callable[..., Any] | None, storage: RolloutStorage
) -> SampleWeights | None:
    """Return what weighs the rollouts; None where all steps weigh the same.

    Raises:
        ValueError: If the option cannot be used.
    """
    return None if weight is None else SampleWeights(weight, storage)


def _check_group(group: str, observations: TensorDict) -> None:
    stored = sorted(map(str, observations.keys()))
    if group not in stored:
        raise ValueError(
            f"{OPTION} is '{group}', expected one of the observation groups {stored} or the"
            " qualified name of a function, such as 'my_package.weights:my_weight'."
        )
    shape = tuple(observations[group].shape[2:])
    if shape != (1,):
        raise ValueError(
            f"{OPTION} is '{group}', an observation group of shape {shape}, expected one of shape"
            " (1,): each robot-step has one weight."
        )


def _resolve(weight: str | Callable[..., Any]) -> Callable[[Transitions], torch.Tensor]:
    try:
        return resolve_callable(weight)
    except (ImportError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{OPTION} is {weight!r}, which cannot be imported ({error}): expected an observation"
            " group or the qualified name of a function, such as 'my_package.weights:my_weight'."
        ) from error

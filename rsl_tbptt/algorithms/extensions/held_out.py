"""Environments that are held out of a distillation's updates, for an honest log.

An update fits the labels and states of running episodes, so the loss and return of the environments
that train are those of a policy that follows its own episodes. Held-out environments run the same
policy and enter no loss and no replay buffer, as the episodes of the robot will not either.

They are still no evaluation: a few environments, with the exploration noise of the rollout, from
whichever curriculum or terrain they stand on. The normaliser sees them, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Annotated, Any

import torch
from rsl_rl.storage import RolloutStorage

from rsl_tbptt.algorithms.behavior_losses import ACTIONS, BEHAVIOR
from rsl_tbptt.algorithms.extensions import Extension
from rsl_tbptt.algorithms.health import HELD_OUT, RETURN, RETURN_ERROR, explained
from rsl_tbptt.algorithms.option_checks import OptionGroup, count
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.accumulate import Loss, Outputs, SampleLosses
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.rollout import Batch, Labels, Rollout

_MISSING, _ERROR = f"{HELD_OUT}missing", "error"


@dataclass(kw_only=True)
class HeldOutOptions(OptionGroup):
    """The option of :class:`HeldOut`."""

    held_out_envs: Annotated[int | None, count(0)] = None
    """Environments of each process that enter no loss and no buffer, for ``held_out/`` metrics.

    None means 2 %, at least 8; 0 below 256.
    """

    def num_held_out(self, num_envs: int) -> int:
        """Return how many of a process's environments are held out; at least one trains."""
        number = self.held_out_envs
        if number is None:
            number = max(8, round(0.02 * num_envs)) if num_envs >= 256 else 0
        return min(number, num_envs - 1)


class HeldOut(Extension):
    """Measures the policy that acts, on environments that it is not trained on."""

    def __init__(self, options: HeldOutOptions, storage: RolloutStorage, ranks: Ranks) -> None:
        """Draw the environments, one in each of equal blocks, the same in every run.

        Terrains are laid out by index, and robots or tasks often alternate by it with some period.

        Args:
            options: The number of environments.
            storage: The storage of rollouts.
            ranks: The processes that train together; all hold out the same number.
        """
        self._ranks, device = ranks, storage.dones.device
        sizes = ranks.gather(storage.num_envs)
        number, last = min(map(options.num_held_out, sizes)), storage.num_envs
        edges, draw = [index * last // max(number, 1) for index in range(number + 1)], Random(0)
        held_out = [draw.randrange(*block) for block in pairwise(edges)]
        trained = sorted({*range(last)}.difference(held_out))
        self.envs = torch.tensor(held_out, dtype=torch.int64, device=device)
        """Environments that are held out. Shape: (n,)."""
        self.trained = torch.tensor(trained, dtype=torch.int64, device=device)
        """All others. Shape: (M,)."""
        self.mean_return: float | None = None
        """Mean return of each one's newest episode, after the last update; None while unknown."""
        self._num_of_ranks = number * len(sizes)
        # NaN is unknown. Episodes that were running when training began may not be complete.
        unknown = torch.full((number,), torch.nan, dtype=storage.rewards.dtype, device=device)
        self._so_far = self._returns = self._unknown = unknown
        self._measured: dict[str, torch.Tensor] = {}

    def process_env_step(self, step: int, rewards: torch.Tensor, dones: torch.Tensor) -> None:
        """Add the rewards to the returns of running episodes."""
        if len(self.envs):
            so_far, ended = self._so_far + rewards[self.envs], dones[self.envs].bool()
            self._returns = torch.where(ended, so_far, self._returns)
            self._so_far = torch.where(ended, 0.0, so_far)

    @torch.no_grad()
    def measure(
        self,
        student: Any,
        experience: Any,
        rollout: Rollout,
        states: HiddenState,
        ends: HiddenState,
    ) -> None:
        """Replay the held-out environments with the policy that acted, before an update.

        Args:
            student: The :class:`Student`, with its replay and loss.
            experience: The :class:`Experience`, which knows the columns of the environments.
            rollout: The rollout that ``Experience.take`` returned.
            states: The states before it. Shape: (L, C + N, H), or a pair of them.
            ends: Receives the states after the rollout. Shape: (L, N, H), or a pair of them.
        """
        if not len(self.envs):
            return
        drawn = experience.drawn(self.envs)
        batch = Batch(rollout, drawn.columns)
        state = hidden_state.select_envs(states, drawn.columns)
        loss = _with_errors(student.loss) if student.measures_labels else student.loss
        sums = []
        for group in student.groups:
            state, own = student.replay.accumulate(
                group, batch, state, loss, 1, num_micro_batches=1
            )
            sums.append(torch.stack((own[BEHAVIOR], own.get(_ERROR, own[BEHAVIOR]))))
        student.keep_end(ends, rollout, drawn, state, 1)
        behavior, error = self._ranks.sum_tensor(torch.stack(sums).sum(0))
        number = student.num_loss_steps * self._num_of_ranks
        measured = {BEHAVIOR: behavior / number}  # NaN undoes the update, as everywhere
        if student.measures_labels:
            labels = rollout.labels[ACTIONS][: student.num_loss_steps, drawn.columns]
            labels = labels.flatten(0, 1).flatten(1).double()
            mean = self._ranks.sum_tensor(labels.sum(0)) / number
            variance = self._ranks.sum_tensor((labels - mean).square().sum())
            share = explained(error.double(), variance)
            measured["explained_variance"] = share.to(behavior.dtype)
        self._measured = measured

    def metrics(self) -> dict[str, torch.Tensor]:
        """Return loss, explained variance and return over all processes; none without any."""
        if not len(self.envs):
            return {}
        number, known = self._num_of_ranks, self._returns.nan_to_num(nan=0.0)
        of_all = torch.stack((known.sum(), self._returns.isnan().sum()))
        total, missing = self._ranks.sum_tensor(of_all)
        squares = self._ranks.sum_tensor((known - total / number).square().sum())
        error = (squares / max(number - 1, 1) / number).sqrt()
        measured = {f"{HELD_OUT}{name}": value for name, value in self._measured.items()}
        return {**measured, RETURN: total / number, RETURN_ERROR: error, _MISSING: missing}

    def advance(self, metrics: dict[str, float]) -> None:
        """Drop the mean return until each environment has one: short episodes end first."""
        if metrics.pop(_MISSING, 0.0) > 0:
            del metrics[RETURN], metrics[RETURN_ERROR]
        self.mean_return = metrics.get(RETURN)

    def running_state(self) -> dict[str, Any]:
        """Return the returns of the running episodes and of the newest ones."""
        return {"held_out_returns": [self._so_far, self._returns]}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Restore them, unless others are held out now; an older checkpoint has none."""
        saved = state.get("held_out_returns", [self._unknown] * 2)
        if len(saved[0]) == len(self.envs):
            self._so_far, self._returns = (each.to(self._unknown) for each in saved)


def _with_errors(loss: Loss) -> Loss:
    """Return a loss that also reports the squared errors of actions, the first outputs."""

    def reporting(outputs: Outputs, labels: Labels) -> SampleLosses:
        losses = loss(outputs, labels)
        errors = (outputs[0] - labels[ACTIONS]).square().flatten(2).sum(2)
        return replace(losses, reported={**losses.reported, _ERROR: errors})

    return reporting

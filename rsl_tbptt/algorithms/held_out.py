"""Environments that are held out of a distillation's updates, for an honest log.

An update fits the labels and states of running episodes, so the loss and return of the environments
that train are those of a policy that follows its own episodes. In held-out environments the policy
that is deployed acts, with the average of the weights and without noise. They enter neither loss
nor replay buffer, just as the robot's own episodes will not.

This is not an evaluation: there are few of them, and each keeps its terrain and its stage of a
curriculum. The normaliser sees them, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Annotated, Any

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from rsl_tbptt.algorithms.health import HELD_OUT, RETURN, RETURN_ERROR, explained
from rsl_tbptt.algorithms.replay import Objective
from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.hidden_state import HiddenState, as_tensors
from rsl_tbptt.core.rollout import ACTIONS, BEHAVIOR
from rsl_tbptt.core.windows import Group
from rsl_tbptt.extensions import OptionGroup, count

ERROR = "error"
"""Name of the squared error of actions, which only these measurements add up."""

_MISSING = f"{HELD_OUT}missing"


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


class HeldOut:
    """Measures the policy that is deployed, in environments that it is not trained on."""

    objective: Objective
    """The deployed policy, which is replayed over a rollout.

    It yields BEHAVIOR, and ERROR if actions can be compared with their labels.
    """

    groups: Sequence[Group]
    """The windows that enter the loss."""

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
        self._num_of_ranks = number * len(sizes)
        # NaN is unknown. Episodes that were running when training began may not be complete.
        unknown = torch.full((number,), torch.nan, dtype=storage.rewards.dtype, device=device)
        self._so_far = self._unknown = unknown
        self.returns = unknown
        """Return of each environment's newest episode. Shape: (n,)."""
        self.states: HiddenState = None
        """States of the deployed policy before the rollout. Shape: (L, n, H)."""

    def begin_rollout(self, policy: MLPModel) -> None:
        """Keep the state of the deployed policy at the start of a rollout."""
        if len(self.envs):
            state = policy.get_hidden_state()
            if state is not None and as_tensors(state)[0].shape[1] != len(self.envs):
                state = None  # it has played elsewhere
            policy.reset()
            policy.reset(hidden_state=hidden_state.clear_non_finite(state))
            self.states = hidden_state.clone(policy.get_hidden_state())

    def act(self, policy: MLPModel, obs: TensorDict, actions: torch.Tensor) -> torch.Tensor:
        """Return actions, (N, A), with those of the deployed policy, without noise, in these ones.

        Args:
            policy: The policy that is deployed, with a state of these environments alone.
            obs: Observations of all environments, batch size (N,).
            actions: Actions of all environments. Shape: (N, A).
        """
        if not len(self.envs):
            return actions
        return actions.index_copy(0, self.envs, policy(obs[self.envs]).to(actions.dtype))

    def process_env_step(
        self, policy: MLPModel, rewards: torch.Tensor, dones: torch.Tensor
    ) -> None:
        """Add rewards, (N,), to the returns of running episodes; clear states where dones, (N,)."""
        if len(self.envs):
            so_far, ended = self._so_far + rewards[self.envs], dones[self.envs]
            self.returns = torch.where(ended, so_far, self.returns)
            self._so_far = torch.where(ended, 0.0, so_far)
            policy.reset(ended.long())

    @torch.no_grad()
    def measure(
        self, columns: torch.Tensor, state: HiddenState, returns: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Replay these environments with the deployed policy, before an update.

        Args:
            columns: The environments' columns of the rollout. Shape: (n,).
            state: ``states``.
            returns: ``returns``.

        Returns:
            The loss, the explained variance of labels, and the mean return with its error, over all
            processes, () each; empty without environments.
        """
        if not len(columns):
            return {}
        objective, sums, terms = self.objective, [], {}
        for group in self.groups:
            state, terms = objective.accumulate(group, columns, state, 1, 1)
            sums.append(torch.stack((terms[BEHAVIOR], terms.get(ERROR, terms[BEHAVIOR]))))
        behavior, error = self._ranks.sum_tensor(torch.stack(sums).sum(0))
        num_steps = self.groups[-1][-1].stop
        number = num_steps * self._num_of_ranks
        measured = {f"{HELD_OUT}{BEHAVIOR}": behavior / number}  # NaN undoes the update
        if ERROR in terms:
            labels = objective.rollout.labels[ACTIONS][:num_steps, columns]
            labels = labels.flatten(0, 1).flatten(1).double()
            mean = self._ranks.sum_tensor(labels.sum(0)) / number
            variance = self._ranks.sum_tensor((labels - mean).square().sum())
            share = explained(error.double(), variance)
            measured[f"{HELD_OUT}explained_variance"] = share.to(behavior.dtype)
        return measured | self._mean_return(returns)

    def _mean_return(self, returns: torch.Tensor) -> dict[str, torch.Tensor]:
        number, known = self._num_of_ranks, returns.nan_to_num(nan=0.0)
        of_all = torch.stack((known.sum(), returns.isnan().sum()))
        total, missing = self._ranks.sum_tensor(of_all)
        squares = self._ranks.sum_tensor((known - total / number).square().sum())
        error = (squares / max(number - 1, 1) / number).sqrt()
        return {RETURN: total / number, RETURN_ERROR: error, _MISSING: missing}

    def advance(self, metrics: dict[str, float]) -> None:
        """Drop the mean return until each environment has one: short episodes end first."""
        if metrics.pop(_MISSING, 0.0) > 0:
            del metrics[RETURN], metrics[RETURN_ERROR]

    def running_state(self, policy: MLPModel) -> dict[str, Any]:
        """Return the returns of episodes and the deployed policy's state there."""
        states = as_tensors(hidden_state.clone(policy.get_hidden_state()))
        return {"held_out_returns": [self._so_far, self.returns], "held_out_states": states}

    def resume(self, state: Mapping[str, Any], policy: MLPModel) -> None:
        """Restore them, unless others are held out now; an older checkpoint has none."""
        policy.reset(hidden_state=hidden_state.from_tensors(state.get("held_out_states", ())))
        saved = state.get("held_out_returns", [self._unknown] * 2)
        if len(saved[0]) == len(self.envs):
            self._so_far, self.returns = (returns.to(self._unknown) for returns in saved)

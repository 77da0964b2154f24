"""rsl_rl's random network distillation (RND): its reward, and its predictor as an objective."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.algorithms.replay import Objective, Policy
from rsl_tbptt.compat.versions import RandomNetworkDistillation
from rsl_tbptt.core.accumulate import Outputs
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.rollout import Samples
from rsl_tbptt.extensions import Extension, Term


class RndReward(Extension):
    """Adds the intrinsic reward.

    References:
        Burda et al. (2018), "Exploration by random network distillation".
    """

    name = "rnd"

    def __init__(self, options: Any, algorithm: Any) -> None:
        """Take the RND module of the algorithm."""
        self._module: RandomNetworkDistillation = algorithm.rnd
        self._num_envs = algorithm.storage.num_envs
        self.options, self.algorithm, self.modules = options, algorithm, {}

    def observed_groups(self) -> set[str]:
        """Return the groups that RND reads."""
        return {*self._module.obs_groups["rnd_state"]}

    def process_env_step(
        self, obs: TensorDict, rewards: torch.Tensor, dones: torch.Tensor
    ) -> torch.Tensor:
        """Add the intrinsic reward, which rsl_rl's runner logs, too."""
        self.algorithm.intrinsic_rewards = self._module.get_intrinsic_reward(obs)
        return rewards + self.algorithm.intrinsic_rewards

    @property
    def state(self) -> dict[str, Any]:
        """Values that RND needs to continue; those of the normaliser are in rsl_rl's checkpoint."""
        normalizer: nn.Module = self._module.reward_normalizer
        copied = {name: value.clone() for name, value in normalizer.state_dict().items()}
        return {**state_of_rnd(self._module), "reward_normalizer": copied}

    @state.setter
    def state(self, state: Mapping[str, Any]) -> None:
        restore_rnd(self._module, state, self._num_envs)
        if normalizer := state.get("reward_normalizer"):
            # Assigned, as rollouts replace these buffers in inference mode.
            copied = {name: value.clone() for name, value in normalizer.items()}
            self._module.reward_normalizer.load_state_dict(copied, assign=True)


class RndReplay:
    """The embeddings of steps; see :class:`Replay`. Nothing of it depends on earlier steps."""

    windows_at_once = 1

    def __init__(self, module: RandomNetworkDistillation) -> None:
        """Take rsl_rl's module."""
        self.model, self.gives_actions = module, True
        self.parameters = list(module.predictor.parameters())
        """Parameters of the predictor."""

    def unrecordable_reason(self) -> None:
        """Return None: nothing keeps a step from being recorded."""

    def least_micro_batches(self, num_envs: int) -> int:
        """Return 1: the networks are small."""
        return 1

    def __call__(
        self, obs: TensorDict, state: HiddenState, episode_starts: torch.Tensor
    ) -> tuple[Outputs, HiddenState]:
        """Return the predicted embedding of each step minus the target, shape (K, n, D)."""
        module = self.model
        with torch.no_grad():
            rnd_state = module.state_normalizer(module.get_rnd_state(obs.flatten(0, 1)))
            target = module.target(rnd_state)
        error = module.predictor(rnd_state) - target
        return (error.unflatten(0, episode_starts.shape),), state


def rnd_objective(module: RandomNetworkDistillation) -> Objective:
    """Return the objective of RND's predictor."""
    return Objective(RndReplay(module), _squared_error)


def _squared_error(policy: Policy, samples: Samples) -> Iterator[Term]:
    """Yield the mean squared error of the predicted embedding."""
    yield "rnd", 1.0, policy.output.square().mean(-1)


def state_of_rnd(rnd: RandomNetworkDistillation) -> dict[str, Any]:
    """Return the values that RND needs to continue and that its ``state_dict()`` lacks.

    Args:
        rnd: rsl_rl's module, of any algorithm.

    Returns:
        Environment steps so far, which drive the weight's schedule, and the discounted rewards of
        the environments, shape (N,), whose deviation ``reward_normalization`` uses.
    """
    average = getattr(rnd.reward_normalizer, "disc_avg", None)
    return {
        "update_counter": rnd.update_counter,
        "discounted_rewards": None if average is None else average.avg,
    }


def restore_rnd(rnd: RandomNetworkDistillation, state: Mapping[str, Any], num_envs: int) -> None:
    """Restore the values of :func:`state_of_rnd`.

    Args:
        rnd: rsl_rl's module.
        state: The values, or nothing if rsl_rl wrote the file.
        num_envs: Current number of environments. If it has changed, their discounted rewards start
            anew.
    """
    if not state:
        return
    rnd.update_counter, rewards = state["update_counter"], state["discounted_rewards"]
    average: Any = getattr(rnd.reward_normalizer, "disc_avg", None)
    if average is not None:
        average.avg = None
        if rewards is not None and len(rewards) == num_envs:
            average.avg = rewards.to(rnd.device)

"""Training of rsl_rl's random network distillation (RND) on PPO's mini-batches."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict

from rsl_tbptt.algorithms.extensions import Extension
from rsl_tbptt.algorithms.optimizers import step_at, use_fused_kernels
from rsl_tbptt.compat.versions import RandomNetworkDistillation, rnd_optimizer
from rsl_tbptt.core import losses
from rsl_tbptt.core.accumulate import Outputs, SampleLosses, accumulate_group
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.rollout import Batch, Labels, Rollout
from rsl_tbptt.core.windows import Group


class RndTraining(Extension):
    """Trains the predictor of RND: one optimiser step per mini-batch.

    References:
        Burda et al. (2018), "Exploration by random network distillation".
    """

    name, loaded_with, reported = "rnd", ("rnd",), ("rnd",)

    def __init__(self, algorithm: Any, groups: Sequence[Group]) -> None:
        """Take the RND module of one of rsl_rl's algorithms, and the windows of the segments."""
        self.module: RandomNetworkDistillation = algorithm.rnd
        self._algorithm, self._groups = algorithm, groups
        optimizer = rnd_optimizer(algorithm)
        use_fused_kernels(optimizer)
        self.modules = [self.module.predictor, self.module.state_normalizer]
        self.optimizers = [optimizer]
        self.begin_rollout()

    def observed_groups(self) -> set[str]:
        """Return the groups that RND sees."""
        return {*self.module.obs_groups["rnd_state"]}

    def begin_rollout(self) -> None:
        """Copy the values that change during the rollout, at its start."""
        self._kept = self.module.update_counter, copy.deepcopy(self.module.reward_normalizer)

    def drop_rollout(self, num_steps: int) -> None:
        """Restore the weight's schedule and the normaliser of rewards from the rollout's start."""
        self.module.update_counter, self.module.reward_normalizer = self._kept

    def reward(self, obs: TensorDict, rewards: torch.Tensor) -> torch.Tensor:
        """Add the intrinsic reward, which rsl_rl's runner logs, too."""
        self._algorithm.intrinsic_rewards = self.module.get_intrinsic_reward(obs)
        return rewards + self._algorithm.intrinsic_rewards

    def accumulate(
        self, rollout: Rollout, segments: Sequence[torch.Tensor], num_samples: int, num_parts: int
    ) -> dict[str, torch.Tensor]:
        """Compute the predictor's gradient; report the sum of its squared errors."""
        seen = rollout.with_observations(rollout.obs.select(*self.observed_groups()), {})
        sums = []
        for group, (first_rows, _) in zip(self._groups, segments, strict=True):
            batch, sizes = Batch(seen, first_rows), (num_samples, num_parts)
            own = (group, batch, None, self._embeddings, _squared_error, *sizes)
            sums.append(accumulate_group(*own)[1]["rnd"])
        return {"rnd": torch.stack(sums).sum(0)}

    def step(self, rate: torch.Tensor) -> None:
        """Step the predictor, at its own learning rate."""
        step_at(self.optimizers[0], None)

    def _embeddings(
        self, obs: TensorDict, state: HiddenState, episode_starts: torch.Tensor
    ) -> tuple[Outputs, HiddenState]:
        """Return the predicted and the target embedding of each step, shape (K, n, D) each."""
        with torch.no_grad():
            rnd_state = self.module.state_normalizer(self.module.get_rnd_state(obs.flatten(0, 1)))
            target = self.module.target(rnd_state)
        predicted = self.module.predictor(rnd_state)
        shape = episode_starts.shape
        return (predicted.unflatten(0, shape), target.unflatten(0, shape)), state

    def state_dict(self) -> dict[str, Any]:
        """Return the values that RND needs to continue and that rsl_rl's checkpoint lacks.

        They are the environment steps so far, which drive the weight's schedule, and the discounted
        rewards of the environments, (N,), whose deviation ``reward_normalization`` uses.
        """
        return state_of_rnd(self.module)

    def load_state_dict(self, saved: Mapping[str, Any], *, with_optimizer: bool) -> None:
        """Restore the values; nothing if rsl_rl wrote the file."""
        restore_rnd(self.module, saved, self._algorithm.storage.num_envs)


def _squared_error(outputs: Outputs, labels: Labels) -> SampleLosses:
    """Return the error of the predicted embedding, one per sample, (K, n)."""
    error = losses.mse(*outputs)
    return SampleLosses(error, {"rnd": error})


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

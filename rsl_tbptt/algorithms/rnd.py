"""Training of rsl_rl's random network distillation (RND) on PPO's mini-batches."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.algorithms.mini_batches import MiniBatch
from rsl_tbptt.algorithms.optimizers import use_fused_kernels
from rsl_tbptt.algorithms.policy_losses import PpoRollout
from rsl_tbptt.compat.versions import RandomNetworkDistillation, rnd_optimizer
from rsl_tbptt.core import losses
from rsl_tbptt.core.accumulate import Outputs, SampleLosses, accumulate_group
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.rollout import Labels


class RndTraining:
    """Trains the predictor of RND: one optimiser step per mini-batch.

    References:
        Burda et al. (2018), "Exploration by random network distillation".
    """

    def __init__(self, algorithm: Any, ranks: Ranks) -> None:
        """Take the RND module of one of rsl_rl's algorithms, and the ranks that train it."""
        self.module: RandomNetworkDistillation = algorithm.rnd
        self.optimizer = rnd_optimizer(algorithm)
        use_fused_kernels(self.optimizer)
        self.modules: list[nn.Module] = [self.module.predictor, self.module.state_normalizer]
        """Modules that an update changes."""
        self.parameters: list[nn.Parameter] = list(self.module.predictor.parameters())
        """Trained parameters."""
        self._ranks, self._bucket_mb = ranks, algorithm.grad_reduce_bucket_mb
        self.begin_rollout()

    def begin_rollout(self) -> None:
        """Copy the values that change during the rollout, at its start."""
        self._kept = self.module.update_counter, copy.deepcopy(self.module.reward_normalizer)

    def drop_rollout(self) -> None:
        """Restore the weight's schedule and the normaliser of rewards from the rollout's start."""
        self.module.update_counter, self.module.reward_normalizer = self._kept

    def train(
        self, mini_batch: MiniBatch, rollout: PpoRollout, num_micro_batches: int
    ) -> torch.Tensor:
        """Step the predictor on a mini-batch, on all ranks; return the mean error, shape (1,)."""
        error = self.accumulate(mini_batch, rollout, num_micro_batches)
        self._ranks.sum_gradients(self.parameters, self._bucket_mb)
        self.optimizer.step()
        return self._ranks.sum_tensor(error / mini_batch.num_samples)

    def accumulate(
        self, mini_batch: MiniBatch, rollout: PpoRollout, num_micro_batches: int
    ) -> torch.Tensor:
        """Compute a mini-batch's gradient; return the sum of its squared errors, shape (1,)."""
        seen = rollout.all_groups.obs.select(*self.module.obs_groups["rnd_state"])
        self.optimizer.zero_grad()
        sums = []
        for part in mini_batch.parts:
            _, of_part = accumulate_group(
                part.group,
                part.of(rollout.all_groups.seen_as(seen, {})),
                None,
                self._embeddings,
                _squared_error,
                mini_batch.num_samples,
                num_micro_batches,
            )
            sums.append(of_part["rnd"])
        return torch.stack(sums).sum(0, keepdim=True)

    def _embeddings(
        self,
        obs: TensorDict,
        state: HiddenState,
        episode_starts: torch.Tensor,
    ) -> tuple[Outputs, HiddenState]:
        """Return the predicted and the target embedding of each step, shape (K, n, D) each."""
        with torch.no_grad():
            rnd_state = self.module.state_normalizer(self.module.get_rnd_state(obs.flatten(0, 1)))
            target = self.module.target(rnd_state)
        predicted = self.module.predictor(rnd_state)
        shape = episode_starts.shape
        return (predicted.unflatten(0, shape), target.unflatten(0, shape)), state


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

"""Training of rsl_rl's random network distillation (RND) on PPO's mini-batches."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.algorithms.mini_batches import MiniBatch
from rsl_tbptt.algorithms.optimizers import use_fused_kernels
from rsl_tbptt.algorithms.options import PpoOptions
from rsl_tbptt.compat.versions import RandomNetworkDistillation
from rsl_tbptt.core import losses
from rsl_tbptt.core.accumulate import Outputs, SampleLosses, accumulate_group
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.rollout import Labels, Rollout


class RndTraining:
    """Trains the predictor of RND: one optimiser step per mini-batch.

    References:
        Burda et al. (2018), "Exploration by random network distillation".
    """

    def __init__(
        self,
        rnd: RandomNetworkDistillation,
        optimizer: torch.optim.Optimizer,
        ranks: Ranks,
        bucket_mb: float,
    ) -> None:
        """Take rsl_rl's module, the optimiser of its predictor and who trains it together."""
        use_fused_kernels(optimizer)
        self.module, self.optimizer = rnd, optimizer
        self._ranks, self._bucket_mb = ranks, bucket_mb
        self.begin_rollout()

    @property
    def modules(self) -> list[nn.Module]:
        """Modules that an update changes."""
        return [self.module.predictor, self.module.state_normalizer]

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return what is trained."""
        return self.module.predictor.parameters()

    def begin_rollout(self) -> None:
        """Copy what changes within the rollout, at its start."""
        self._kept = self.module.update_counter, copy.deepcopy(self.module.reward_normalizer)

    def drop_rollout(self) -> None:
        """Set the weight's schedule and the normaliser of rewards to where the rollout began."""
        self.module.update_counter, self.module.reward_normalizer = self._kept

    def accumulate(
        self, rollout: Rollout, mini_batch: MiniBatch, num_micro_batches: int
    ) -> torch.Tensor:
        """Add a mini-batch's gradient; return the sum of its squared errors, shape (1,)."""
        rollout = rollout.seen_as(rollout.obs.select(*self.module.obs_groups["rnd_state"]), {})
        self.optimizer.zero_grad()
        sums = []
        for part in mini_batch.parts:
            _, of_part = accumulate_group(
                part.group,
                part.of(rollout),
                None,
                self._embeddings,
                _squared_error,
                mini_batch.num_samples,
                num_micro_batches,
            )
            sums.append(of_part["rnd"])
        return torch.stack(sums).sum(0, keepdim=True)

    def step(self, mean: torch.Tensor) -> torch.Tensor:
        """Step the optimiser on all ranks.

        Args:
            mean: This rank's part of the mini-batch's mean squared error. Shape: (1,).

        Returns:
            The mean over all ranks. Shape: (1,).
        """
        self._ranks.sum_gradients(self.parameters(), self._bucket_mb)
        self.optimizer.step()
        return self._ranks.sum_tensor(mean)

    def _embeddings(
        self,
        obs: TensorDict,
        state: HiddenState,
        episode_starts: torch.Tensor,
    ) -> tuple[tuple[torch.Tensor, torch.Tensor], HiddenState]:
        """Return the predicted and the target embedding of each step, shape (K, n, D) each."""
        with torch.no_grad():
            rnd_state = self.module.state_normalizer(self.module.get_rnd_state(obs.flatten(0, 1)))
            target = self.module.target(rnd_state)
        predicted = self.module.predictor(rnd_state)
        shape = episode_starts.shape
        return (predicted.unflatten(0, shape), target.unflatten(0, shape)), state


def state_of_rnd(rnd: RandomNetworkDistillation) -> dict[str, Any]:
    """Return what RND needs to go on that its ``state_dict()`` lacks.

    Args:
        rnd: rsl_rl's module, of any algorithm.

    Returns:
        Environment steps so far, by which the weight's schedule goes, and the discounted rewards
        of the environments, shape (N,), of which ``reward_normalization`` takes the deviation.
    """
    average = getattr(rnd.reward_normalizer, "disc_avg", None)
    return {
        "update_counter": rnd.update_counter,
        "discounted_rewards": None if average is None else average.avg,
    }


def restore_rnd(rnd: RandomNetworkDistillation, state: Mapping[str, Any], num_envs: int) -> None:
    """Go on where :func:`state_of_rnd` was called.

    Args:
        rnd: rsl_rl's module.
        state: What was returned, or nothing, as in files of earlier releases.
        num_envs: Environments that it sees now. With another number than then their discounted
            rewards begin anew.
    """
    if not state:
        return
    rnd.update_counter, rewards = state["update_counter"], state["discounted_rewards"]
    average: Any = getattr(rnd.reward_normalizer, "disc_avg", None)
    if average is not None:
        fits = rewards is not None and len(rewards) == num_envs
        average.avg = rewards if fits else None


def _squared_error(outputs: Outputs, labels: Labels) -> SampleLosses:
    """Return the error of the predicted embedding, one per sample, (K, n)."""
    error = losses.mse(*outputs)
    return SampleLosses(error, {"rnd": error})


def check_symmetry(options: PpoOptions, recurrent: bool) -> None:
    """Check that symmetry can be left to rsl_rl's own update.

    Args:
        options: The options.
        recurrent: Whether actor or critic has memory.

    Raises:
        NotImplementedError: If a model is recurrent.
        ValueError: If an option is set that rsl_rl's update lacks.
    """
    if recurrent:
        raise NotImplementedError(
            "symmetry_cfg is set, expected None with a recurrent actor or critic: a mirrored"
            " sample needs the hidden state of a mirrored episode, which nobody has lived."
        )
    options.check_symmetry()

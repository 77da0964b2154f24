"""The recall task cut into ranks: random numbers depend only on an environment's number."""

from __future__ import annotations

from typing import Any

import torch
from rsl_rl.modules import GaussianDistribution

from rsl_tbptt_tasks.memory import RecallEnv


def generators(first: int, last: int, seed: int) -> list[torch.Generator]:
    """Return a generator for each of some environments."""
    return [torch.Generator().manual_seed(1000 * seed + env) for env in range(first, last)]


class CutRecallEnv(RecallEnv):
    """Environments ``first`` to ``last`` - 1 of one recall task, whichever rank has them."""

    step_dt = 0.02

    def __init__(self, first: int, last: int, recall_length: int = 3) -> None:
        self._cues = generators(first, last, seed=1)
        CutGaussian.noise = generators(first, last, seed=2)
        super().__init__(last - first, recall_length)
        self.episode_length_buf = torch.arange(first, last) % self.max_episode_length

    @property
    def unwrapped(self) -> CutRecallEnv:
        return self

    def _draw_cues(self) -> torch.Tensor:
        bits = [torch.randint(2, (), generator=generator) for generator in self._cues]
        return 2.0 * torch.stack(bits) - 1.0

    def state_dict(self) -> dict[str, torch.Tensor]:
        states = [generator.get_state() for generator in [*self._cues, *CutGaussian.noise]]
        return {**super().state_dict(), "states": torch.stack(states)}

    def load_state_dict(self, state_dict: dict[str, torch.Tensor]) -> None:
        super().load_state_dict(state_dict)
        own = [*self._cues, *CutGaussian.noise]
        for generator, state in zip(own, state_dict["states"], strict=True):
            generator.set_state(state.clone())  # torch ignores where a row begins


class CutGaussian(GaussianDistribution):
    """Gaussian that samples each environment with that environment's own generator."""

    noise: list[torch.Generator]
    """Generators of this rank's environments, set with them."""

    def sample(self) -> torch.Tensor:
        mean, std = self.params
        drawn = [torch.randn(mean.shape[1:], generator=generator) for generator in self.noise]
        return mean + std * torch.stack(drawn)


def gaussian(**options: Any) -> dict[str, Any]:
    """Return a new config of the distribution, because rsl_rl removes entries from it."""
    return {"class_name": "support.cut_recall:CutGaussian", "init_std": 0.3, **options}

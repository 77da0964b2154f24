"""Smooth actions: copy this file next to your task, and name it in the algorithm's config.

``extensions=[{"class_name": "smoothness:Smoothness", "coef": 0.01, "noise": 0.05}]``
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import torch

from rsl_tbptt.core.hidden_state import as_tensors, from_tensors
from rsl_tbptt.extensions import Extension, OptionGroup, positive


class Smoothness(Extension):
    """Penalises steps of the mean action, and its change under noise of the observations.

    A second pass of the policy sees the noise through the whole episode, with a memory of its own.

    References:
        Mysore et al. (2021), arXiv 2012.06644: conditioning for action policy smoothness.
    """

    @dataclass(kw_only=True)
    class Options(OptionGroup):
        """Weights of both terms."""

        coef: Annotated[float, positive(0)]
        """Weight of the squared steps of the mean action within an episode."""

        noise_coef: Annotated[float, positive(0)] = 0.0
        """Weight of the squared distance from the action for observations with noise."""

        noise: Annotated[float, positive()] = 0.05
        """Standard deviation of that noise."""

    def __init__(self, options: Options, algorithm: Any) -> None:
        """Make the policy's twin.

        Raises:
            ValueError: If the policy has no memory: its update sees single steps.
        """
        super().__init__(options, algorithm)
        policy = algorithm.get_policy()
        if not policy.is_recurrent:
            raise ValueError("Smoothness is set, expected a policy with memory.")
        self.twin = copy.deepcopy(policy)
        for part, shared in zip(self.twin.modules(), policy.modules(), strict=True):
            part._parameters, part._buffers = shared._parameters, shared._buffers
        self.state = {"memory": []}
        self.means: list[torch.Tensor] = []

    def begin_rollout(self) -> None:
        """Forget the last rollout; a memory of other environments begins anew."""
        self.means = []
        if any(part.shape[1] != self.algorithm.storage.num_envs for part in self.state["memory"]):
            self.state = {"memory": []}

    def act(self, obs: Any, step: int) -> None:
        """Record the twin's action for observations with noise."""
        if self.options.noise_coef > 0:
            noised = obs.apply(
                lambda x: (
                    x + self.options.noise * torch.randn_like(x) if x.is_floating_point() else x
                )
            )
            self.twin.reset(hidden_state=from_tensors(self.state["memory"]))
            self.means.append(self.twin(noised).detach())

    def process_env_step(self, obs: Any, rewards: torch.Tensor, dones: torch.Tensor) -> Any:
        """Keep the twin's memory, cleared where an episode ended."""
        if self.options.noise_coef > 0:
            self.twin.reset(dones.long())
            memory = as_tensors(self.twin.get_hidden_state())
            self.state = {"memory": [part.clone() for part in memory]}
        return rewards

    def labels(self) -> dict[str, torch.Tensor]:
        """Return the twin's actions. Shape: (T, N, A)."""
        return {"noised": torch.stack(self.means)} if self.means else {}

    def losses(self, policy: Any, samples: Any) -> Iterator[Any]:
        """Yield both terms."""
        steps = (policy.mean - policy.mean.roll(1, 0)).square().mean(-1)
        yield "smoothness", self.options.coef, torch.where(samples.episode_starts, 0.0, steps)
        if "noised" in samples:
            change = (policy.mean - samples["noised"]).square().mean(-1)
            yield "smoothness/noise", self.options.noise_coef, change

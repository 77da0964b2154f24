"""A mirror loss with memory: copy this file next to your task, and name it in the config.

``extensions=[{"class_name": "mirror:Mirror", "coef": 0.5, "function": "my_robot:mirrored"}]``
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from rsl_rl.utils import resolve_callable

from rsl_tbptt.core.hidden_state import as_tensors, from_tensors
from rsl_tbptt.extensions import Extension, OptionGroup, positive


class Mirror(Extension):
    """Draws the policy's action to the mirror image of its action in the mirrored episode.

    A twin of the policy lives through the mirrored episode with a memory of its own.

    References:
        Yu, Turk and Liu (2018), arXiv 1801.08093: the mirror loss, for policies without memory.
    """

    @dataclass(kw_only=True)
    class Options(OptionGroup):
        """Weight and symmetry."""

        coef: Annotated[float, positive(0)]
        """Weight of the squared distance."""

        function: str | Callable[..., Any]
        """rsl_rl's ``data_augmentation_func``: maps ``env=None, obs, actions`` to the pair of both,
        each with its one mirror image appended."""

    def __init__(self, options: Options, algorithm: Any) -> None:
        """Make the policy's twin."""
        super().__init__(options, algorithm)
        self.function: Any = resolve_callable(options.function)
        policy = algorithm.get_policy()
        self.twin = copy.deepcopy(policy)
        for part, shared in zip(self.twin.modules(), policy.modules(), strict=True):
            part._parameters, part._buffers = shared._parameters, shared._buffers
        self.state = {"memory": []}
        self.images: list[torch.Tensor] = []

    def begin_rollout(self) -> None:
        """Forget the last rollout; a memory of other environments begins anew."""
        self.images = []
        if any(part.shape[1] != self.algorithm.storage.num_envs for part in self.state["memory"]):
            self.state = {"memory": []}

    def act(self, obs: Any, step: int) -> None:
        """Record the mirror image of the twin's action in the mirrored episode."""
        mirrored, _ = self.function(env=None, obs=obs, actions=None)
        self.twin.reset(hidden_state=from_tensors(self.state["memory"]))
        actions = self.twin(mirrored[len(obs) :]).detach()
        _, actions = self.function(env=None, obs=None, actions=actions)
        self.images.append(actions[len(obs) :])

    def process_env_step(self, obs: Any, rewards: torch.Tensor, dones: torch.Tensor) -> Any:
        """Keep the twin's memory, cleared where an episode ended."""
        self.twin.reset(dones.long())
        memory = as_tensors(self.twin.get_hidden_state())
        self.state = {"memory": [part.clone() for part in memory]}
        return rewards

    def labels(self) -> dict[str, torch.Tensor]:
        """Return the images. Shape: (T, N, A)."""
        return {"mirror": torch.stack(self.images)}

    def losses(self, policy: Any, samples: Any) -> Iterator[Any]:
        """Yield the distance from the image."""
        yield "mirror", self.options.coef, (policy.mean - samples["mirror"]).square().mean(-1)

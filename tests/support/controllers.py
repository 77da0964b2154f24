"""Teachers without a network, by names that a config can have."""

from typing import Any

import numpy as np
import torch
from rsl_rl.models import MLPModel


def expert(obs: Any, gain: float = 1.0) -> torch.Tensor:
    """Return the cue that the recall task rewards; ``privileged`` shows it at every step."""
    return gain * obs["privileged"][:, -1:]


class Playback:
    """Recorded demonstrations: at each step of an episode the next action, from a file or not."""

    def __init__(self, env: Any, actions: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4)) -> None:
        """Take the environment and the recording."""
        self.env, self.recording = env, np.array(actions, dtype=np.float32)
        self.steps = np.zeros(env.num_envs, dtype=np.int64)
        self.actions = np.empty((env.num_envs, 1), dtype=np.float32)
        self.told: list[list[bool]] = []

    def __call__(self, obs: Any) -> np.ndarray:
        """Return the recorded actions, in a buffer that is used again."""
        self.actions[:, 0] = self.recording[np.minimum(self.steps, len(self.recording) - 1)]
        self.steps += 1
        return self.actions

    def reset(self, dones: torch.Tensor) -> None:
        """Begin again where an episode ended."""
        self.told.append(dones.tolist())
        self.steps[dones.numpy()] = 0


class Rule(MLPModel):
    """A model of rsl_rl's interface that needs no parameters."""

    def __init__(self, obs: Any, obs_groups: Any, obs_set: str, output_dim: int) -> None:
        """Take no more than a name."""
        torch.nn.Module.__init__(self)
        self.obs_groups, self.distribution = obs_groups[obs_set], None

    def forward(self, obs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the cue."""
        return expert(obs)


class OfFile(torch.nn.Module):
    """A network that brings its parameters, such as a file of TorchScript."""

    def __init__(self) -> None:
        """Stand in for loading."""
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, obs: Any) -> torch.Tensor:
        """Return actions."""
        return self.layer(obs["privileged"][:, -1:])


def of_wrong_shape(obs: Any) -> torch.Tensor:
    """Return actions of one environment."""
    return expert(obs)[:1]


def writes(obs: Any) -> torch.Tensor:
    """Return actions that are the observations."""
    return obs["privileged"].mul_(0.5)[:, -1:]

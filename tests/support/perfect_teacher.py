"""A teacher of the recall task that always has the answer."""

import torch
from tensordict import TensorDict
from torch import nn


class PerfectTeacher(nn.Module):
    """Gives the right answers, behind rsl_rl's interface of a model without memory."""

    is_recurrent = False

    def __init__(self, *_unused: object) -> None:
        super().__init__()

    def forward(self, obs: TensorDict) -> torch.Tensor:
        return obs["privileged"][:, 2:]

    def reset(self, dones: object = None, hidden_state: object = None) -> None:
        """Do nothing: there is no state."""

    def get_hidden_state(self) -> None:
        """Return None: there is no state."""

"""A narrow layer before the actions: copy this file next to your task, and name it as the model.

``class_name="bottleneck:BottleneckModel", bottleneck_dim=24``, everything else as for RNNModel.
"""

from typing import Any

from rsl_rl.models import RNNModel
from torch import nn


class BottleneckModel(RNNModel):
    """An RNN whose last hidden layer is narrow, with values between -1 and 1."""

    def __init__(
        self, *args: Any, hidden_dims: list[int], bottleneck_dim: int, **kwargs: Any
    ) -> None:
        """Append a layer to ``hidden_dims``; its activation is the hyperbolic tangent."""
        super().__init__(*args, hidden_dims=[*hidden_dims, bottleneck_dim], **kwargs)
        activation = max(n for n, part in enumerate(self.mlp) if not isinstance(part, nn.Linear))
        self.mlp[activation] = nn.Tanh()

"""A camera for the robots of the benchmark, and a model that sees as rsl_rl's users write it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from rsl_rl.models import CNNModel, RNNModel
from rsl_rl.modules import RNN
from tensordict import TensorDict

CAMERA = "camera"
"""The observation group."""
IMAGE_SIZE = (48, 64)
"""Height and width of a depth image, by default."""
CNN = {
    "output_channels": [16, 32, 32],
    "kernel_size": [5, 3, 3],
    "stride": 2,
    "activation": "elu",
}
"""Options of rsl_rl's CNN."""


class SteppedCNNRNNModel(CNNModel):
    """CNN, memory and MLP of rsl_rl in a row, which its Distillation runs step by step.

    Equal options and random numbers give the parameters of ``rsl_tbptt.models.CNNRNNModel``.
    """

    is_recurrent: bool = True

    def __init__(
        self,
        *args: Any,
        rnn_type: str,
        rnn_hidden_dim: int,
        rnn_num_layers: int,
        **options: Any,
    ) -> None:
        """Build the models.

        Args:
            *args: As of rsl_rl's ``CNNModel``.
            rnn_type: ``"lstm"`` or ``"gru"``.
            rnn_hidden_dim: Size of the hidden state.
            rnn_num_layers: Recurrent layers.
            **options: As of rsl_rl's ``CNNModel``.
        """
        self.latent_dim = rnn_hidden_dim
        super().__init__(*args, **options)
        num_features = self.obs_dim + self.cnn_latent_dim
        self.rnn = RNN(num_features, rnn_hidden_dim, rnn_num_layers, rnn_type)

    def get_latent(
        self, obs: TensorDict, masks: torch.Tensor | None = None, hidden_state: Any = None
    ) -> torch.Tensor:
        """Return the memory's outputs, shape (N, H)."""
        return self.rnn(super().get_latent(obs), masks, hidden_state).squeeze(0)

    reset = RNNModel.reset
    get_hidden_state = RNNModel.get_hidden_state
    detach_hidden_state = RNNModel.detach_hidden_state

    def _get_latent_dim(self) -> int:
        return self.latent_dim


class Camera:
    """Random frames, each shown for some steps; environments get theirs at different steps."""

    def __init__(self, num_envs: int, period: int, image_size: Sequence[int] = IMAGE_SIZE) -> None:
        """Begin before the first step.

        Args:
            num_envs: Number of environments N.
            period: Steps for which a frame is shown.
            image_size: Height and width of a frame.
        """
        self._phases = torch.arange(num_envs) % period
        self._period, self._step, self._image_size = period, 0, image_size
        self._frames: torch.Tensor | None = None

    def is_new(self, step: int) -> torch.Tensor:
        """Return which environments see a new frame at a step. Shape: (N,), bool."""
        return (self._phases + step) % self._period == 0

    def see(self, generator: torch.Generator | None) -> torch.Tensor:
        """Return what the next step shows. Shape: (N, 1, H, W).

        Args:
            generator: Of the random numbers.
        """
        fresh = torch.randn(len(self._phases), 1, *self._image_size, generator=generator)
        if self._frames is not None:
            new = self.is_new(self._step).view(-1, 1, 1, 1)
            fresh = torch.where(new, fresh, self._frames)
        self._frames, self._step = fresh, self._step + 1
        return fresh

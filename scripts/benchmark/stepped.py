"""rsl_rl's modules as the camera model that its Distillation runs step by step."""

from typing import Any

import torch
from rsl_rl.models import CNNModel, RNNModel
from rsl_rl.modules import RNN
from tensordict import TensorDict


class SteppedCNNRNNModel(CNNModel):
    """CNN, recurrent layers and MLP of rsl_rl in a row, which its Distillation runs step by step.

    Equal options and random numbers give the parameters of ``rsl_tbptt.models.CNNRNNModel``.
    """

    is_recurrent: bool = True

    def __init__(
        self, *args: Any, rnn_type: str, rnn_hidden_dim: int, rnn_num_layers: int, **options: Any
    ) -> None:
        """Build the model; other arguments are those of rsl_rl's ``CNNModel``."""
        self.latent_dim = rnn_hidden_dim
        super().__init__(*args, **options)
        num_features = self.obs_dim + self.cnn_latent_dim
        self.rnn = RNN(num_features, rnn_hidden_dim, rnn_num_layers, rnn_type)

    def get_latent(
        self, obs: TensorDict, masks: torch.Tensor | None = None, hidden_state: Any = None
    ) -> torch.Tensor:
        """Return the outputs of the recurrent layers, shape (N, H)."""
        return self.rnn(super().get_latent(obs), masks, hidden_state).squeeze(0)

    reset = RNNModel.reset
    get_hidden_state = RNNModel.get_hidden_state
    detach_hidden_state = RNNModel.detach_hidden_state

    def _get_latent_dim(self) -> int:
        return self.latent_dim

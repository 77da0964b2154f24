"""Base of your own recurrent model: you write how observations become features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from rsl_rl.models import MLPModel, RNNModel
from rsl_rl.modules import RNN
from rsl_rl.utils import unpad_trajectories
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.compat.versions import import_function
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.scan import CELLS, Cell, RecurrentLayers, register
from rsl_tbptt.models.one_step import OneStep, StatefulPolicy
from rsl_tbptt.models.protocol import FrameEncoder, Observed


class RecurrentModel(MLPModel):
    """Features of all observation groups, then recurrent layers, then rsl_rl's MLP.

    A subclass overrides :meth:`encode`, and :meth:`build_encoder` for its layers; it may also
    override :attr:`encoders`, :attr:`cell` and :meth:`head`. Without any this is rsl_rl's
    ``RNNModel``. It follows :class:`~rsl_tbptt.models.protocol.WindowedModel`: the forward pass
    calls these parts, and both algorithms replay them window by window. Here ``encode`` joins and
    normalises groups of one dimension; a subclass has to handle others.
    """

    is_recurrent: bool = True

    def __init__(
        self,
        obs: TensorDict,
        obs_groups: dict[str, list[str]],
        obs_set: str,
        output_dim: int,
        hidden_dims: Sequence[int] = (256, 256, 256),
        activation: str = "elu",
        obs_normalization: bool = False,
        distribution_cfg: dict[str, Any] | None = None,
        rnn_type: str = "lstm",
        rnn_hidden_dim: int = 256,
        rnn_num_layers: int = 1,
        **options: Any,
    ) -> None:
        """Build encoder, recurrent layers and head.

        All arguments have names, since some runners only pass those that a signature names.

        Args:
            obs: Observations of some environments, batch size (N,).
            obs_groups: Observation groups by set.
            obs_set: The set that the model reads.
            output_dim: Number of outputs.
            hidden_dims: Sizes of the head's layers.
            activation: Activation of the head.
            obs_normalization: Whether vectors are normalised.
            distribution_cfg: Distribution of the actions.
            rnn_type: ``"lstm"``, ``"gru"``, ``"sru"``, or a cell of your own by its registered name
                or as ``"my_module:MY_CELL"``; see :data:`rsl_tbptt.core.scan.CELLS`.
            rnn_hidden_dim: Size of the hidden state.
            rnn_num_layers: Number of recurrent layers.
            **options: Options of another base class, such as rsl_rl's ``CNNModel``.

        Raises:
            ValueError: If there is no such cell, or if features are not of the parameters' type.
        """
        cell = _cell_of(str(rnn_type))
        self.latent_dim = rnn_hidden_dim
        options |= {"hidden_dims": hidden_dims, "activation": activation}
        options |= {"obs_normalization": obs_normalization, "distribution_cfg": distribution_cfg}
        super().__init__(obs, obs_groups, obs_set, output_dim, **options)
        self.group_shapes = {group: obs[group].shape[1:] for group in obs_groups[obs_set]}
        self.group_dtypes = {group: obs[group].dtype for group in obs_groups[obs_set]}
        self.build_encoder(obs)
        num_features = self._num_features(obs)
        self.rnn: Any = RNN(num_features, rnn_hidden_dim, rnn_num_layers, rnn_type)
        if isinstance(cell, Cell):  # in place of the LSTM that rsl_rl has built
            self.rnn.rnn = cell(num_features, rnn_hidden_dim, rnn_num_layers)

    def build_encoder(self, obs: TensorDict) -> None:
        """Build the layers that :meth:`encode` needs; none by default.

        Args:
            obs: Observations of some environments, batch size (N,).
        """

    @property
    def encoders(self) -> Mapping[str, FrameEncoder]:
        """Frame encoders by observation group; none by default."""
        return {}

    @property
    def cell(self) -> RecurrentLayers:
        """The recurrent layers."""
        return self.rnn.rnn

    def encode(self, obs: Observed) -> torch.Tensor:
        """Return the inputs of the recurrent layers.

        Args:
            obs: Rows of the model's groups; of groups with an encoder, features.

        Returns:
            The groups of one dimension, joined and normalised. Shape: (rows, F).
        """
        return MLPModel.get_latent(self, obs)

    def head(self, latent: torch.Tensor) -> torch.Tensor:
        """Return the distribution's inputs from the recurrent layers' outputs, shape (rows, H)."""
        return self.mlp(latent)

    def forward(
        self,
        obs: TensorDict,
        masks: torch.Tensor | None = None,
        hidden_state: HiddenState = None,
        stochastic_output: bool = False,
    ) -> torch.Tensor:
        """Return actions, (N, A), or the head's outputs without a distribution, as rsl_rl does."""
        output = self.head(self.get_latent(obs, masks, hidden_state))
        if self.distribution is None:
            return output
        if not stochastic_output:
            return self.distribution.deterministic_output(output)
        self.distribution.update(output)
        return self.distribution.sample()

    def get_latent(
        self, obs: TensorDict, masks: torch.Tensor | None = None, hidden_state: HiddenState = None
    ) -> torch.Tensor:
        """Return the recurrent layers' outputs, shape (N, H), as rsl_rl's ``RNNModel`` does."""
        inputs = self.features(obs.flatten()).unflatten(0, obs.batch_size)
        if masks is not None:
            return unpad_trajectories(self.cell(inputs, hidden_state)[0], masks)
        outputs, self.rnn.hidden_state = self.cell(inputs.unsqueeze(0), self.rnn.hidden_state)
        return outputs.squeeze(0)

    def features(self, obs: Mapping[str, torch.Tensor] | TensorDict) -> torch.Tensor:
        """Return the recurrent layers' inputs, shape (rows, F), for raw observations."""
        encoders = self.encoders
        return self.encode(
            {
                group: encoders[group](obs[group]) if group in encoders else obs[group]
                for group in self.group_shapes
            }
        )

    reset = RNNModel.reset
    get_hidden_state = RNNModel.get_hidden_state
    detach_hidden_state = RNNModel.detach_hidden_state

    def as_jit(self) -> nn.Module:
        """Return a module for TorchScript: all groups joined in one tensor, the state inside."""
        return StatefulPolicy(OneStep(self, self._example_groups()))

    def as_onnx(self, verbose: bool = False) -> nn.Module:
        """Return a module for ONNX: inputs by group, the state as inputs and outputs."""
        return OneStep(self, self._example_groups())

    def _example_groups(self) -> dict[str, torch.Tensor]:
        return {
            group: torch.zeros(1, *shape, dtype=self.group_dtypes[group])
            for group, shape in self.group_shapes.items()
        }

    @torch.no_grad()
    def _num_features(self, obs: TensorDict) -> int:
        """Return the number of features that :meth:`encode` returns.

        Raises:
            ValueError: If they are of another type than the parameters.
        """
        parameter = next(self.parameters())
        training, rows = self.training, obs[:1].to(parameter.device)
        self.eval()  # keeps running statistics unchanged
        features = self.features(rows)
        self.train(training)
        if features.dtype != parameter.dtype:
            raise ValueError(
                f"encode() returns features of type {features.dtype} from {self.group_dtypes},"
                f" expected {parameter.dtype}, that of the model's parameters: convert the groups"
                " there or in the environment, by .float()."
            )
        return features.shape[-1]

    def _get_latent_dim(self) -> int:
        """Return the size of the head's input."""
        return self.latent_dim


def _cell_of(rnn_type: str) -> Any:
    """Return the kind of recurrent layers that ``rnn_type`` names.

    Raises:
        ValueError: If there is none.
    """
    known = [name.lower() for name in CELLS]
    if ":" in rnn_type:
        cell: Any = import_function("rnn_type", rnn_type, known)
        if not isinstance(cell, Cell):
            raise ValueError(f"rnn_type is '{rnn_type}', a {type(cell).__name__}, expected a Cell.")
        return register(cell)
    if rnn_type.upper() not in CELLS:
        raise ValueError(
            f"rnn_type is '{rnn_type}', expected one of {known}, or a cell of your own as"
            " 'my_module:MY_CELL'."
        )
    return CELLS[rnn_type.upper()]

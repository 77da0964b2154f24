"""A policy with CNNs, recurrent layers and an MLP."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from rsl_rl.models import CNNModel, MLPModel
from tensordict import TensorDict

from rsl_tbptt.models.protocol import FrameEncoder, Observed
from rsl_tbptt.models.recurrent import RecurrentModel


class CNNRNNModel(RecurrentModel, CNNModel):
    """Images through CNNs, joined with normalised vectors, through recurrent layers and an MLP.

    The options are those of rsl_rl's ``CNNModel`` (``cnn_cfg``, ``cnns``) and ``RNNModel``
    (``rnn_type``, ``rnn_hidden_dim``, ``rnn_num_layers``), and ``image_scale``. Images may have any
    dtype: they are stored unchanged.
    """

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
        cnn_cfg: dict[str, Any] | None = None,
        cnns: Any = None,
        rnn_type: str = "lstm",
        rnn_hidden_dim: int = 256,
        rnn_num_layers: int = 1,
        image_scale: float = 1.0,
    ) -> None:
        """Build encoders, recurrent layers and head.

        Args:
            obs: Observations of some environments, batch size (N,).
            obs_groups: Observation groups by set.
            obs_set: The set that the model reads.
            output_dim: Number of outputs.
            hidden_dims: Sizes of the head's layers.
            activation: Activation of the head.
            obs_normalization: Whether vectors are normalised.
            distribution_cfg: Distribution of the actions.
            cnn_cfg: Config of the CNNs, for all groups of images or by group.
            cnns: CNNs of another model to share.
            rnn_type: Kind of the recurrent layers; see :class:`RecurrentModel`.
            rnn_hidden_dim: Size of the hidden state.
            rnn_num_layers: Number of recurrent layers.
            image_scale: Factor of images before their CNN: 1 / 255 for bytes.

        Raises:
            ValueError: If images are too small for the CNN, a size is not positive, or there is
                nothing to normalise.
        """
        self.image_scale = image_scale
        head = hidden_dims, activation, obs_normalization, distribution_cfg
        memory, cnn = (rnn_type, rnn_hidden_dim, rnn_num_layers), {"cnn_cfg": cnn_cfg, "cnns": cnns}
        try:
            super().__init__(obs, obs_groups, obs_set, output_dim, *head, *memory, **cnn)
        except RuntimeError as error:  # torch's error for layers or inputs with sizes below 1
            shapes = {group: tuple(obs[group].shape[1:]) for group in self.obs_groups_2d}
            raise ValueError(
                f"{type(self).__name__} cannot be built for images of channels, height and width"
                f" {shapes}: {error}. A kernel must not be larger than the image, or"
                " than what earlier layers leave of it: see kernel_size and stride of cnn_cfg."
                " Sizes in hidden_dims, rnn_hidden_dim and rnn_num_layers must be positive, too."
            ) from error
        self._check_scales()

    def _check_scales(self) -> None:
        """Check the scales of vectors and images.

        Raises:
            ValueError: If there is nothing to normalise.
        """
        if self.obs_normalization and not self.obs_groups:
            raise ValueError(
                f"obs_normalization is True, expected False: {type(self).__name__} sees only images"
                f" ({', '.join(self.obs_groups_2d)}), which image_scale scales instead."
            )
        for group in self.obs_groups_2d if self.image_scale == 1.0 else ():
            if self.group_dtypes[group] == torch.uint8:
                warnings.warn(
                    f"image_scale is 1.0, expected 1 / 255 for the images '{group}' of type"
                    " torch.uint8: the CNN sees numbers of up to 255.",
                    stacklevel=3,
                )

    @property
    def encoders(self) -> Mapping[str, FrameEncoder]:
        """The CNN of each group of images."""
        return {group: partial(self._encode_frames, group) for group in self.obs_groups_2d}

    def encode(self, obs: Observed) -> torch.Tensor:
        """Return normalised vectors joined with the images' features. Shape: (rows, F)."""
        features = [obs[group] for group in self.obs_groups_2d]
        vectors = [MLPModel.get_latent(self, obs)] if self.obs_groups else []
        return torch.cat([*vectors, *features], dim=-1)

    def _encode_frames(self, group: str, frames: torch.Tensor) -> torch.Tensor:
        """Return the features, (rows, F), of images, (rows, C, H, W)."""
        cnn = self.cnns[group]
        return cnn(frames.to(next(cnn.parameters()).dtype) * self.image_scale)

"""Benchmark cases with other robots: an agent's observation widths, a camera."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from rsl_rl.models import CNNModel, MLPModel, RNNModel
from rsl_rl.modules import RNN
from tensordict import TensorDict

from rsl_tbptt.models import CNNRNNModel
from scripts.benchmark.case import ACTION_DIM, HIDDEN_DIMS, OBS_DIM, Case, Library

CNN = {"output_channels": [16, 32, 32], "kernel_size": [5, 3, 3], "stride": 2, "activation": "elu"}
"""Options of rsl_rl's CNN."""


@dataclass(frozen=True, kw_only=True)
class Robots(Case):
    """A case with its own robots, models and camera."""

    num_actions: int = ACTION_DIM
    obs_dims: Mapping[str, int] = field(default_factory=lambda: {"policy": OBS_DIM}, hash=False)
    """Widths of the observation groups. A critic sees ``critic`` if it is one of them."""
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    """Other options of rsl_rl's models, by role. A teacher with ``rnn_type`` is recurrent."""
    camera_period: int | None = None
    """Steps for which the student's depth camera shows each frame. None means no camera."""
    image_size: Sequence[int] = field(default=(48, 64), hash=False)
    """Height and width of the images, in pixels."""

    def observations(self, generator: torch.Generator) -> Iterator[TensorDict]:
        """Yield random observations; environments get new frames at different steps."""
        step, frames = 0, torch.zeros(())
        phases = torch.arange(self.num_envs).view(-1, 1, 1, 1)
        while True:
            groups = {
                name: torch.randn(self.num_envs, width, generator=generator)
                for name, width in self.obs_dims.items()
            }
            if self.camera_period:
                fresh = torch.randn(self.num_envs, 1, *self.image_size, generator=generator)
                is_new = (phases + step) % self.camera_period == 0
                groups["camera"] = frames = torch.where(is_new, fresh, frames) if step else fresh
            step += 1
            yield TensorDict(groups, [self.num_envs]).to(self.device)

    def model(self, role: str, library: Library, obs: TensorDict) -> Any:
        """Build one model."""
        options: dict[str, Any] = {"hidden_dims": HIDDEN_DIMS}
        groups = ["critic" if role in self.obs_dims else "policy"]
        if role != "teacher":
            options |= {"obs_normalization": True, **self.memory}
        if role in ("actor", "student"):
            options["distribution_cfg"] = {"class_name": "GaussianDistribution", "init_std": 1.0}
        options |= deepcopy(dict(self.models.get(role, {})))  # rsl_rl changes its arguments
        kind: Any = RNNModel if "rnn_type" in options else MLPModel
        if role == "student" and self.camera_period:
            kind = CNNRNNModel if library == "rsl_tbptt" else SteppedCNNRNNModel
            options["cnn_cfg"], groups = dict(CNN), [*groups, "camera"]
        outputs = 1 if role == "critic" else self.num_actions
        return kind(obs, {role: groups}, role, outputs, **options)

    def __str__(self) -> str:
        """Describe the case in one line."""
        camera = f", CNN, camera period {self.camera_period}" if self.camera_period else ""
        return super().__str__() + camera


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

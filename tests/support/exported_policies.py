"""Policies as their trainers export them; networks of the forms that other libraries write."""

import warnings
from pathlib import Path
from typing import Any

import torch
from rsl_rl.models import MLPModel
from tensordict import TensorDict
from torch import nn
from torch.nn import functional

WIDTHS = {"policy": 4, "command": 3}
GROUPS = {"teacher": ["policy", "command"], "actor": ["policy", "command"]}
NUM_ACTIONS = 2


def observations(num_envs: int = 16) -> TensorDict:
    """Return observations whose scale a normaliser has to remove."""
    generator = torch.Generator().manual_seed(0)
    obs = {name: 3.0 * torch.randn(num_envs, d, generator=generator) for name, d in WIDTHS.items()}
    return TensorDict(obs, [num_envs])


def joined(obs: TensorDict) -> torch.Tensor:
    """Return the groups in the order of the training."""
    return torch.cat([obs[name] for name in WIDTHS], dim=-1)


def trained(distribution: str | None = "GaussianDistribution", **options: Any) -> MLPModel:
    """Return an actor of rsl_rl with a normaliser that has seen observations."""
    torch.manual_seed(1)
    cfg = {"distribution_cfg": {"class_name": distribution}} if distribution else {}
    cfg = {"hidden_dims": [8, 8], "obs_normalization": True, **cfg, **options}
    model: Any = MLPModel(observations(), GROUPS, "actor", NUM_ACTIONS, **cfg)
    model.obs_normalizer.update(2.0 * joined(observations()) + 1.0)
    return model.eval()


def write_onnx(network: nn.Module, path: Path, rows: int = 1, **options: Any) -> str:
    """Write a network of one input, as trained and as torch's old exporter does by default."""
    obs = torch.zeros(rows, sum(WIDTHS.values()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of deprecated exporters
        options = {"opset_version": 13, "dynamo": False, **options}
        torch.onnx.export(network.eval(), (obs,), str(path), input_names=["obs"], **options)
    return str(path)


def write_torchscript(network: nn.Module, path: Path, *, traced: bool = False) -> str:
    """Write a network as TorchScript."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of newer releases of torch
        obs = torch.zeros(1, sum(WIDTHS.values()))
        made = torch.jit.trace(network.eval(), obs) if traced else torch.jit.script(network.eval())
        made.save(str(path))
    return str(path)


def _filled(module: nn.Module) -> nn.Module:
    """Give every parameter and buffer of a layer another value than the initial one."""
    torch.manual_seed(2)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(0.2 + torch.rand_like(tensor))
    return module


class FastSac(nn.Module):
    """The form of FastSAC's actor: a normaliser, slices, layer norm, and a scaled tanh."""

    mean: torch.Tensor
    std: torch.Tensor
    scale: torch.Tensor

    def __init__(self) -> None:
        """Build the layers."""
        super().__init__()
        layers = [nn.Linear(7, 8), nn.LayerNorm(8), nn.SiLU(), nn.Linear(8, NUM_ACTIONS)]
        self.net = _filled(nn.Sequential(*layers))
        self.register_buffer("mean", torch.rand(1, 7))
        self.register_buffer("std", 0.5 + torch.rand(1, 7))
        self.register_buffer("scale", torch.tensor([0.5, 2.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return actions."""
        x = (x - self.mean) / (self.std + 0.01)
        x = torch.cat([x[..., 3:7], x[..., 0:3]], -1)
        return torch.tanh(0.3 * self.net(x)) * self.scale + 0.1


class FlashSac(nn.Module):
    """The form of FlashSAC's actor: batch norms with their statistics, a residual, an RMS norm."""

    def __init__(self) -> None:
        """Build the layers."""
        super().__init__()
        self.norm, self.norm_of_block = _filled(nn.BatchNorm1d(7)), _filled(nn.BatchNorm1d(8))
        self.first = nn.Linear(7, 8, bias=False)
        self.block, self.last = nn.Linear(8, 8, bias=False), nn.Linear(8, NUM_ACTIONS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return actions."""
        x = self.first(self.norm(x))
        x = x + functional.relu(self.norm_of_block(self.block(x)))
        x = x / torch.sqrt(torch.mean(x * x, dim=-1, keepdim=True) + 1e-6)
        return 2.0 * torch.tanh(self.last(x)) - 0.5

    @torch.jit.export
    def reset(self) -> None:
        """Do nothing, as the exported actor does."""


class RlGames(nn.Module):
    """The form of rl_games' actor: clipped statistics of float64, three outputs."""

    mean: torch.Tensor
    var: torch.Tensor

    def __init__(self) -> None:
        """Build the layers."""
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(7, 8), nn.ELU())
        self.mu, self.value = nn.Linear(8, NUM_ACTIONS), nn.Linear(8, 1)
        self.sigma = nn.Parameter(torch.zeros(NUM_ACTIONS))
        self.register_buffer("mean", torch.rand(7, dtype=torch.float64))
        self.register_buffer("var", 0.5 + torch.rand(7, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return means, logarithms of standard deviations, and values."""
        x = (x - self.mean.float()) / torch.sqrt(self.var.float() + 1e-5)
        latent = self.mlp(torch.clamp(x, -5.0, 5.0).flatten(1))
        mu = self.mu(latent)
        return mu, mu * 0.0 + self.sigma, self.value(latent)


class Skrl(nn.Module):
    """The form of skrl's Gaussian model behind its scaler: statistics, a clip, clipped means."""

    mean: torch.Tensor
    var: torch.Tensor

    def __init__(self) -> None:
        """Build the layers."""
        super().__init__()
        self.net = nn.Sequential(nn.Linear(7, 8), nn.ELU(), nn.Linear(8, NUM_ACTIONS))
        self.register_buffer("mean", torch.rand(7))
        self.register_buffer("var", 0.5 + torch.rand(7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return means."""
        x = torch.clamp((x - self.mean) / (torch.sqrt(self.var) + 1e-8), -5.0, 5.0)
        return torch.clamp(self.net(x), min=-1.0, max=1.0)


class Remembers(nn.Module):
    """A recurrent policy as Isaac Lab exports it: the state is a buffer."""

    hidden_state: torch.Tensor

    def __init__(self) -> None:
        """Build the layers."""
        super().__init__()
        self.rnn, self.actor = nn.GRU(7, 4), nn.Linear(4, NUM_ACTIONS)
        self.register_buffer("hidden_state", torch.zeros(1, 1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Advance the state."""
        x, h = self.rnn(x.unsqueeze(0), self.hidden_state)
        self.hidden_state[:] = h
        return self.actor(x.squeeze(0))


class Counts(nn.Module):
    """A policy whose state is an attribute and no buffer, such as the phase of a gait."""

    def __init__(self) -> None:
        """Build the layer."""
        super().__init__()
        self.actor, self.time = nn.Linear(7, NUM_ACTIONS), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Advance the phase."""
        self.time += 1
        return self.actor(x) + self.time


class OneRow(nn.Module):
    """A policy that flattens its single row."""

    def __init__(self) -> None:
        """Build the layer."""
        super().__init__()
        self.actor = nn.Linear(7, NUM_ACTIONS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return one row of actions."""
        return self.actor(x.reshape(7)).reshape(1, 2)


class Centred(nn.Module):
    """A policy that normalises over its rows."""

    def __init__(self) -> None:
        """Build the layer."""
        super().__init__()
        self.actor = nn.Linear(7, NUM_ACTIONS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return actions of each row without the others' mean."""
        return self.actor(x - 0.5 * x.mean(0, keepdim=True))

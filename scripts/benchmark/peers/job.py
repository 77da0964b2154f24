"""The job that this library and its peers are given, and what a peer is to the benchmark."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from rsl_rl.modules import MLP
from torch import nn
from torch.nn import functional

from rsl_tbptt.bench.case import ACTION_DIM, HIDDEN_DIMS, OBS_DIM
from rsl_tbptt.core import Rollout, accumulate_group, losses, recurrent_scan, tbptt_schedule
from rsl_tbptt.core.accumulate import (
    Outputs,
    SampleLosses,
    best_num_micro_batches,
    bytes_per_sample,
)
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.rollout import Labels


@dataclass(frozen=True, kw_only=True)
class Job:
    """The gradient of the mean squared error over a rollout of T steps and N environments.

    The state is zero before step 0 and cleared where an episode starts; the gradient flows back
    through the whole rollout. No optimiser.
    """

    rnn_type: str = "lstm"
    num_envs: int
    num_steps: int
    done_rate: float
    rnn_hidden_dim: int
    device: str = "cpu"

    def __str__(self) -> str:
        """Say what is measured."""
        return (
            f"{self.rnn_type.upper()}-{self.rnn_hidden_dim}, {self.num_envs} environments,"
            f" {self.num_steps} steps, done rate {self.done_rate}, float32, {self.device}"
        )

    def rollout(self) -> Rollout:
        """Draw the rollout, the same for equal jobs: obs (T, N, D), labels (T, N, A)."""
        generator = torch.Generator().manual_seed(0)
        shape = (self.num_steps, self.num_envs)
        obs = torch.randn(*shape, OBS_DIM, generator=generator).to(self.device)
        labels = torch.randn(*shape, ACTION_DIM, generator=generator).to(self.device)
        dones = (torch.rand(shape, generator=generator) < self.done_rate).to(self.device)
        return Rollout.from_dones(obs, {"actions": labels}, dones)

    def by_env(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return obs (N, T, D), labels (N, T, A) and episode starts (N, T) as peers keep them."""
        rollout = self.rollout()
        tensors = (rollout.obs, rollout.labels["actions"], rollout.episode_starts)
        obs, labels, starts = (tensor.transpose(0, 1).contiguous() for tensor in tensors)
        return obs, labels, starts


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A library that is ready to do the job."""

    how: str
    """Version, and which of its functions do the job."""
    parameters: list[nn.Parameter]
    """In the order of ``Network(job).parameters()``."""
    backward: Callable[[], None]
    """Does the job: adds the gradient to the parameters' ``.grad``."""


class Network(nn.Module):
    """Recurrent layer and MLP: rsl_rl's RNNModel without its normalisation and distribution."""

    def __init__(self, job: Job, *, batch_first: bool = False) -> None:
        """Draw the weights.

        Args:
            job: The job.
            batch_first: Whether the recurrent layer takes (N, T, D), as most peers' do.
        """
        super().__init__()
        rnn = {"lstm": nn.LSTM, "gru": nn.GRU}[job.rnn_type]
        self.rnn = rnn(OBS_DIM, job.rnn_hidden_dim, batch_first=batch_first)
        self.mlp = MLP(job.rnn_hidden_dim, ACTION_DIM, HIDDEN_DIMS, "elu")
        self.to(job.device)


def build_ours(job: Job) -> Peer:
    """Do the job as the algorithms of this library do an update: one window, cut by environment."""
    model, rollout = Network(job), job.rollout()
    (group,) = tbptt_schedule(job.num_steps, gradient_length=job.num_steps)
    sizes = (job.num_envs, job.num_steps, bytes_per_sample(model))
    num_parts = best_num_micro_batches(*sizes, torch.device(job.device))

    def replay(
        obs: torch.Tensor, state: HiddenState, episode_starts: torch.Tensor
    ) -> tuple[tuple[torch.Tensor, ...], HiddenState]:
        latent, state = recurrent_scan(model.rnn, obs, state, episode_starts)
        return (model.mlp(latent),), state

    def loss(outputs: Outputs, labels: Labels) -> SampleLosses:
        return SampleLosses(losses.mse(outputs[0], labels["actions"]))

    def backward() -> None:
        divisor = job.num_steps * job.num_envs
        accumulate_group(group, rollout, None, replay, loss, divisor, num_parts)

    how = f"accumulate_group with recurrent_scan, {num_parts} micro-batches"
    return Peer(how=how, parameters=list(model.parameters()), backward=backward)


def build_peer(
    how: str, model: list[nn.Module], outputs: Callable[[], torch.Tensor], labels: torch.Tensor
) -> Peer:
    """Make a peer of what computes its outputs.

    Args:
        how: Version, and which of its functions do the job.
        model: What holds the parameters, in the order of ``Network(job).parameters()``.
        outputs: Runs the network. Returns the shape of ``labels``.
        labels: What the outputs are compared with. Shape: (..., A).

    Returns:
        The peer.
    """
    return Peer(
        how=how,
        parameters=[parameter for layer in model for parameter in layer.parameters()],
        backward=lambda: functional.mse_loss(outputs(), labels).backward(),
    )

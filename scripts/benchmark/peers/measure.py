"""Time one gradient of each library in turn, in one process, after a check of equality.

The gradient is that of the mean squared error over a rollout of T steps and N environments. The
state is zero before step 0 and cleared where an episode starts; the gradient flows back through the
whole rollout. There is no optimiser.
"""

import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rsl_rl.modules import MLP
from tabulate import tabulate
from torch import nn
from torch.nn import functional

from rsl_tbptt.core import Rollout, accumulate_group, losses, recurrent_scan, tbptt_schedule
from rsl_tbptt.core.accumulate import SampleLosses, best_num_micro_batches, bytes_per_sample
from scripts.benchmark.case import (
    ACTION_DIM,
    HIDDEN_DIMS,
    OBS_DIM,
    Case,
    milliseconds,
    seconds_of,
    spread,
)

PEERS = {
    "TorchRL, pad": "scripts.benchmark.peers.torchrl:pad",
    "TorchRL, scan": "scripts.benchmark.peers.torchrl:scan",
    "TorchRL, triton": "scripts.benchmark.peers.torchrl:triton",
    "sb3-contrib, episodes": "scripts.benchmark.peers.sb3:sequences",
    "sb3-contrib, rollouts": "scripts.benchmark.peers.sb3:rollouts",
    "skrl": "scripts.benchmark.peers.skrl:examples",
}
"""Functions that build a peer for a case, by the peer's name."""

FOLDER = Path(__file__).resolve().parents[3] / ".peers"
"""Folder where ``scripts/ci/bootstrap.sh peers`` puts the libraries."""

TOLERANCE = 1e-4
"""Largest relative difference of a parameter's gradient in float32. Sums in another order cause
about 1e-6; one missing reset or a truncated episode causes 1e-2 or more."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A library that is ready to compute the gradient."""

    how: str
    """Version and functions that are used."""
    parameters: list[nn.Parameter]
    """Parameters in the order of ``Network(case).parameters()``."""
    backward: Callable[[], object]
    """Adds the gradient to the parameters' ``.grad``."""

    def gradients(self) -> list[torch.Tensor]:
        """Compute the gradient from zero."""
        for parameter in self.parameters:
            parameter.grad = None
        self.backward()
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]


class Network(nn.Module):
    """Recurrent layer and MLP: rsl_rl's RNNModel without its normalisation and distribution."""

    def __init__(self, case: Case, *, batch_first: bool = False) -> None:
        """Draw the weights; ``batch_first`` layers take (N, T, D), as most peers' do."""
        super().__init__()
        rnn = {"lstm": nn.LSTM, "gru": nn.GRU}[case.rnn_type]
        self.rnn = rnn(OBS_DIM, case.rnn_hidden_dim, batch_first=batch_first)
        self.mlp = MLP(case.rnn_hidden_dim, ACTION_DIM, HIDDEN_DIMS, "elu")
        self.to(case.device)


def rollout(case: Case) -> Rollout:
    """Draw the rollout, the same for equal cases: obs (T, N, D), labels (T, N, A)."""
    generator = torch.Generator().manual_seed(0)
    shape = (case.num_steps, case.num_envs)
    obs = torch.randn(*shape, OBS_DIM, generator=generator).to(case.device)
    labels = torch.randn(*shape, ACTION_DIM, generator=generator).to(case.device)
    dones = (torch.rand(shape, generator=generator) < case.done_rate).to(case.device)
    return Rollout.from_dones(obs, {"actions": labels}, dones)


def by_env(case: Case) -> list[torch.Tensor]:
    """Return obs (N, T, D), labels (N, T, A) and episode starts (N, T) as peers keep them."""
    drawn = rollout(case)
    tensors = (drawn.obs, drawn.labels["actions"], drawn.episode_starts)
    return [tensor.transpose(0, 1).contiguous() for tensor in tensors]


def build_peer(
    how: str, model: list[nn.Module], outputs: Callable[[], torch.Tensor], labels: torch.Tensor
) -> Peer:
    """Make a peer from a function that computes its outputs.

    Args:
        how: Version and functions that are used.
        model: Modules that hold the parameters, in the order of ``Network(case).parameters()``.
        outputs: Runs the network. Returns the shape of ``labels``.
        labels: Targets of the outputs. Shape: (..., A).
    """
    return Peer(
        how=how,
        parameters=[parameter for layer in model for parameter in layer.parameters()],
        backward=lambda: functional.mse_loss(outputs(), labels).backward(),
    )


def build_ours(case: Case) -> Peer:
    """Compute the gradient as our algorithms do: one window, cut by environment."""
    model, drawn = Network(case), rollout(case)
    (group,) = tbptt_schedule(case.num_steps, gradient_length=case.num_steps)
    sizes = (case.num_envs, case.num_steps, bytes_per_sample(model))
    num_micro_batches = best_num_micro_batches(*sizes, torch.device(case.device))
    divisor = case.num_steps * case.num_envs

    def replay(obs: torch.Tensor, state: Any, episode_starts: torch.Tensor) -> Any:
        latent, state = recurrent_scan(model.rnn, obs, state, episode_starts)
        return (model.mlp(latent),), state

    def loss(outputs: Any, labels: Any) -> SampleLosses:
        return SampleLosses(losses.mse(outputs[0], labels["actions"]))

    def backward() -> None:
        accumulate_group(group, drawn, None, replay, loss, divisor, num_micro_batches)

    return Peer(
        how=f"accumulate_group with recurrent_scan, {num_micro_batches} micro-batches",
        parameters=list(model.parameters()),
        backward=backward,
    )


def table(case: Case, num_pairs: int) -> str:
    """Time every peer that computes our gradient.

    Returns:
        Markdown. If a peer cannot do it, is not installed or computes another gradient, the table
        shows the reason instead of times.
    """
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))  # last, so that the environment's own packages come first
    ours = _with_weights(build_ours(case), case)
    rows = []
    for name, path in PEERS.items():
        try:
            cells, note = _cells(ours, path, case, num_pairs)
        except Exception as reason:  # an error inside one peer must not hide the others
            remedy = " (`make .peers/.installed` installs the peers)"
            note = f"not timed: {reason}{remedy if isinstance(reason, ImportError) else ''}"
            cells = ["-"] * 4
        rows.append([name, *cells, " ".join(note.split()).replace("|", "\\|")])
    heads = ("peer", "gradient", "rsl_tbptt", "ratio", "gradient differs by", "how")
    printed = tabulate(rows, heads, "github", disable_numparse=True)
    return f"{case}\n\n{printed}\n\nrsl_tbptt: {ours.how}."


def _cells(ours: Peer, path: str, case: Case, num_pairs: int) -> tuple[list[str], str]:
    peer = _with_weights(pkgutil.resolve_name(path)(case), case)
    error = gradient_error(ours, peer)
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(num_pairs):  # the check was the warm-up
        for library, taken in zip((peer, ours), seconds, strict=True):
            taken.append(seconds_of(library.gradients, case.device))
    low, ratio, high = spread(seconds[1], seconds[0])
    times = [milliseconds(median(taken)) for taken in seconds]
    return [*times, f"{ratio:.2f} ({low:.2f} to {high:.2f})", f"{error:.0e}"], peer.how


def gradient_error(ours: Peer, peer: Peer) -> float:
    """Return the largest relative difference of a parameter's gradient, in full precision.

    Raises:
        ValueError: If it is not below ``TOLERANCE``.
    """
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        pairs = list(zip(ours.gradients(), peer.gradients(), strict=True))
    # torch's max: Python's ignores a NaN
    error = torch.stack([(b - a).norm() / a.norm() for a, b in pairs]).max().item()
    if not error < TOLERANCE:
        raise ValueError(
            f"gradient_error is {error:.1e}, expected less than {TOLERANCE:.0e}: times of different"
            " computations are not compared."
        )
    return error


def _with_weights(peer: Peer, case: Case) -> Peer:
    """Give the peer the same weights as every other peer."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter, weight in zip(peer.parameters, Network(case).parameters(), strict=True):
            parameter.copy_(weight)
    return peer

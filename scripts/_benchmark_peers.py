"""Time of one gradient beside other libraries', alternating in one process, after a check."""

from __future__ import annotations

import pkgutil
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from _peer_job import Job, Peer, build_ours, network

PEERS = {
    "TorchRL, pad": "_peer_torchrl:pad",
    "TorchRL, scan": "_peer_torchrl:scan",
    "TorchRL, triton": "_peer_torchrl:triton",
    "sb3-contrib, episodes": "_peer_sb3:sequences",
    "sb3-contrib, rollouts": "_peer_sb3:rollouts",
    "skrl": "_peer_skrl:examples",
}
"""By name: the function that builds the peer for a job."""

FOLDER = Path(__file__).resolve().parents[1] / ".peers"
"""Where ``scripts/bootstrap.sh peers`` puts the libraries."""

TOLERANCE = 1e-4
"""Relative, in float32, of each parameter's gradient: sums in another order leave about 1e-6, one
missing reset or a truncated episode 1e-2 and more."""


@dataclass(frozen=True, kw_only=True)
class Times:
    """Times in seconds, and the peer's over ours in each pair."""

    ours: float
    """Median."""
    peer: float
    """Median."""
    ratio: float
    """Median of the pairs."""
    lowest_ratio: float
    highest_ratio: float
    gradient_error: float
    """Largest relative difference of a parameter's gradient from ours."""


@dataclass(frozen=True, kw_only=True)
class PeerSpeed:
    """What was found out about a peer."""

    name: str
    note: str
    """How it did the job, or why it was not timed."""
    times: Times | None


def measure_peers(job: Job, num_pairs: int) -> list[PeerSpeed]:
    """Time every peer that does the job and computes our gradient.

    Args:
        job: The job.
        num_pairs: Gradients of either library, for each peer.

    Returns:
        One entry per peer; those that cannot do the job, are not installed, or compute another
        gradient have no times.
    """
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))  # last: what the environment has comes from there
    ours = build_ours(job)
    _set_weights(ours, job)
    return [_measure_peer(name, path, ours, job, num_pairs) for name, path in PEERS.items()]


def _measure_peer(name: str, path: str, ours: Peer, job: Job, num_pairs: int) -> PeerSpeed:
    try:
        build: Callable[[Job], Peer] = pkgutil.resolve_name(path)
        peer = build(job)
        _set_weights(peer, job)
        error = check_gradient(ours, peer)
    except ImportError as missing:
        note = f"not timed: {missing} (`make .peers/.installed` installs the peers)"
        return PeerSpeed(name=name, note=note, times=None)
    except Exception as reason:  # whatever goes wrong inside a peer must not hide the others
        return PeerSpeed(name=name, note=f"not timed: {reason}", times=None)
    return PeerSpeed(name=name, note=peer.how, times=_time(ours, peer, job, num_pairs, error))


def check_gradient(ours: Peer, peer: Peer) -> float:
    """Compare the gradients of both, in full precision.

    Returns:
        The largest relative difference of a parameter's gradient.

    Raises:
        ValueError: If it is not below ``TOLERANCE``.
    """
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        pairs = list(zip(_gradients(ours), _gradients(peer), strict=True))
    # torch's max, as Python's passes over a NaN
    error = torch.stack([(b - a).norm() / a.norm() for a, b in pairs]).max().item()
    if not error < TOLERANCE:
        raise ValueError(
            f"gradient_error is {error:.1e}, expected less than {TOLERANCE:.0e}: times of different"
            " computations are not compared."
        )
    return error


def _gradients(peer: Peer) -> list[torch.Tensor]:
    for parameter in peer.parameters:
        parameter.grad = None
    peer.backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in peer.parameters]


def _time(ours: Peer, peer: Peer, job: Job, num_pairs: int, error: float) -> Times:
    """Time gradients of both in turn; the check was the warm-up."""
    pairs = [(_seconds(ours, job), _seconds(peer, job)) for _ in range(num_pairs)]
    ratios = [theirs / mine for mine, theirs in pairs]
    return Times(
        ours=statistics.median(mine for mine, _ in pairs),
        peer=statistics.median(theirs for _, theirs in pairs),
        ratio=statistics.median(ratios),
        lowest_ratio=min(ratios),
        highest_ratio=max(ratios),
        gradient_error=error,
    )


def _seconds(peer: Peer, job: Job) -> float:
    for parameter in peer.parameters:
        parameter.grad = None
    start = _now(job)
    peer.backward()
    return _now(job) - start


def _now(job: Job) -> float:
    if job.device != "cpu":
        torch.cuda.synchronize(job.device)
    return time.perf_counter()


def _set_weights(peer: Peer, job: Job) -> None:
    """Give the peer the weights that every peer has."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter, weight in zip(peer.parameters, network(job).parameters(), strict=True):
            parameter.copy_(weight)

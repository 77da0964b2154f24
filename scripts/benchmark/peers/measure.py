"""Time of one gradient beside other libraries', alternating in one process, after a check."""

import pkgutil
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from rsl_tbptt.bench.speed import Speed, seconds_of
from rsl_tbptt.bench.tables import markdown, milliseconds
from scripts.benchmark.peers.job import Job, Network, Peer, build_ours

PEERS = {
    "TorchRL, pad": "scripts.benchmark.peers.torchrl:pad",
    "TorchRL, scan": "scripts.benchmark.peers.torchrl:scan",
    "TorchRL, triton": "scripts.benchmark.peers.torchrl:triton",
    "sb3-contrib, episodes": "scripts.benchmark.peers.sb3:sequences",
    "sb3-contrib, rollouts": "scripts.benchmark.peers.sb3:rollouts",
    "skrl": "scripts.benchmark.peers.skrl:examples",
}
"""By name: the function that builds the peer for a job."""

FOLDER = Path(__file__).resolve().parents[3] / ".peers"
"""Where ``scripts/ci/bootstrap.sh peers`` puts the libraries."""

TOLERANCE = 1e-4
"""Relative, in float32, of each parameter's gradient: sums in another order leave about 1e-6, one
missing reset or a truncated episode 1e-2 and more."""


@dataclass(frozen=True, kw_only=True)
class PeerSpeed:
    """What was found out about a peer."""

    name: str
    note: str
    """How it did the job, or why it was not timed."""
    speed: Speed | None = None
    gradient_error: float = 0.0
    """Largest relative difference of a parameter's gradient from ours."""


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
    ours = _with_weights(build_ours(job), job)
    return [_measure_peer(name, path, ours, job, num_pairs) for name, path in PEERS.items()]


def _measure_peer(name: str, path: str, ours: Peer, job: Job, num_pairs: int) -> PeerSpeed:
    try:
        peer = _with_weights(pkgutil.resolve_name(path)(job), job)
        error = check_gradient(ours, peer)
    except ImportError as missing:
        note = f"not timed: {missing} (`make .peers/.installed` installs the peers)"
        return PeerSpeed(name=name, note=note)
    except Exception as reason:  # whatever goes wrong inside a peer must not hide the others
        return PeerSpeed(name=name, note=f"not timed: {reason}")
    speed = Speed(ours=[], theirs=[])
    for _ in range(num_pairs):  # the check was the warm-up
        for library, seconds in ((ours, speed.ours), (peer, speed.theirs)):
            _forget(library)
            seconds.append(seconds_of(library.backward, job.device))
    return PeerSpeed(name=name, note=peer.how, speed=speed, gradient_error=error)


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
    _forget(peer)
    peer.backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in peer.parameters]


def _forget(peer: Peer) -> None:
    for parameter in peer.parameters:
        parameter.grad = None


def _with_weights(peer: Peer, job: Job) -> Peer:
    """Give the peer the weights that every peer has."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter, weight in zip(peer.parameters, Network(job).parameters(), strict=True):
            parameter.copy_(weight)
    return peer


def table(speeds: list[PeerSpeed]) -> str:
    """Return a Markdown table, with the reason where a peer has no times."""
    rows = []
    for peer in speeds:
        cells = ["-"] * 6
        if peer.speed is not None:
            ours, theirs = median(peer.speed.ours), median(peer.speed.theirs)
            ratios = (peer.speed.ratio, min(peer.speed.ratios), max(peer.speed.ratios))
            cells = [milliseconds(theirs), milliseconds(ours)]
            cells += [*(f"{ratio:.2f}" for ratio in ratios), f"{peer.gradient_error:.0e}"]
        rows.append([peer.name, *cells, " ".join(peer.note.split()).replace("|", "\\|")])
    heads = ("peer", "gradient", "rsl_tbptt", "ratio", "lowest", "highest")
    return markdown((*heads, "gradient differs by", "how"), rows)

"""TorchRL as a peer: LSTMModule or GRUModule in recurrent mode, one function per backend."""

# Peers lie beside the environment, where no type checker finds them.
# pyright: reportMissingImports=false

from __future__ import annotations

import logging
from importlib.metadata import version

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.modules import GRUModule, LSTMModule

from scripts.benchmark.peers.job import Job, Network, Peer, build_peer

MODULES = {"lstm": (LSTMModule, ["h", "c"]), "gru": (GRUModule, ["h"])}
"""Module and the names of its states."""

# torch logs every graph that the scan backend builds, at level DEBUG whatever the user's level.
logging.getLogger("torch._higher_order_ops.partitioner").disabled = True


def pad(job: Job) -> Peer:
    """Cut the rollout into episodes and pack them: the default."""
    return _build(job, "pad", 'recurrent_backend="pad" (the default), which packs the episodes')


def scan(job: Job) -> Peer:
    """Loop over the steps in torch's scan operator."""
    return _build(job, "scan", 'recurrent_backend="scan", uncompiled')


def triton(job: Job) -> Peer:
    """Run TorchRL's Triton kernels.

    Raises:
        NotImplementedError: On CPU.
    """
    if job.device == "cpu":
        raise NotImplementedError('recurrent_backend="triton" needs a GPU')
    return _build(job, "triton", 'recurrent_backend="triton"')


def _build(job: Job, backend: str, description: str) -> Peer:
    source = Network(job, batch_first=True)
    module, states = MODULES[job.rnn_type]
    rnn = module(
        in_keys=["obs", *states],
        out_keys=["latent", *(("next", state) for state in states)],
        recurrent_backend=backend,
        default_recurrent_mode=True,
        **{job.rnn_type: source.rnn},
    )
    mlp = TensorDictModule(source.mlp, in_keys=["latent"], out_keys=["actions"])
    policy = TensorDictSequential(rnn, mlp)
    obs, labels, starts = job.by_env()

    def outputs() -> torch.Tensor:
        inputs = {"obs": obs, "is_init": starts.unsqueeze(-1)}
        return policy(TensorDict(inputs, batch_size=starts.shape))["actions"]

    how = f"{version('torchrl')}: {module.__name__} in recurrent mode, {description}"
    return build_peer(how, [source], outputs, labels)

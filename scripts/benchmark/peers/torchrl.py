"""TorchRL as a peer: LSTMModule or GRUModule in recurrent mode, one function per backend."""

# Peers are installed outside the environment, so the type checker does not find them.
# pyright: reportMissingImports=false

import logging
from functools import partial
from importlib.metadata import version

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.modules import GRUModule, LSTMModule

from scripts.benchmark.case import Case
from scripts.benchmark.peers.measure import Network, Peer, build_peer, by_env

MODULES = {"lstm": (LSTMModule, ["h", "c"]), "gru": (GRUModule, ["h"])}
"""Module and the names of its states."""

# torch logs every graph that the scan backend builds at level DEBUG, ignoring the user's level.
logging.getLogger("torch._higher_order_ops.partitioner").disabled = True


def build(case: Case, backend: str, remark: str) -> Peer:
    """Run the module with one of its backends.

    Raises:
        NotImplementedError: If the backend needs a GPU and gets none.
    """
    if backend == "triton" and case.device == "cpu":
        raise NotImplementedError('recurrent_backend="triton" needs a GPU')
    source = Network(case, batch_first=True)
    module, states = MODULES[case.rnn_type]
    rnn = module(
        in_keys=["obs", *states],
        out_keys=["latent", *(("next", state) for state in states)],
        recurrent_backend=backend,
        default_recurrent_mode=True,
        **{case.rnn_type: source.rnn},
    )
    mlp = TensorDictModule(source.mlp, in_keys=["latent"], out_keys=["actions"])
    policy = TensorDictSequential(rnn, mlp)
    obs, labels, starts = by_env(case)

    def outputs() -> torch.Tensor:
        inputs = {"obs": obs, "is_init": starts.unsqueeze(-1)}
        return policy(TensorDict(inputs, batch_size=starts.shape))["actions"]

    how = f'{module.__name__} in recurrent mode, recurrent_backend="{backend}"{remark}'
    return build_peer(f"{version('torchrl')}: {how}", [source], outputs, labels)


pad = partial(build, backend="pad", remark=" (the default), which packs the episodes")
scan = partial(build, backend="scan", remark=", uncompiled")
triton = partial(build, backend="triton", remark="")

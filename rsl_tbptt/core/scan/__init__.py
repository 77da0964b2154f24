"""Recurrent layers over a window with per-environment resets: one signature, engines by name.

``recurrent_scan`` is the front door. What scans keep between windows is given back by
``free_buffers`` and set aside by ``recordings_aside``, whichever engine keeps it.
"""

from collections.abc import Callable

import torch
from torch import nn

from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.scan import (
    compiled,
    compiler,
    cuda_cells,
    cuda_graphs,
    fused,
    reference,
    segments,
    selection,
    torchrl_triton,
)
from rsl_tbptt.core.scan.cuda_graphs import recordings_aside
from rsl_tbptt.core.scan.workspace import free_buffers

__all__ = [
    "CUDA_ENGINES",
    "ENGINES",
    "check_supported",
    "free_buffers",
    "is_supported",
    "recordings_aside",
    "recurrent_scan",
    "resolve_engine",
]

ENGINES: dict[str, Callable[..., tuple[torch.Tensor, HiddenState]]] = {
    "compiled": compiled.scan,
    "fused": fused.scan,
    "reference": reference.scan,
    "segments": segments.scan,
    "cuda_cells": cuda_cells.scan,
    "cuda_graphs": cuda_graphs.scan,
    "torchrl": torchrl_triton.scan,
}
"""``reference`` defines what is correct; every other engine equals it in values and gradients."""

CUDA_ENGINES = ("cuda_cells", "cuda_graphs", "torchrl")
"""Engines whose kernels exist for CUDA alone."""

_CANDIDATES = {"cpu": ("compiled", "fused"), "cuda": ("cuda_graphs", "cuda_cells", "fused")}
"""What "auto" tries by type of device, the fastest expected first; elsewhere it is ``fused``."""


def recurrent_scan(
    rnn: nn.LSTM | nn.GRU,
    inputs: torch.Tensor,
    state: HiddenState,
    episode_starts: torch.Tensor,
    engine: str = "auto",
) -> tuple[torch.Tensor, HiddenState]:
    """Run ``rnn`` over one window, clearing an environment's state where its episode starts.

    Gradients reach ``state``; pass a detached state to truncate them at the start of the window. No
    value and no gradient crosses an episode start. The cost does not depend on how many there are.

    Args:
        rnn: Recurrent layers in time-major order, unidirectional, without dropout.
        inputs: RNN inputs. Shape: (T, N, D).
        state: State before step 0. Shape: (L, N, H), a pair of them for an LSTM, or None for zeros.
        episode_starts: True where step t is the first of an episode. Shape: (T, N), bool.
        engine: A name in ``ENGINES``, or "auto" for the one expected to be the fastest on the
            device of ``inputs``.

    Returns:
        The top layer's outputs, shape (T, N, H), and the state after step T-1.

    Raises:
        ValueError: If ``episode_starts`` does not have the leading shape of ``inputs``, or
            ``engine`` is unknown or not for the device of ``inputs``.
        NotImplementedError: If ``rnn`` has a form that is not supported.

    References:
        Williams and Peng (1990), Neural Computation 2(4): BPTT(h; h').
    """
    check_supported(rnn)
    if episode_starts.shape != inputs.shape[:2]:
        raise ValueError(
            f"episode_starts has shape {tuple(episode_starts.shape)}, expected"
            f" {tuple(inputs.shape[:2])}: the steps and environments of the inputs."
        )
    if engine in CUDA_ENGINES and not inputs.is_cuda:
        raise ValueError(
            f"scan_engine is '{engine}', expected one of"
            f" {['auto', *(name for name in ENGINES if name not in CUDA_ENGINES)]} on"
            f" {inputs.device}: it needs a CUDA device."
        )
    if engine == "compiled" and inputs.device.type != "cpu":
        raise ValueError(
            f"scan_engine is 'compiled', expected 'auto' or another engine on {inputs.device}: its"
            " functions read the memory of the CPU."
        )
    if state is None:
        weight = rnn.all_weights[0][0]
        zeros = weight.new_zeros(rnn.num_layers, inputs.shape[1], rnn.hidden_size)
        state = (zeros, zeros) if isinstance(rnn, nn.LSTM) else zeros
    return resolve_engine(engine)(rnn, inputs, state, episode_starts)


def resolve_engine(engine: str) -> Callable[..., tuple[torch.Tensor, HiddenState]]:
    """Return the engine of that name.

    Raises:
        ValueError: If there is none.
    """
    if engine == "auto":
        return _scan_automatically
    if engine not in ENGINES:
        raise ValueError(f"scan_engine is '{engine}', expected one of {['auto', *ENGINES]}.")
    return ENGINES[engine]


def _scan_automatically(
    rnn: nn.LSTM | nn.GRU, inputs: torch.Tensor, state: HiddenState, episode_starts: torch.Tensor
) -> tuple[torch.Tensor, HiddenState]:
    """Run the engine chosen for the device."""
    names = _CANDIDATES.get(inputs.device.type, ("fused",))
    if compiler.compiler() is None:
        names = [name for name in names if name != "compiled"]
    candidates = {name: ENGINES[name] for name in names}
    name = selection.first_that_works(rnn, inputs.device, candidates)
    return ENGINES[name](rnn, inputs, state, episode_starts)


def is_supported(rnn: object) -> bool:
    """Return whether ``recurrent_scan`` can run ``rnn``."""
    return (
        isinstance(rnn, (nn.LSTM, nn.GRU))
        and not (rnn.bidirectional or rnn.batch_first or rnn.proj_size)
        and (rnn.dropout == 0 or rnn.num_layers == 1)
    )


def check_supported(rnn: nn.Module) -> None:
    """Check that ``recurrent_scan`` can run ``rnn``.

    Raises:
        NotImplementedError: If it cannot.
    """
    if not is_supported(rnn):
        raise NotImplementedError(
            f"rnn is {rnn}, expected a time-major, unidirectional nn.LSTM or nn.GRU without"
            " dropout and projections."
        )

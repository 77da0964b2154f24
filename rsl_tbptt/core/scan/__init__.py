"""Recurrent layers over a window with per-environment resets: one signature, engines by name."""

from collections.abc import Callable

import torch
from torch import nn

from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.scan import fused, reference

ENGINES: dict[str, Callable[..., tuple[torch.Tensor, HiddenState]]] = {
    "fused": fused.scan,
    "reference": reference.scan,
}
"""``reference`` defines what is correct; every other engine equals it in values and gradients."""

_CPU_BLOCK = 256
"""Environments whose forward and backward pass share the CPU's caches (larger blocks stream every
buffer through memory, smaller ones repack the weights too often)."""


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
        engine: A name in ``ENGINES``, or "auto" for the fastest.

    Returns:
        The top layer's outputs, shape (T, N, H), and the state after step T-1.

    Raises:
        ValueError: If ``episode_starts`` does not have the leading shape of ``inputs``, or
            ``engine`` is unknown.
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
    name = "fused" if engine == "auto" else engine
    if name not in ENGINES:
        raise ValueError(f"scan_engine is '{engine}', expected one of {['auto', *ENGINES]}.")
    return ENGINES[name]


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


def num_cache_blocks(num_envs: int, device: torch.device) -> int:
    """Return into how many environment chunks a scan on ``device`` is best cut.

    Args:
        num_envs: Number of environments N.
        device: Where the scan runs.

    Returns:
        1 on accelerators; on CPU the number of balanced blocks of about 256 environments, none
        smaller than 128 unless N is.
    """
    return max(1, round(num_envs / _CPU_BLOCK)) if device.type == "cpu" else 1

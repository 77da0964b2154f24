"""Recurrent layers over a window with per-environment resets: one signature, engines by name.

``recurrent_scan`` is the front door, ``registry.py`` lists what is behind it. What scans keep
between windows is given back by ``free_buffers`` and set aside by ``recordings_aside``, whichever
engine keeps it; what they prepare of the weights is kept under ``unchanged_weights``.
"""

import torch
from torch import nn

from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.scan.cpu.weights import unchanged_weights
from rsl_tbptt.core.scan.cpu.workspace import free_buffers
from rsl_tbptt.core.scan.cuda.graphs import bytes_beyond_tensors, recordings_aside
from rsl_tbptt.core.scan.inputs import Held, HeldInputs
from rsl_tbptt.core.scan.registry import (
    CELLS,
    ENGINES,
    Cell,
    Engine,
    candidates,
    cell_of,
    check_engine,
    resolve_engine,
)
from rsl_tbptt.core.scan.selection import first_that_works

__all__ = [
    "CELLS",
    "ENGINES",
    "Cell",
    "Engine",
    "Held",
    "HeldInputs",
    "bytes_beyond_tensors",
    "check_supported",
    "free_buffers",
    "is_supported",
    "recordings_aside",
    "recurrent_scan",
    "resolve_engine",
    "unchanged_weights",
]


def recurrent_scan(
    rnn: nn.RNNBase,
    inputs: torch.Tensor | HeldInputs,
    state: HiddenState,
    episode_starts: torch.Tensor,
    engine: str = "auto",
    cuts: tuple[int, ...] = (),
) -> tuple[torch.Tensor, HiddenState]:
    """Run ``rnn`` over one window, clearing an environment's state where its episode starts.

    Gradients reach ``state``; pass a detached state to truncate them at the start of the window. No
    value and no gradient crosses an episode start. The cost does not depend on how many there are.

    Args:
        rnn: Recurrent layers of a cell in ``CELLS``, in time-major order, unidirectional, without
            dropout.
        inputs: RNN inputs. Shape: (T, N, D). ``HeldInputs`` say which columns several steps share.
        state: State before step 0. Shape: (L, N, H), a pair of them for an LSTM, or None for zeros.
        episode_starts: True where step t is the first of an episode. Shape: (T, N), bool.
        engine: A name in ``ENGINES``, or "auto" for the one expected to be the fastest on the
            device of ``inputs``.
        cuts: Steps in rising order, 0 not among them, before which the gradient of the state stops:
            windows run one after the other, each from the detached state of the one before, do the
            same.

    Returns:
        The top layer's outputs, shape (T, N, H), and the state after step T-1.

    Raises:
        ValueError: If ``episode_starts`` does not have the leading shape of ``inputs``, or
            ``cuts`` are no rising steps of them, or ``engine`` is unknown or not for the device of
            ``inputs``, the cell or its dtype.
        NotImplementedError: If ``rnn`` has a form that is not supported, or what ``engine`` needs
            beside torch is not installed.

    References:
        Williams and Peng (1990), Neural Computation 2(4): BPTT(h; h').
    """
    cell = check_supported(rnn)
    if episode_starts.shape != inputs.shape[:2]:
        raise ValueError(
            f"episode_starts has shape {tuple(episode_starts.shape)}, expected"
            f" {tuple(inputs.shape[:2])}: the steps and environments of the inputs."
        )
    if list(cuts) != sorted(set(cuts) & set(range(1, len(inputs)))):
        raise ValueError(f"cuts is {cuts}, expected rising steps from 1 to {len(inputs) - 1}.")
    device, dtype = inputs.device, rnn.all_weights[0][0].dtype
    chosen = resolve_engine(engine)
    if chosen is None:
        chosen = first_that_works(cell, device, dtype, candidates(cell, device, dtype))
    else:
        check_engine(chosen, cell, device, dtype)
    if state is None:
        state = cell.zero_state(rnn, inputs.shape[1])
    return chosen.scan(cell, rnn, inputs, state, episode_starts, cuts)


def is_supported(rnn: object) -> bool:
    """Return whether ``recurrent_scan`` can run ``rnn``."""
    return _supported_cell(rnn) is not None


def check_supported(rnn: nn.Module) -> Cell:
    """Return the cell of layers that ``recurrent_scan`` can run.

    Raises:
        NotImplementedError: If it cannot run them.
    """
    cell = _supported_cell(rnn)
    if cell is None:
        types = " or ".join(f"nn.{cell.rnn_type.__name__}" for cell in CELLS.values())
        raise NotImplementedError(
            f"rnn is {rnn}, expected a time-major, unidirectional {types} without dropout and"
            " projections."
        )
    return cell


def _supported_cell(rnn: object) -> Cell | None:
    """Return the cell of ``rnn``, None if its kind or form is not supported."""
    if not isinstance(rnn, nn.RNNBase) or rnn.bidirectional or rnn.batch_first or rnn.proj_size:
        return None
    return cell_of(rnn) if rnn.dropout == 0 or rnn.num_layers == 1 else None

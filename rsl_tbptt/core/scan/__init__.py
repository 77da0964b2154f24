"""Recurrent layers over a window with per-environment resets: one signature, engines by name.

``recurrent_scan`` is the front door. On a CPU, scans keep buffers between windows, which
``free_buffers`` releases. ``unchanged_weights`` keeps what scans prepare from the weights.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from rsl_tbptt.core.hidden_state import HiddenState, as_tensors, clear, detach, from_tensors
from rsl_tbptt.core.scan import cpu, triton
from rsl_tbptt.core.scan.cells import OF_TORCH, SRU, Cell, CellLayers, RecurrentLayers
from rsl_tbptt.core.scan.cpu import free_buffers as free_buffers
from rsl_tbptt.core.scan.products import LayerScan, operand_dtype_of, tf32_in_layers
from rsl_tbptt.core.scan.products import unchanged_weights as unchanged_weights

Scan = Callable[..., tuple[torch.Tensor, HiddenState]]
"""Maps layers, inputs, a state (never None), episode starts and cuts to the outputs and the last
state, as ``recurrent_scan`` does."""


class Engine(NamedTuple):
    """A way to run recurrent layers over a window."""

    scan: Scan
    device: str | None = None
    """Type of device that the engine runs on; None means all."""


CELLS: dict[str, Callable[..., RecurrentLayers]] = {"LSTM": nn.LSTM, "GRU": nn.GRU, "SRU": SRU}
"""Recurrent layers that scans run, by their ``mode``; ``register`` adds your own cell."""


def register(cell: Cell) -> Cell:
    """Add a cell to ``CELLS``, so that models take its name as their ``rnn_type``.

    Raises:
        ValueError: If torch's own layers have that name.
    """
    if not isinstance(CELLS.get(cell.name, cell), Cell):
        raise ValueError(f"name is '{cell.name}', expected another: torch's layers have it.")
    CELLS[cell.name] = cell
    return cell


def reference_scan(
    rnn: RecurrentLayers,
    inputs: torch.Tensor,
    state: HiddenState,
    episode_starts: torch.Tensor,
    cuts: tuple[int, ...],
) -> tuple[torch.Tensor, HiddenState]:
    """Run ``rnn`` step by step under autograd; inputs (T, N, D), all as in ``recurrent_scan``.

    This defines correct: torch's own layers, with the state cleared.
    """
    outputs = []
    for t, (step_input, starts) in enumerate(zip(inputs, episode_starts, strict=True)):
        state = detach(state) if t in cuts else state
        output, state = rnn(step_input.unsqueeze(0), clear(state, starts))
        outputs.append(output)
    return torch.cat(outputs), state


def _scan_layers(
    prepare: Callable[..., LayerScan],
    rnn: RecurrentLayers,
    inputs: torch.Tensor,
    state: HiddenState,
    episode_starts: torch.Tensor,
    cuts: tuple[int, ...],
) -> tuple[torch.Tensor, HiddenState]:
    """Run the stacked layers by an engine's scan of one layer; all as in ``recurrent_scan``.

    Under autocast the operands of matrix products have autocast's dtype. The state, the gates and
    the accumulation keep the dtype of the weights.
    """
    scan_layer, finals = prepare(rnn, episode_starts.contiguous(), cuts), []
    dtype = rnn.all_weights[0][0].dtype
    operand_dtype = operand_dtype_of(inputs.device, dtype)
    # Triton launches on the current device.
    with torch.autocast(inputs.device.type, enabled=False), torch.cuda.device_of(inputs):
        inputs, tensors = inputs.to(dtype), [tensor.to(dtype) for tensor in as_tensors(state)]
        for layer, weights in enumerate(rnn.all_weights):
            if not rnn.bias:
                weights = [*weights, *[weights[0].new_zeros(len(weights[0]))] * 2]
            before = [tensor[layer] for tensor in tensors]
            inputs, *last_cell = scan_layer(operand_dtype, inputs, *before, *weights)
            finals.append((inputs[-1], *last_cell))
        # All layers of the first tensor, then all of the second: one copy, without the outputs.
        last = torch.stack([tensor for layers in zip(*finals, strict=True) for tensor in layers])
        last = last.unflatten(0, (len(tensors), rnn.num_layers))
        return inputs, from_tensors([last[index] for index in range(len(tensors))])


ENGINES = {
    "compiled": Engine(partial(_scan_layers, cpu.layer_scan), "cpu"),
    "reference": Engine(reference_scan),
    "triton": Engine(partial(_scan_layers, triton.layer_scan), "cuda"),
    "triton_mm": Engine(
        partial(_scan_layers, partial(triton.layer_scan, multiplies=False)), "cuda"
    ),
}
"""Engines by name. ``reference`` defines the correct result; the others equal it in values and
gradients. "auto" takes the first one for the device that passes ``check_against_reference``."""


def recurrent_scan(
    rnn: RecurrentLayers,
    inputs: torch.Tensor,
    state: HiddenState,
    episode_starts: torch.Tensor,
    engine: str = "auto",
    cuts: tuple[int, ...] = (),
) -> tuple[torch.Tensor, HiddenState]:
    """Run ``rnn`` over one window, clearing an environment's state where its episode starts.

    Gradients reach ``state``; pass a detached state to truncate them at the start of the window. No
    value and no gradient crosses an episode start. The cost does not depend on how many there are.

    Args:
        rnn: ``nn.LSTM`` or ``nn.GRU`` in time-major order, unidirectional, without dropout; or
            layers of a registered ``Cell``.
        inputs: RNN inputs. Shape: (T, N, D).
        state: State before step 0. Shape: (L, N, H), a pair of them for an LSTM or a cell with two
            states, or None for zeros.
        episode_starts: True where step t is the first of an episode. Shape: (T, N), bool.
        engine: A name in ``ENGINES``, or "auto" for the fastest that works on the device of
            ``inputs``.
        cuts: Steps, in rising order and without 0, before which the gradient of the state stops.
            The result equals that of separate windows that each start from the detached state of
            the one before.

    Returns:
        The top layer's outputs, shape (T, N, H), and the state after step T-1. Do not change the
        outputs in place: the backward pass reads them.

    Raises:
        ValueError: If ``episode_starts`` does not have the leading shape of ``inputs``, if ``cuts``
            are not rising steps of the window, or if ``engine`` is unknown or not for the device of
            ``inputs``.
        NotImplementedError: If ``rnn`` has an unsupported form, or ``engine`` does not support its
            dtype or lacks its compiler.

    References:
        Williams and Peng (1990), Neural Computation 2(4): BPTT(h; h').
    """
    if not is_supported(rnn):
        raise NotImplementedError(
            f"rnn is {rnn}, expected a time-major, unidirectional nn.LSTM or nn.GRU without dropout"
            " and projections, or layers of a registered Cell."
        )
    if episode_starts.shape != inputs.shape[:2]:
        raise ValueError(
            f"episode_starts has shape {tuple(episode_starts.shape)}, expected"
            f" {tuple(inputs.shape[:2])}: the steps and environments of the inputs."
        )
    if list(cuts) != sorted(set(cuts) & set(range(1, len(inputs)))):
        raise ValueError(f"cuts is {cuts}, expected rising steps from 1 to {len(inputs) - 1}.")
    check_engine(engine, inputs.device)
    if engine == "auto":
        engine = fastest_engine(rnn.mode, inputs.device, rnn.all_weights[0][0].dtype)
    if state is None:
        weight = rnn.all_weights[0][0]
        zeros = weight.new_zeros(rnn.num_layers, inputs.shape[1], rnn.hidden_size)
        state = from_tensors([zeros] * num_states(rnn.mode))
    return ENGINES[engine].scan(rnn, inputs, state, episode_starts, cuts)


def is_supported(rnn: object) -> bool:
    """Return whether ``recurrent_scan`` can run ``rnn``."""
    if isinstance(rnn, CellLayers):
        return CELLS.get(rnn.mode) == rnn.cell
    return (
        isinstance(rnn, nn.LSTM | nn.GRU)
        and not (rnn.bidirectional or rnn.batch_first or rnn.proj_size)
        and (rnn.dropout == 0 or rnn.num_layers == 1)
    )


def num_states(mode: str) -> int:
    """Return the number of tensors in the state of a kind of layers in ``CELLS``."""
    cell = CELLS[mode]
    return (cell if isinstance(cell, Cell) else OF_TORCH[mode]).num_states


def check_engine(name: str, device: torch.device | None = None) -> None:
    """Check that an engine exists and, if a device is given, that it runs there.

    Raises:
        ValueError: If it does not.
    """
    here = [
        other
        for other, engine in ENGINES.items()
        if device is None or engine.device in (None, device.type)
    ]
    if name not in ["auto", *here]:
        where = "" if device is None else f" on {device}"
        raise ValueError(f"scan_engine is '{name}', expected one of {['auto', *here]}{where}.")


_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Absolute and relative tolerance, by the dtype of products' operands: several times their rounding
in the check's case, whose results are of size 1. An error of 1 % is noticed in float32; with
shorter operands only a gross error is."""

_TOLERANCE_TF32 = 2e-2
"""TF32 operands have as many bits as float16."""

_chosen: dict[tuple[object, ...], str] = {}


def fastest_engine(mode: str, device: torch.device, dtype: torch.dtype) -> str:
    """Return the engine of "auto": the first made for the device that works, or ``reference``.

    Two small random cases are compared with ``reference`` on the CPU in float64, once per process
    and before the first scan, for each device, kind of layer and dtypes. An engine that raises or
    differs is not used, and a warning says why.
    """
    operand_dtype = operand_dtype_of(device, dtype)
    key = (CELLS[mode], device, dtype, operand_dtype)
    if key not in _chosen:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return "reference"  # a check would break the caller's capture
        tolerance = _TOLERANCES[operand_dtype]
        if operand_dtype == torch.float32 and device.type == "cuda" and tf32_in_layers():
            tolerance = _TOLERANCE_TF32
        engines = [name for name, each in ENGINES.items() if each.device == device.type]
        engines.append("reference")
        while (chosen := engines.pop(0)) != "reference":
            try:
                for seed in (0, 1):  # the second reuses the buffers of the first
                    case = mode, device, dtype, tolerance, seed
                    check_against_reference(ENGINES[chosen], *case)
                break
            except Exception as error:  # training continues without this engine in any case
                warnings.warn(
                    f"scan_engine is 'auto', which takes '{engines[0]}' for a {mode} with"
                    f" {operand_dtype} products on {device}: '{chosen}', which is faster, failed"
                    f" a comparison with 'reference' ({type(error).__name__}: {error}).",
                    stacklevel=3,
                )
        _chosen[key] = chosen
    return _chosen[key]


@torch.inference_mode(False)  # switches gradients on as well
def check_against_reference(
    engine: Engine, mode: str, device: torch.device, dtype: torch.dtype, tolerance: float, seed: int
) -> None:
    """Compare results and all gradients of a small random case with the reference.

    Raises:
        AssertionError: If they differ by more than the tolerance, absolute and relative.
    """
    T, N, D, H, L = 5, 4, 8, 16, 2
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64).sub_(0.5).to(dtype)

    parameters = [random(*p.shape) for p in CELLS[mode](D, H, L, device="meta").parameters()]
    state = [random(L, N, H) for _ in range(num_states(mode))]
    leaves = [random(T, N, D), *state, *parameters]
    cotangents = [4 * random(*shape) for shape in [(T, N, H), *((L, N, H) for _ in state)]]
    starts = torch.rand(T, N, generator=generator) < 0.3

    def run(scan: Scan, starts: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
        rnn = CELLS[mode](D, H, L, device="meta", dtype=dtype).to_empty(device=starts.device)
        moved = [leaf.to(starts.device, dtype).clone().requires_grad_() for leaf in leaves]
        for parameter, value in zip(rnn.parameters(), moved[len(cotangents) :], strict=True):
            parameter.data.copy_(value)
        given = from_tensors(moved[1 : len(cotangents)])
        outputs, last = scan(rnn, moved[0], given, starts, (3,))
        results = [outputs, *as_tensors(last)]
        weights = [cotangent.to(starts.device, dtype) for cotangent in cotangents]
        total = torch.stack([(r * w).sum() for r, w in zip(results, weights, strict=True)]).sum()
        arguments = [*moved[: len(cotangents)], *rnn.parameters()]
        return [*results, *torch.autograd.grad(total, arguments)]

    got = run(engine.scan, starts.to(device), dtype)
    with torch.autocast("cpu", enabled=False):
        want = run(reference_scan, starts, torch.float64)
    for left, right in zip(got, want, strict=True):
        torch.testing.assert_close(left.double().cpu(), right, rtol=tolerance, atol=tolerance)

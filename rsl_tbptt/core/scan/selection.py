"""The engine behind ``auto``: the first candidate that was seen to be right on the device.

Before the first scan on a device, for each kind of layer and dtypes and once per process,
candidates run small random cases and are compared with ``reference``, which runs them on the CPU in
float64. A candidate that raises or differs is passed over, with a warning that says why.
"""

import warnings
from collections.abc import Iterable

import torch

from rsl_tbptt.core.hidden_state import as_tensors, from_tensors
from rsl_tbptt.core.scan.cuda.graphs import recordings_aside
from rsl_tbptt.core.scan.inputs import Held, HeldInputs
from rsl_tbptt.core.scan.layers import operand_dtype_of, tf32_in_layers
from rsl_tbptt.core.scan.registry import ENGINES, Cell, Engine

T, N, D, H, L = 5, 4, 8, 16, 2
CUTS = (3,)

_TOLERANCES = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.float16: 2e-2,
    torch.bfloat16: 1e-1,
}
"""Absolute and relative, by the dtype of the operands of products: several times their rounding
over the case, whose results are of size 1. In float32 an error of 1 % is noticed, with short
operands only a gross one."""

_TOLERANCE_TF32 = 2e-2
"""Operands with as many bits as float16."""

_chosen: dict[tuple[object, ...], Engine] = {}


def first_that_works(
    cell: Cell, device: torch.device, dtype: torch.dtype, candidates: Iterable[Engine]
) -> Engine:
    """Return the first of ``candidates`` that works on ``device``, ``reference`` if none does.

    Args:
        cell: Kind of the layers.
        device: Where they run.
        dtype: Of their weights; autocast's dtype counts as well where it is on.
        candidates: The fastest expected first; read if no choice was made before.
    """
    operand_dtype = operand_dtype_of(device, dtype)
    key = (cell.name, device, dtype, operand_dtype)
    if key not in _chosen:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return ENGINES["reference"]  # a check would break the caller's capture
        with recordings_aside():
            _chosen[key] = _choose(cell, device, dtype, operand_dtype, candidates)
    return _chosen[key]


def _choose(
    cell: Cell,
    device: torch.device,
    dtype: torch.dtype,
    operand_dtype: torch.dtype,
    candidates: Iterable[Engine],
) -> Engine:
    """Check one candidate after the other; warn about those before the first that works."""
    tolerance = _TOLERANCES[operand_dtype]
    if operand_dtype == torch.float32 and device.type == "cuda" and tf32_in_layers():
        tolerance = _TOLERANCE_TF32
    failures, chosen = [], ENGINES["reference"]
    for engine in candidates:
        failure = _failure(engine, cell, device, dtype, tolerance)
        if failure is None:
            chosen = engine
            break
        failures.append(f"'{engine.name}' ({failure})")
    if failures:
        warnings.warn(
            f"scan_engine is 'auto', which takes '{chosen.name}' for a {cell.rnn_type.__name__}"
            f" with {operand_dtype} products on {device}: compared with 'reference' on a small"
            f" case, these failed: {'; '.join(failures)}.",
            stacklevel=2,
        )
    return chosen


def _failure(
    engine: Engine,
    cell: Cell,
    device: torch.device,
    dtype: torch.dtype,
    tolerance: float,
) -> str | None:
    """Return what is wrong with an engine, or None."""
    try:
        for seed in (0, 1):  # the second on what the first has left behind
            _check(engine, cell, device, dtype, tolerance, seed)
    except Exception as error:  # whatever it is, training goes on without this engine
        return f"{type(error).__name__}: {error}"
    return None


@torch.inference_mode(False)  # switches gradients on as well
def _check(
    engine: Engine,
    cell: Cell,
    device: torch.device,
    dtype: torch.dtype,
    tolerance: float,
    seed: int,
) -> None:
    """Compare results and all gradients of a random case with the reference.

    Raises:
        AssertionError: If they differ.
    """
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64).sub_(0.5).to(dtype)

    parameters = [random(*p.shape) for p in cell.rnn_type(D, H, L, device="meta").parameters()]
    state = [random(L, N, H) for _ in range(cell.num_states)]
    leaves = [random(T, N, D), *state, *parameters]
    results = [(T, N, H), *((L, N, H) for _ in state)]
    cotangents = [4 * random(*shape) for shape in results]
    starts = torch.rand(T, N, generator=generator) < 0.3
    cuts = CUTS if engine.cuts_gradient else ()
    got = _run(engine, cell, leaves, cotangents, starts.to(device), cuts, dtype)
    with torch.autocast("cpu", enabled=False):
        reference = ENGINES["reference"]
        want = _run(reference, cell, leaves, cotangents, starts, cuts, torch.float64)
    for left, right in zip(got, want, strict=True):
        torch.testing.assert_close(left.double().cpu(), right, rtol=tolerance, atol=tolerance)


def _run(
    engine: Engine,
    cell: Cell,
    leaves: list[torch.Tensor],
    cotangents: list[torch.Tensor],
    starts: torch.Tensor,
    cuts: tuple[int, ...],
    dtype: torch.dtype,
) -> list[torch.Tensor]:
    """Return results and the gradients of all leaves, on the device of ``starts``."""
    rnn = cell.rnn_type(D, H, L, device="meta", dtype=dtype).to_empty(device=starts.device)
    moved = [leaf.to(starts.device, dtype).clone().requires_grad_() for leaf in leaves]
    state = from_tensors(moved[1 : len(cotangents)])
    for parameter, value in zip(rnn.parameters(), moved[len(cotangents) :], strict=True):
        parameter.data.copy_(value)
    inputs = _half_held(moved[0]) if engine.knows_held_inputs else moved[0]
    outputs, last = engine.scan(cell, rnn, inputs, state, starts, cuts)
    results = [outputs, *as_tensors(last)]
    weights = [cotangent.to(starts.device, dtype) for cotangent in cotangents]
    total = torch.stack([(r * w).sum() for r, w in zip(results, weights, strict=True)]).sum()
    arguments = [*moved[: len(cotangents)], *rnn.parameters()]
    return [*results, *torch.autograd.grad(total, arguments)]


def _half_held(inputs: torch.Tensor) -> HeldInputs:
    """Return inputs (T, N, D) of which half of the columns are said to be held."""
    own, held = inputs.chunk(2, dim=-1)
    places = torch.arange(T * N, device=inputs.device).view(T, N)
    return HeldInputs(own, (Held(held.flatten(0, 1), places),))

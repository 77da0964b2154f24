"""The engine behind ``auto``: the first candidate that was seen to be right on the device.

Before the first scan on a device, for each kind of layer and dtypes and once per process,
candidates run small random cases and are compared with ``reference``, which runs them on the CPU in
float64. A candidate that raises or differs is passed over, with a warning that says why.
"""

import warnings
from collections.abc import Callable, Mapping

import torch
from torch import nn

from rsl_tbptt.core.hidden_state import HiddenState, as_tensors
from rsl_tbptt.core.scan import reference
from rsl_tbptt.core.scan.layers import operand_dtype_of
from rsl_tbptt.core.scan.precision import tf32_allowed

Scan = Callable[..., tuple[torch.Tensor, HiddenState]]

T, N, D, H, L = 5, 4, 8, 16, 2

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

_chosen: dict[tuple[object, ...], str] = {}


def first_that_works(
    rnn: nn.LSTM | nn.GRU, device: torch.device, candidates: Mapping[str, Scan]
) -> str:
    """Return the name of the first of ``candidates`` that works on ``device``.

    Args:
        rnn: Recurrent layers; their type and dtype count, and autocast's dtype where it is on.
        device: Where they run.
        candidates: Engines by name, the fastest expected first.

    Returns:
        The name, "reference" if none works.
    """
    dtype = rnn.all_weights[0][0].dtype
    operand_dtype = operand_dtype_of(device, dtype)
    rnn_type = nn.LSTM if isinstance(rnn, nn.LSTM) else nn.GRU
    key = (rnn_type, device, dtype, operand_dtype)
    if key not in _chosen:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return "reference"  # a check would break the caller's capture
        _chosen[key] = _choose(rnn_type, device, dtype, operand_dtype, candidates)
    return _chosen[key]


def _choose(
    rnn_type: type[nn.LSTM | nn.GRU],
    device: torch.device,
    dtype: torch.dtype,
    operand_dtype: torch.dtype,
    candidates: Mapping[str, Scan],
) -> str:
    """Check one candidate after the other; warn about those before the first that works."""
    tolerance = _TOLERANCES[operand_dtype]
    if operand_dtype == torch.float32 and device.type == "cuda" and tf32_allowed():
        tolerance = _TOLERANCE_TF32
    failures, chosen = [], "reference"
    for name, scan in candidates.items():
        failure = _failure(scan, rnn_type, device, dtype, tolerance)
        if failure is None:
            chosen = name
            break
        failures.append(f"'{name}' ({failure})")
    if failures:
        warnings.warn(
            f"scan_engine is 'auto', which takes '{chosen}' for a {rnn_type.__name__} with"
            f" {operand_dtype} products on {device}: compared with 'reference' on a small case,"
            f" these failed: {'; '.join(failures)}.",
            stacklevel=2,
        )
    return chosen


def _failure(
    scan: Scan,
    rnn_type: type[nn.LSTM | nn.GRU],
    device: torch.device,
    dtype: torch.dtype,
    tolerance: float,
) -> str | None:
    """Return what is wrong with an engine, or None."""
    try:
        for seed in (0, 1):  # the second on what the first has left behind
            _check(scan, rnn_type, device, dtype, tolerance, seed)
    except Exception as error:  # whatever it is, training goes on without this engine
        return f"{type(error).__name__}: {error}"
    return None


@torch.inference_mode(False)  # switches gradients on as well
def _check(
    scan: Scan,
    rnn_type: type[nn.LSTM | nn.GRU],
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

    parameters = [random(*p.shape) for p in rnn_type(D, H, L, device="meta").parameters()]
    state = [random(L, N, H) for _ in range(2 if rnn_type is nn.LSTM else 1)]
    leaves = [random(T, N, D), *state, *parameters]
    results = [(T, N, H), *((L, N, H) for _ in state)]
    cotangents = [4 * random(*shape) for shape in results]
    starts = torch.rand(T, N, generator=generator) < 0.3
    got = _run(scan, rnn_type, leaves, cotangents, starts.to(device), dtype)
    with torch.autocast("cpu", enabled=False):
        want = _run(reference.scan, rnn_type, leaves, cotangents, starts, torch.float64)
    for left, right in zip(got, want, strict=True):
        torch.testing.assert_close(left.double().cpu(), right, rtol=tolerance, atol=tolerance)


def _run(
    scan: Scan,
    rnn_type: type[nn.LSTM | nn.GRU],
    leaves: list[torch.Tensor],
    cotangents: list[torch.Tensor],
    starts: torch.Tensor,
    dtype: torch.dtype,
) -> list[torch.Tensor]:
    """Return results and the gradients of all leaves, on the device of ``starts``."""
    rnn = rnn_type(D, H, L, device="meta", dtype=dtype).to_empty(device=starts.device)
    moved = [leaf.to(starts.device, dtype).clone().requires_grad_() for leaf in leaves]
    state = moved[1 : len(cotangents)]
    for parameter, value in zip(rnn.parameters(), moved[len(cotangents) :], strict=True):
        parameter.data.copy_(value)
    outputs, last = scan(rnn, moved[0], tuple(state) if len(state) == 2 else state[0], starts)
    results = [outputs, *as_tensors(last)]
    weights = [cotangent.to(starts.device, dtype) for cotangent in cotangents]
    total = torch.stack([(r * w).sum() for r, w in zip(results, weights, strict=True)]).sum()
    arguments = [*moved[: len(cotangents)], *rnn.parameters()]
    return [*results, *torch.autograd.grad(total, arguments)]

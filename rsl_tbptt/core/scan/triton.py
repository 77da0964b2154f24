"""The GPU engine: each step is one matrix product of torch and one Triton kernel, in CUDA graphs.

The inputs of all gates lie in one buffer (see ``kernels``), which has three lives::

    1. input projection    gates  = x W_ih + b         one product before the loop
    2. inputs of gates     gates += h' W_hh            a product per step, in place
                           state, h' = cell(gates)     a kernel per step
    3. their gradients     gates  = dcell(gates)       a kernel per step, in place
                           dh'    = gates W_hh         a product per step
                           dx, dW, db                  one product or sum each after the loop

So a step takes one product and one kernel, forward and backward. A kernel rounds to the dtype of
the next product's operands as it writes: under mixed precision the buffer and all operands are
bfloat16, and no launch converts them. State, carry and arithmetic stay float32.

The reset is part of the kernels, and the host never waits for the device. The work depends on
shapes alone, so CUDA graphs record it once per shape (``graphs``). Cuts are a mask like episode
starts that only the backward pass reads, so a window with cuts is one window.

A GRU's n adds r * u to its input from x, where u is the part from h with its own bias. Its buffer
has n, r, z, u, so that x feeds the first three and h the last three.

Shapes: T steps, N environments, D inputs, H hidden; G = 4H (LSTM) or 3H (GRU).
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.scan import graphs
from rsl_tbptt.core.scan.graphs import Gradients, Loan, Passes, Results
from rsl_tbptt.core.scan.layers import ONCE, Tensors, products_as_in_layers, scan_layers

_BLOCK = 512
"""Units of one program: four for each thread, which it loads at once."""

_MM_TAKES_OUT_DTYPE = "dtype" in torch.ops.aten.mm.overloads()
"""Whether this version of torch can give a product in another dtype than its operands."""


def scan(
    rnn: nn.RNNBase,
    inputs: torch.Tensor,
    state: HiddenState,
    episode_starts: torch.Tensor,
    cuts: tuple[int, ...],
) -> tuple[torch.Tensor, HiddenState]:
    """Run the layers over inputs (T, N, D); all as in ``recurrent_scan``.

    Raises:
        NotImplementedError: If Triton is not installed.
    """
    _kernels()  # raises before a recording hides the reason
    starts = torch.cat((episode_starts, episode_starts.new_zeros(1, inputs.shape[1])))
    stops = starts.clone()
    for cut in cuts:
        stops[cut] = True
    scan_layer = functools.partial(_scan_layer, starts, stops)
    with torch.cuda.device_of(inputs):  # Triton launches on the current device
        return scan_layers(rnn, inputs, state, scan_layer)


def _scan_layer(
    starts: torch.Tensor, stops: torch.Tensor, operand_dtype: torch.dtype, *layer: torch.Tensor
) -> Tensors:
    """Scan one layer, by a replay if there is a recording; see ``LayerScan``."""
    tensors = (*layer, starts, stops)
    needs = tuple(torch.is_grad_enabled() and tensor.requires_grad for tensor in tensors)
    loan = graphs.pool.lend(PASSES, tensors, needs, operand_dtype)
    if any(needs):
        results: Tensors = CellScan.apply(loan, operand_dtype, needs, *tensors)
    elif loan is not None:
        results = loan.recording.forward(tensors)
    else:
        results, _ = _forward(tensors, operand_dtype)
    return results


class CellScan(torch.autograd.Function):
    """Differentiable scan of one layer; its backward pass may run once."""

    @staticmethod
    def forward(
        ctx: Any,
        loan: Loan | None,
        operand_dtype: torch.dtype,
        needs: tuple[bool, ...],
        *tensors: torch.Tensor,
    ) -> Tensors:
        """Return a layer's results: (T, N, H) and, for an LSTM, (N, H)."""
        ctx.options = needs, operand_dtype
        if loan is not None:
            ctx.kept = loan
            return loan.recording.forward(tensors)
        results, ctx.kept = _forward(tensors, operand_dtype)
        ctx.save_for_backward(*tensors)
        return tuple(result.clone() for result in results)  # callers may write to them

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Gradients:
        """Return the gradients of the layer's tensors, in their shapes.

        Raises:
            RuntimeError: If it ran before, or under ``create_graph=True``.
        """
        if ctx.kept is None or torch.is_grad_enabled():
            raise RuntimeError(ONCE)
        kept, ctx.kept = ctx.kept, None
        if isinstance(kept, Loan):
            gradients = kept.recording.backward(grads)
        else:
            with torch.autocast(grads[0].device.type, enabled=False):
                gradients = _backward(ctx.saved_tensors, kept, grads, *ctx.options)
        return None, None, None, *gradients


@products_as_in_layers()
def _forward(tensors: Tensors, dtype: torch.dtype) -> Results:
    """Return the results of a layer and the buffers for its backward pass; see ``Passes``."""
    x_TND, *state, w_ih, w_hh, b_ih, b_hh, starts, _ = tensors
    (T, N, _), H, shift = x_TND.shape, w_hh.shape[1], _shift(w_hh)
    gates = x_TND.new_empty(T, N, 4 * H, dtype=dtype)
    states = x_TND.new_empty(T + 1, N, H)
    operands = x_TND.new_empty(T + 1, N, H, dtype=dtype)
    states[0] = state[-1]
    operands[0] = state[0].masked_fill(starts[0].unsqueeze(1), 0.0)

    w_x = functional.pad(w_ih.roll(shift, 0), (0, 0, 0, shift)).to(dtype)
    bias = functional.pad(b_ih.roll(shift), (0, shift)) + functional.pad(b_hh, (shift, 0))
    x = x_TND.flatten(0, 1).to(dtype)
    torch.addmm(bias.to(dtype), x, w_x.t(), out=gates.flatten(0, 1))

    if len(state) == 2:
        outputs = x_TND.new_empty(T, N, H)
        run_kernel = _launcher("lstm_forward", N, H, gates, states, operands, starts, outputs)
        results = (outputs, states[T])
    else:
        run_kernel = _launcher("gru_forward", N, H, gates, states, operands, starts)
        results = (states[1:],)
    of_h, w_h = gates[..., shift:], w_hh.to(dtype).t()
    for t in range(T):
        of_h[t].addmm_(operands[t], w_h)
        run_kernel(t)
    return results, (gates, states, operands)


@products_as_in_layers()
def _backward(
    tensors: Tensors, kept: Tensors, grads: Tensors, needs: tuple[bool, ...], dtype: torch.dtype
) -> Gradients:
    """Return the gradients of a layer's tensors; see ``Passes``."""
    x_TND, *state, w_ih, w_hh, _, _, starts, stops = tensors
    gates, states, operands = kept
    T, (N, H), shift, full = len(gates), state[0].shape, _shift(w_hh), x_TND.dtype
    is_lstm = len(state) == 2
    grad_hidden, carry = (x_TND.new_zeros(N, H, dtype=each) for each in (dtype, full))
    if is_lstm:
        carry.copy_(grads[1])

    name = "lstm_backward" if is_lstm else "gru_backward"
    buffers = (gates, states, grads[0].contiguous(), grad_hidden, carry, starts, stops)
    run_kernel, of_h, w_h = _launcher(name, N, H, *buffers), gates[..., shift:], w_hh.to(dtype)
    for t in reversed(range(T)):
        run_kernel(t)
        if t > 0 or needs[1]:
            torch.mm(of_h[t], w_h, out=grad_hidden)

    of_x, of_h = (part.flatten(0, 1) for part in (gates[..., : 4 * H - shift], of_h))
    needs_w_ih, needs_w_hh, needs_b_ih, needs_b_hh = needs[-6:-2]
    dx = dh = dw_ih = dw_hh = db_ih = db_hh = None
    if needs[0]:
        dx = _product(of_x, w_ih.roll(shift, 0).to(dtype), full).view_as(x_TND)
    if needs[1]:
        dh = grad_hidden.masked_fill(starts[0].unsqueeze(1), 0.0).to(full)
        dh = dh if is_lstm else dh + carry
    if needs_w_ih:
        dw_ih = _product(of_x.t(), x_TND.flatten(0, 1).to(dtype), full).roll(-shift, 0)
    if needs_w_hh:
        dw_hh = _product(of_h.t(), operands[:T].flatten(0, 1), full)
    if needs_b_ih or needs_b_hh:
        of_biases = gates.sum((0, 1), dtype=full)
        db_ih, db_hh = of_biases[: 4 * H - shift].roll(-shift), of_biases[shift:]
    return dx, dh, *((carry,) if is_lstm else ()), dw_ih, dw_hh, db_ih, db_hh, None, None


PASSES = Passes(_forward, _backward)


def _shift(w_hh: torch.Tensor) -> int:
    """Return the first column of the gates that h feeds: 0 for an LSTM, H for a GRU.

    Rolled by as much, torch's order r, z, n of the input weights becomes n, r, z.
    """
    return 4 * w_hh.shape[1] - len(w_hh)


def _launcher(name: str, N: int, H: int, *buffers: torch.Tensor) -> Callable[[int], None]:
    """Return a function that runs a kernel over the N * H units of a step, given the step."""
    kernel = getattr(_kernels(), name)[-(-N * H // _BLOCK),]
    return lambda step: kernel(*buffers, step, N, H, _BLOCK)


def _kernels() -> ModuleType:
    """Import the kernels at their first use: only then must Triton be installed.

    Raises:
        NotImplementedError: If it is not.
    """
    try:
        from rsl_tbptt.core.scan import kernels
    except ImportError as error:
        raise NotImplementedError(
            "scan_engine 'triton' needs the package triton, which comes with torch for CUDA and"
            f" ROCm on Linux ({error}): use 'reference'."
        ) from error
    return kernels


def _product(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return ``a @ b`` in ``dtype``, without rounding to the operands' dtype if torch can."""
    if a.dtype == dtype:
        return a @ b
    if a.is_cuda and dtype == torch.float32 and _MM_TAKES_OUT_DTYPE:
        return torch.mm(a, b, out_dtype=dtype)
    return (a @ b).to(dtype)

"""The GPU engine: each step is one matrix product of torch and one Triton kernel.

The inputs of all gates lie in one buffer (see ``kernels``), which has three lives::

    1. input projection    gates  = x W_ih + b         one product before the loop
    2. inputs of gates     gates += h' W_hh            a product per step, in place
                           state, h' = cell(gates)     a kernel per step
    3. their gradients     gates  = dcell(gates)       a kernel per step, in place
                           dh'    = gates W_hh         a product per step
                           dx, dW                      one product each after the loop

So a step takes one product and one kernel, forward and backward. A kernel rounds to the dtype of
the next product's operands as it writes: under mixed precision the buffer and all operands are
bfloat16, and no launch converts them. State, carry and arithmetic stay float32.

The reset is part of the kernels. What is launched depends on shapes and cuts alone, and the host
never waits for the device, so a caller can record a scan in a CUDA graph. Only the backward pass
knows cuts: there it clears the gradient of the state, so a window with cuts is still one window.

The gates of a cell lie in the order of x alone, of both, of h alone, so x feeds the first ones and
h the last ones. A GRU has n, r, z, u: u is the part of the candidate from h, with its own bias.

x is copied next to ones: with [x | 1] the product that gives the gradient of W_ih gives that of all
biases, too. A sum over steps and environments would read all gates once more.

Shapes: T steps, N environments, D inputs, H hidden.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from rsl_tbptt.core.scan.cells import Cell, RecurrentLayers, cell_of
from rsl_tbptt.core.scan.products import (
    ONCE,
    Gradients,
    LayerScan,
    Tensors,
    prepare,
    products_as_in_layers,
)

_BLOCK = 512
"""Units of a program. On NVIDIA GPUs each thread has four, 16 bytes of float32 per load."""

_ALIGNMENT = 8
"""Rows of [x | 1] have a multiple of this length: cuBLAS is slower if they are not aligned."""

_MM_TAKES_OUT_DTYPE = "dtype" in torch.ops.aten.mm.overloads()
"""Whether this version of torch can give a product in another dtype than its operands."""


def layer_scan(rnn: RecurrentLayers, starts_TN: torch.Tensor, cuts: tuple[int, ...]) -> LayerScan:
    """Return the scan of a layer, given contiguous episode starts and cuts of ``recurrent_scan``.

    It raises NotImplementedError if Triton is not installed.
    """
    return functools.partial(CellScan.apply, cell_of(rnn), starts_TN, cuts)


class CellScan(torch.autograd.Function):
    """Differentiable scan of one layer; its backward pass may run once.

    Its results are views of what the backward pass reads, so torch refuses to change them in place.
    """

    @staticmethod
    def forward(
        ctx: Any,
        cell: Cell,
        starts_TN: torch.Tensor,
        cuts: tuple[int, ...],
        dtype: torch.dtype,
        *layer: torch.Tensor,
    ) -> Tensors:
        """Return the outputs, shape (T, N, H), and the second state after step T-1 if there is one.

        Args:
            ctx: Autograd context.
            cell: Kind of layer.
            starts_TN: Episode starts, bool, contiguous.
            cuts: Steps before which the gradient of the state stops.
            dtype: Dtype of the operands of matrix products.
            *layer: The tensors of the layer; see ``LayerScan``.
        """
        x_TND, *state, w_ih, w_hh, b_ih, b_hh = layer
        (T, N, D), H = x_TND.shape, w_hh.shape[1]
        w_x, w_h, bias = prepare(_weights_of(cell), N, dtype, w_ih, w_hh, b_ih, b_hh)
        inputs = x_TND.new_empty(T, N, -(-(D + 1) // _ALIGNMENT) * _ALIGNMENT, dtype=dtype)
        gates = x_TND.new_empty(T, N, len(w_x), dtype=dtype)
        states = x_TND.new_empty(len(state), T + 1, N, H)
        operands = x_TND.new_empty(T, N, H, dtype=dtype)
        inputs[..., :D].copy_(x_TND)
        inputs[..., D:].fill_(1.0)
        begin, step = (_kernel(cell, name, N * H) for name in ("begin", "forward"))
        buffers, sizes = (states, operands, starts_TN), (T, N, H, _BLOCK)
        begin(*(tensor.contiguous() for tensor in state), *buffers, 0, *sizes)
        of_h, factor = gates[..., -len(w_h) :], w_h.t()
        with products_as_in_layers():
            torch.addmm(bias, inputs.flatten(0, 1)[:, :D], w_x.t(), out=gates.flatten(0, 1))
            for t in range(T):
                of_h[t].addmm_(operands[t], factor)
                step(gates, *buffers, t, *sizes)
        ctx.save_for_backward(inputs, gates, *buffers, w_x, w_h)
        ctx.cell, ctx.cuts, ctx.has_run = cell, cuts, False
        ctx.set_materialize_grads(False)
        return states[0, 1:], *states[1:, T]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Gradients:
        """Return gradients, shaped as ``forward``'s tensors; they overwrite the gates.

        Raises:
            RuntimeError: If it ran before, or under ``create_graph=True``.
        """
        if ctx.has_run or torch.is_grad_enabled():
            raise RuntimeError(ONCE)
        ctx.has_run = True
        inputs, gates, states, operands, starts_TN, w_x, w_h = ctx.saved_tensors
        needs, cell, H = ctx.needs_input_grad[4:], ctx.cell, w_h.shape[1]
        with torch.autocast(gates.device.type, enabled=False), products_as_in_layers():
            buffers = gates, states, starts_TN
            of_state = _run_backward(cell, ctx.cuts, needs[1:-4], buffers, grads, w_h)
            first, last = cell.input_gates * H, len(w_x) - cell.hidden_gates * H
            of_x, of_h, of_all = (
                part.flatten(0, 1) for part in (gates[..., :last], gates[..., first:], gates)
            )
            dx = dw_ih = dw_hh = db_ih = db_hh = None
            if needs[0]:
                dx = _product(of_x, w_x[:last], states.dtype).unflatten(0, gates.shape[:2])
            if needs[-4] or needs[-2] or needs[-1]:
                dw = _product(of_all.t(), inputs.flatten(0, 1), states.dtype)
                rows, D = _joined(dw[first:last], dw[:first]), w_x.shape[1]
                dw_ih, db_ih, db_hh = rows[:, :D], rows[:, D], dw[first:, D]
            if needs[-3]:
                dw_hh = _product(of_h.t(), operands.flatten(0, 1), states.dtype)
        return None, None, None, None, dx, *of_state, dw_ih, dw_hh, db_ih, db_hh


def _run_backward(
    cell: Cell,
    cuts: tuple[int, ...],
    needs: tuple[bool, ...],
    buffers: Tensors,
    grads: tuple[torch.Tensor | None, ...],
    w_h: torch.Tensor,
) -> Gradients:
    """Overwrite the gates by their gradients, the last step first.

    Args:
        cell: Kind of layer.
        cuts: Steps before which the gradient of the state stops.
        needs: Which tensors of the state before step 0 need a gradient.
        buffers: Gates, states and episode starts; see ``kernels``.
        grads: Gradients of the layer's results; None for zeros.
        w_h: Weights of h. Shape: (rows, H).

    Returns:
        Gradients of the state before step 0, shape (N, H) each; None if none is needed.
    """
    gates, states, starts_TN = buffers
    (S, _, N, H), T = states.shape, len(gates)
    of_outputs, *of_second = grads
    if of_outputs is None:
        of_outputs = states.new_zeros(T, N, H)
    zeros = states.new_zeros(1 + S, N, H)
    dh, carry = zeros[0].to(gates.dtype), zeros[1:]
    for gradient, given in zip(carry[1:], of_second, strict=True):
        if given is not None:
            gradient.copy_(given)
    buffers = gates, states, of_outputs.contiguous(), dh, carry, starts_TN
    step, of_h = _kernel(cell, "backward", N * H), gates[..., -len(w_h) :]
    for t in reversed(range(T)):
        step(*buffers, t, T, N, H, _BLOCK)
        if t in cuts:
            dh.zero_()
            carry.zero_()
        elif t > 0 or needs[0]:  # otherwise nobody reads dh
            torch.mm(of_h[t], w_h, out=dh)
    if not any(needs):
        return (None,) * S
    return carry[0] + dh.masked_fill(starts_TN[0].unsqueeze(1), 0.0), *carry[1:]


@functools.cache
def _weights_of(cell: Cell) -> Callable[..., Tensors]:
    """Return a function that makes the weights and the bias of a layer; see ``prepare``."""

    def weights(num_envs: int, dtype: torch.dtype, *tensors: torch.Tensor) -> Tensors:
        """Return the weights of x and of h, and the bias, in the order of the gates.

        The gates of h alone get zeros from x.
        """
        w_ih, w_hh, b_ih, b_hh = tensors
        H, both = w_hh.shape[1], cell.gates * w_hh.shape[1]
        zeros = w_ih.new_zeros(cell.hidden_gates * H, w_ih.shape[1])
        w_x = _joined(w_ih[both:], w_ih[:both], zeros)
        bias = _joined(b_ih[both:], b_ih[:both] + b_hh[:both], b_hh[both:])
        return w_x.to(dtype), w_hh.to(dtype), bias.to(dtype)

    return weights


def _joined(*rows: torch.Tensor) -> torch.Tensor:
    """Concatenate along the first dimension; without a copy if only one tensor has rows."""
    rows = tuple(part for part in rows if len(part))
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def _product(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return ``a @ b`` in ``dtype``, without rounding to the operands' dtype if torch can."""
    if a.dtype == dtype:
        return a @ b
    if a.is_cuda and dtype == torch.float32 and _MM_TAKES_OUT_DTYPE:
        return torch.mm(a, b, out_dtype=dtype)
    return (a @ b).to(dtype)


def _kernel(cell: Cell, name: str, num_units: int) -> Callable[..., None]:
    """Return a kernel of a cell that runs over a step's units, N * H."""
    launch: Callable[..., None] = _kernels().kernels_of(cell)[name][-(-num_units // _BLOCK),]
    return launch


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

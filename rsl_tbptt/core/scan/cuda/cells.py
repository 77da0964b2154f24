"""CUDA: one product and one fused cell kernel of torch per step, forward and backward.

Per layer the input projection of all steps is one product before the loop, and the gradients of
the weights are one product each after it. The state is cleared by selection with each step's mask:
the host never asks the device anything and what happens depends on shapes alone, so that it can be
recorded as a CUDA graph (``graphs.py``).

The kernels are those behind ``nn.LSTMCell`` and ``nn.GRUCell`` (torch's aten/src/ATen/native/cuda/
RNN.cu). Of a step they keep the activated gates i, f, g, o (LSTM), or r, z, n, the state before the
step and the hidden part of n's input (GRU).

Shapes: T steps, N environments, D inputs, H hidden; G = 4H (LSTM) or 3H (GRU).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from rsl_tbptt.core.scan.cuda.products import by_kind, by_step, product, project
from rsl_tbptt.core.scan.layers import ONCE, LayerScan, Tensors, products_as_in_layers

Gradients = tuple[torch.Tensor | None, ...]

Results = tuple[Tensors, Tensors]
"""A layer's results (outputs (T, N, H) and, for an LSTM, the last cell state (N, H)), and what the
backward pass needs. The two share no memory."""


class Passes(NamedTuple):
    """The passes of one layer over a window, as functions of tensors alone.

    The tensors of a layer are x (T, N, D), hidden and cell state (N, H), w_ih (G, D), w_hh (G, H),
    b_ih (G,), b_hh (G,) and episode starts (T, N), in this order; a GRU has no cell state.
    """

    forward: Callable[[Tensors, bool, torch.dtype], Results]
    """Maps a layer's tensors, whether a backward pass will follow and the operand dtype to its
    results."""

    backward: Callable[[Tensors, Tensors, Tensors, tuple[bool, ...], torch.dtype], Gradients]
    """Maps a layer's tensors, what ``forward`` kept, the gradients of the results, which gradients
    are needed and the operand dtype to the gradients of the layer's tensors."""


def scan_layer(
    passes: Passes,
    inputs: torch.Tensor,
    state: Tensors,
    weights: Tensors,
    episode_starts: torch.Tensor,
    operand_dtype: torch.dtype,
) -> tuple[torch.Tensor, Tensors]:
    """Scan one layer over inputs (T, N, D) by its cell's passes; the rest as in ``LayerScan``."""
    tensors = (inputs, *state, *weights, episode_starts)
    needs = needed_gradients(tensors)
    if any(needs):
        outputs, *last_cell = CellScan.apply(passes, operand_dtype, needs, *tensors)
    else:
        (outputs, *last_cell), _ = passes.forward(tensors, False, operand_dtype)
    return outputs, (outputs[-1], *last_cell)


def needed_gradients(tensors: Tensors) -> tuple[bool, ...]:
    """Return for each tensor whether autograd wants its gradient."""
    return tuple(torch.is_grad_enabled() and tensor.requires_grad for tensor in tensors)


class CellScan(torch.autograd.Function):
    """Differentiable scan of one layer; its backward pass may run once."""

    @staticmethod
    def forward(
        ctx: Any,
        passes: Passes,
        operand_dtype: torch.dtype,
        needs: tuple[bool, ...],
        *tensors: torch.Tensor,
    ) -> Tensors:
        """Return the results of ``passes.forward``: (T, N, H) and, for an LSTM, (N, H)."""
        results, ctx.kept = passes.forward(tensors, True, operand_dtype)
        ctx.save_for_backward(*tensors)
        ctx.call = passes.backward, needs, operand_dtype
        return results

    @staticmethod
    def backward(
        ctx: Any,
        *grads: torch.Tensor,
    ) -> Gradients:
        """Return the gradients of the layer's tensors, in their shapes."""
        backward, needs, operand_dtype = ctx.call
        kept = take_kept(ctx)
        with torch.autocast(grads[0].device.type, enabled=False):
            gradients = backward(ctx.saved_tensors, kept, grads, needs, operand_dtype)
        return None, None, None, *gradients


def take_kept(ctx: Any) -> Any:
    """Return what the forward pass kept in ``ctx`` for the backward pass.

    Raises:
        RuntimeError: If it was taken before, or under ``create_graph=True``.
    """
    if ctx.kept is None or torch.is_grad_enabled():
        raise RuntimeError(ONCE)
    kept, ctx.kept = ctx.kept, None
    return kept


@products_as_in_layers()
def _lstm_forward(tensors: Tensors, keep: bool, dtype: torch.dtype) -> Results:
    x_TND, h, c, w_ih, w_hh, b_ih, b_hh, starts_TN = tensors
    fused_cell = torch.ops.aten._thnn_fused_lstm_cell
    weights, zero = w_hh.to(dtype).t(), h.new_zeros(())
    steps, outputs = [], []
    for of_x, mask in zip(project(x_TND, w_ih, dtype), starts_TN.unsqueeze(-1), strict=True):
        h_in, c_in = torch.where(mask, zero, h).to(dtype), torch.where(mask, zero, c)
        h, c, gates = fused_cell(of_x, product(h_in, weights, c.dtype), c_in, b_ih, b_hh)
        outputs.append(h)
        if keep:
            steps.append((h_in, c_in, c, gates))
    return (torch.stack(outputs), c.clone()), by_kind(steps)


@products_as_in_layers()
def _lstm_backward(
    tensors: Tensors, kept: Tensors, grads: Tensors, needs: tuple[bool, ...], dtype: torch.dtype
) -> Gradients:
    x_TND, _, _, w_ih, w_hh, *_, starts_TN = tensors
    fused_cell = torch.ops.aten._thnn_fused_lstm_cell_backward_impl
    num_steps, weights, zero = len(starts_TN), w_hh.to(dtype), w_hh.new_zeros(())
    h_in, c_in, c, gates = by_step(kept, num_steps)
    masks, grad_outputs, dc = starts_TN.unsqueeze(-1), grads[0].contiguous(), grads[1].contiguous()
    dh, of_gates = grad_outputs[-1], []
    for t in reversed(range(num_steps)):
        of_step, dc, _ = fused_cell(dh, dc, c_in[t], c[t], gates[t], False)
        of_gates.append(of_step.to(dtype))
        dc = torch.where(masks[t], zero, dc)
        if t > 0 or needs[1]:
            dh = torch.where(masks[t], zero, product(of_gates[-1], weights, dc.dtype))
        if t > 0:
            dh.add_(grad_outputs[t - 1])
    flat = torch.cat(of_gates[::-1])
    of_rest = _rest_of_backward(x_TND, h_in, w_ih, flat, flat, (needs[0], *needs[3:7]), dtype)
    state = (dh if needs[1] else None, dc if needs[2] else None)
    return of_rest[0], *state, *of_rest[1:], None


@products_as_in_layers()
def _gru_forward(tensors: Tensors, keep: bool, dtype: torch.dtype) -> Results:
    x_TND, h, w_ih, w_hh, b_ih, b_hh, starts_TN = tensors
    fused_cell = torch.ops.aten._thnn_fused_gru_cell
    weights, zero = w_hh.to(dtype).t(), h.new_zeros(())
    steps, outputs = [], []
    for of_x, mask in zip(project(x_TND, w_ih, dtype), starts_TN.unsqueeze(-1), strict=True):
        h_in = torch.where(mask, zero, h)
        operand = h_in.to(dtype)
        h, gates = fused_cell(of_x, product(operand, weights, h.dtype), h_in, b_ih, b_hh)
        outputs.append(h)
        if keep:
            steps.append((operand, gates))
    return (torch.stack(outputs),), by_kind(steps)


@products_as_in_layers()
def _gru_backward(
    tensors: Tensors, kept: Tensors, grads: Tensors, needs: tuple[bool, ...], dtype: torch.dtype
) -> Gradients:
    x_TND, _, w_ih, w_hh, *_, starts_TN = tensors
    fused_cell = torch.ops.aten._thnn_fused_gru_cell_backward
    num_steps, weights, zero = len(starts_TN), w_hh.to(dtype), w_hh.new_zeros(())
    h_in, gates = by_step(kept, num_steps)
    masks, grad_outputs = starts_TN.unsqueeze(-1), grads[0].contiguous()
    dh, of_x, of_h = grad_outputs[-1], [], []
    for t in reversed(range(num_steps)):
        of_x_step, of_h_step, direct, *_ = fused_cell(dh, gates[t], False)
        of_x.append(of_x_step.to(dtype))
        of_h.append(of_h_step.to(dtype))
        if t > 0 or needs[1]:
            through_gates = product(of_h[-1], weights, direct.dtype)
            dh = torch.where(masks[t], zero, through_gates.add_(direct))
        if t > 0:
            dh.add_(grad_outputs[t - 1])
    flat_x, flat_h = torch.cat(of_x[::-1]), torch.cat(of_h[::-1])
    of_rest = _rest_of_backward(x_TND, h_in, w_ih, flat_x, flat_h, (needs[0], *needs[2:6]), dtype)
    return of_rest[0], dh if needs[1] else None, *of_rest[1:], None


def _rest_of_backward(
    x_TND: torch.Tensor,
    h_in: Tensors,
    w_ih: torch.Tensor,
    of_x: torch.Tensor,
    of_h: torch.Tensor,
    needs: tuple[bool, ...],
    dtype: torch.dtype,
) -> Gradients:
    """Return the gradients of x, w_ih, w_hh, b_ih and b_hh: one product or sum each.

    Args:
        x_TND: Inputs.
        h_in: Cleared hidden states of the steps, shape (N, H) each.
        w_ih: Input weights, shape (G, D).
        of_x: Gradients of the gates' inputs from x, shape (T * N, G).
        of_h: Gradients of the gates' inputs from h, shape (T * N, G); may be ``of_x``.
        needs: Which of the gradients are needed.
        dtype: Of the operands of products.
    """
    full, flat_x = w_ih.dtype, x_TND.flatten(0, 1)
    dx = dw_ih = dw_hh = db_ih = db_hh = None
    if needs[0]:
        dx = product(of_x, w_ih.to(dtype), full).view_as(x_TND)
    if needs[1]:
        dw_ih = product(of_x.t(), flat_x.to(dtype), full)
    if needs[2]:
        dw_hh = product(of_h.t(), torch.cat(h_in), full)
    if needs[3]:
        db_ih = of_x.sum(0, dtype=full)
    if needs[4]:
        db_hh = db_ih if of_h is of_x and db_ih is not None else of_h.sum(0, dtype=full)
    return dx, dw_ih, dw_hh, db_ih, db_hh


PASSES = {
    "lstm": Passes(_lstm_forward, _lstm_backward),
    "gru": Passes(_gru_forward, _gru_backward),
}
"""By the name of the cell."""

LAYERS: dict[str, LayerScan] = {
    name: functools.partial(scan_layer, passes) for name, passes in PASSES.items()
}
"""Scans of one layer, by the name of its cell."""

"""The CPU's fastest engine: per step one product of torch and one compiled function.

What a step does besides its matrix product is a dozen small operations in torch; ``cells.c`` does
it in one pass over memory, the reset of the next step's state included. As in ``fused``,
``[x | 1 | h']`` of all steps lies in one buffer: a step takes one product with
``[W_ih | b | W_hh]``, and the gradient of all weights is one product over the window. Under
autocast to bfloat16 that buffer, the products and their gradients are bfloat16, the rest stays
float32. Other half precision is left to ``fused``.

LSTM (Hochreiter and Schmidhuber, 1997; Gers et al., 2000) and GRU (Cho et al., 2014, in the form of
torch and cuDNN), with the state cleared where an episode starts (``s_t``)::

    h', c' = where(s_t, 0, (h_{t-1}, c_{t-1}))
    LSTM: i, f, o = sigmoid(W_ih x_t + W_hh h' + b)      g = tanh(...)
          c_t = f * c' + i * g                           h_t = o * tanh(c_t)
    GRU:  r, z = sigmoid(W_ih x_t + b_ih + W_hh h' + b_hh)
          u = W_hh h' + b_hh (candidate part)            n = tanh(W_ih x_t + b_ih + r * u)
          h_t = n + z * (h' - n)

Shapes: T steps, N environments, D inputs, H hidden, K = D + 1 + H.
"""

from typing import Any

import torch

from rsl_tbptt.core.scan.cpu import gru, lstm
from rsl_tbptt.core.scan.cpu.compiler import OPTIONS, load_cells
from rsl_tbptt.core.scan.cpu.products import product_into
from rsl_tbptt.core.scan.cpu.weights import (
    StepProduct,
    prepare,
    step_product,
    transposed_step_product,
)
from rsl_tbptt.core.scan.cpu.workspace import Buffers
from rsl_tbptt.core.scan.layers import LayerScan, Tensors


def scan_lstm(
    inputs: torch.Tensor,
    state: Tensors,
    weights: Tensors,
    episode_starts: torch.Tensor,
    operand_dtype: torch.dtype,
    cuts: tuple[int, ...] = (),
    added: torch.Tensor | None = None,
) -> tuple[torch.Tensor, Tensors]:
    """Scan one LSTM layer over inputs (T, N, D); all arguments and the result as in ``LayerScan``.

    Raises:
        NotImplementedError: If there is no C compiler, or it fails.
    """
    if (inputs.dtype, operand_dtype) not in OPTIONS:
        inputs, weights = _with_added(inputs, weights, added)
        return lstm.scan_layer(inputs, state, weights, episode_starts, operand_dtype, cuts)
    starts = _starts_and_cuts(episode_starts, cuts)
    outputs, cell = LstmScan.apply(inputs, *state, *weights, added, *starts, operand_dtype)
    return outputs, (outputs[-1], cell)


def scan_gru(
    inputs: torch.Tensor,
    state: Tensors,
    weights: Tensors,
    episode_starts: torch.Tensor,
    operand_dtype: torch.dtype,
    cuts: tuple[int, ...] = (),
    added: torch.Tensor | None = None,
) -> tuple[torch.Tensor, Tensors]:
    """Scan one GRU layer over inputs (T, N, D); all else as in ``LayerScan`` and ``scan_lstm``."""
    if (inputs.dtype, operand_dtype) not in OPTIONS:
        inputs, weights = _with_added(inputs, weights, added)
        return gru.scan_layer(inputs, state, weights, episode_starts, operand_dtype, cuts)
    starts = _starts_and_cuts(episode_starts, cuts)
    outputs = GruScan.apply(inputs, *state, *weights, added, *starts, operand_dtype)
    return outputs, (outputs[-1],)


def _with_added(
    inputs: torch.Tensor, weights: Tensors, added: torch.Tensor | None
) -> tuple[torch.Tensor, Tensors]:
    """Return inputs and weights whose product is what was, and what is added to it."""
    if added is None:
        return inputs, weights
    w_ih, *others = weights
    w_ih = torch.cat((w_ih, torch.eye(len(w_ih)).to(w_ih)), dim=1)
    return torch.cat((inputs, added), dim=-1), (w_ih, *others)


def _starts_and_cuts(
    episode_starts: torch.Tensor, cuts: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where the state is cleared, and where its gradient is: (T, N), bool, contiguous."""
    starts = episode_starts.contiguous()
    if not cuts:
        return starts, starts
    return starts, starts.index_fill(0, torch.tensor(cuts), True)


def _product_of_lstm(
    num_envs: int,
    dtype: torch.dtype,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor,
    b_hh: torch.Tensor,
) -> StepProduct:
    """Return the product of ``[x | 1 | h']`` with all weights, (4H, K)."""
    weights = torch.cat((w_ih, (b_ih + b_hh).unsqueeze(1), w_hh), dim=1)
    return step_product(num_envs, dtype, weights)


def _products_of_gru(
    num_envs: int,
    dtype: torch.dtype,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor,
    b_hh: torch.Tensor,
) -> tuple[StepProduct, torch.Tensor]:
    """Return the product of ``[x | 1 | h']`` with the weights of r, z and u, (3H, K); and a factor.

    By it, (D + 1, H), ``[x | 1]`` becomes the part of n that does not depend on h'.
    """
    D, of_n = w_ih.shape[1], slice(2 * w_hh.shape[1], None)
    of_rzu = torch.cat((w_ih, (b_ih + b_hh).unsqueeze(1), w_hh), dim=1)
    of_rzu[of_n, :D] = 0.0
    of_rzu[of_n, D] = b_hh[of_n]
    x_part_of_n = torch.cat((w_ih[of_n], b_ih[of_n, None]), dim=1)
    return step_product(num_envs, dtype, of_rzu), x_part_of_n.to(dtype).t()


class LstmScan(torch.autograd.Function):
    """Differentiable scan of one LSTM layer; its backward pass may run once."""

    @staticmethod
    def forward(
        ctx: Any,
        x_TND: torch.Tensor,
        h0_NH: torch.Tensor,
        c0_NH: torch.Tensor,
        w_ih: torch.Tensor,
        w_hh: torch.Tensor,
        b_ih: torch.Tensor,
        b_hh: torch.Tensor,
        added: torch.Tensor | None,
        starts_TN: torch.Tensor,
        cuts_TN: torch.Tensor,
        dtype: torch.dtype,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the outputs, shape (T, N, H), and the cell state after step T-1, shape (N, H).

        Args:
            ctx: Autograd context.
            x_TND: Inputs.
            h0_NH: Hidden state before step 0.
            c0_NH: Cell state before step 0.
            w_ih: Input weights, shape (4H, D).
            w_hh: Hidden weights, shape (4H, H).
            b_ih: Input bias, shape (4H,).
            b_hh: Hidden bias, shape (4H,).
            added: What is added to the gates before their activations, shape (T, N, 4H), or None.
            starts_TN: Episode starts, bool, contiguous.
            cuts_TN: The same, and where else the gradient of the state stops.
            dtype: Of the operands of matrix products.
        """
        (T, N, D), H, full = x_TND.shape, w_hh.shape[1], x_TND.dtype
        buffers = Buffers(
            x_TND.device,
            (dtype, (T, N, D + 1 + H)),
            (full, (T, N, 4 * H)),
            (full, (T + 1, N, H)),
            (full, (T, N, H)),
            (dtype, (T, N, 4 * H) if dtype != full else (0,)),
        )
        inputs, gates, cells, tanh_cells, grads = buffers.tensors
        product = prepare(_product_of_lstm, N, dtype, w_ih, w_hh, b_ih, b_hh)
        outputs = x_TND.new_empty(T, N, H)
        hidden = inputs[..., D + 1 :]
        inputs[..., :D] = x_TND
        inputs[..., D] = 1.0
        start = starts_TN[0].unsqueeze(1)
        hidden[0] = h0_NH.masked_fill(start, 0.0)
        cells[0] = c0_NH.masked_fill(start, 0.0)
        step = load_cells(full, dtype).lstm_forward
        at = [_addresses(x) for x in (gates, cells[:-1], cells[1:], tanh_cells, outputs)]
        at += [_addresses_after(x) for x in (hidden, starts_TN)]
        sizes = N, H, torch.get_num_threads(), inputs.stride(1)
        steps = zip(inputs, _outputs_of_products(gates, grads), zip(*at, strict=True), strict=True)
        for t, (row, out, addresses) in enumerate(steps):
            of_gates = product(row, out)
            if added is not None:
                of_gates += added[t]
            step(*sizes, of_gates.data_ptr(), *addresses)
        last_cell = cells[-1].clone()
        ctx.save_for_backward(w_ih, w_hh)
        ctx.buffers, ctx.cuts = buffers, cuts_TN
        return outputs, last_cell

    @staticmethod
    def backward(
        ctx: Any,
        grad_outputs: torch.Tensor,
        grad_cell: torch.Tensor,
    ) -> tuple[torch.Tensor | None, ...]:
        """Return gradients, shaped as ``forward``'s tensors; gates are overwritten by theirs."""
        inputs, gates, cells, tanh_cells, grads = ctx.buffers.take()
        w_ih, w_hh = ctx.saved_tensors
        (T, N, H), D, full, dtype = tanh_cells.shape, w_ih.shape[1], gates.dtype, inputs.dtype
        grads = gates if dtype == full else grads
        grad_outputs = grad_outputs.contiguous()
        # C reads them row by row, and a copy otherwise keeps the strides of its source.
        dc = grad_cell.clone(memory_format=torch.contiguous_format)
        dh = torch.zeros_like(dc, dtype=dtype)
        step = load_cells(full, dtype).lstm_backward
        at = [_addresses(x) for x in (gates, grads, cells[:-1], tanh_cells, grad_outputs)]
        at.append(_addresses_after(ctx.cuts))
        product = prepare(transposed_step_product, N, dtype, w_hh)
        sizes = N, H, torch.get_num_threads()
        steps = zip(grads, zip(*at, strict=True), strict=True)
        for t, (grad, addresses) in reversed(list(enumerate(steps))):
            step(*sizes, *addresses, dh.data_ptr(), dc.data_ptr())
            if t > 0 or ctx.needs_input_grad[1]:
                dh = product(grad, dh)
        for gradient in (dh, dc):
            gradient.masked_fill_(ctx.cuts[0].unsqueeze(1), 0.0)
        flat_grads, dx = grads.flatten(0, 1), None
        with torch.autocast("cpu", enabled=False):  # which is the forward pass's business
            if ctx.needs_input_grad[0]:
                dx = (flat_grads @ w_ih.to(dtype)).unflatten(0, (T, N)).to(full)
            dw = (inputs.flatten(0, 1).t() @ flat_grads).to(full)
        dw_ih, db, dw_hh = dw.t().split((D, 1, H), dim=1)
        d_added = grads.to(full, copy=True) if ctx.needs_input_grad[7] else None
        ctx.buffers.release()
        of_state = dx, dh.to(full), dc
        return *of_state, dw_ih, dw_hh, *[db.squeeze(1)] * 2, d_added, None, None, None


class GruScan(torch.autograd.Function):
    """Differentiable scan of one GRU layer; its backward pass may run once."""

    @staticmethod
    def forward(
        ctx: Any,
        x_TND: torch.Tensor,
        h0_NH: torch.Tensor,
        w_ih: torch.Tensor,
        w_hh: torch.Tensor,
        b_ih: torch.Tensor,
        b_hh: torch.Tensor,
        added: torch.Tensor | None,
        starts_TN: torch.Tensor,
        cuts_TN: torch.Tensor,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """Return the outputs, shape (T, N, H); the last is the state after step T-1.

        Args:
            ctx: Autograd context.
            x_TND: Inputs.
            h0_NH: Hidden state before step 0.
            w_ih: Input weights, shape (3H, D).
            w_hh: Hidden weights, shape (3H, H).
            b_ih: Input bias, shape (3H,).
            b_hh: Hidden bias, shape (3H,).
            added: What is added to the gates before their activations, shape (T, N, 3H), or None;
                to the part of n that is not multiplied by r.
            starts_TN: Episode starts, bool, contiguous.
            cuts_TN: The same, and where else the gradient of the state stops.
            dtype: Of the operands of matrix products.
        """
        (T, N, D), H, full = x_TND.shape, w_hh.shape[1], x_TND.dtype
        buffers = Buffers(
            x_TND.device,
            (dtype, (T, N, D + 1 + H)),
            (full, (T, N, 3 * H)),
            (full, (T, N, H)),
            (full, (T, N, H) if dtype != full else (0,)),
            (dtype, (T, N, 3 * H) if dtype != full else (0,)),
            (dtype, (T, N, H) if dtype != full else (0,)),
        )
        inputs, gates, n, before, grads, _ = buffers.tensors
        product, of_n = prepare(_products_of_gru, N, dtype, w_ih, w_hh, b_ih, b_hh)
        outputs = x_TND.new_empty(T, N, H)
        hidden = inputs[..., D + 1 :]
        inputs[..., :D] = x_TND
        inputs[..., D] = 1.0
        before = hidden if dtype == full else before
        hidden[0] = before[0] = h0_NH.masked_fill(starts_TN[0].unsqueeze(1), 0.0)
        product_into(n.flatten(0, 1), inputs.flatten(0, 1)[:, : D + 1], of_n, 1.0)
        if added is not None:
            n += added[..., 2 * H :]
        step = load_cells(full, dtype).gru_forward
        at = [_addresses(x) for x in (gates, n, before, outputs)]
        at += [_addresses_after(x) for x in (before, hidden, starts_TN)]
        sizes = N, H, torch.get_num_threads(), before.stride(1), inputs.stride(1)
        steps = zip(inputs, _outputs_of_products(gates, grads), zip(*at, strict=True), strict=True)
        for t, (row, out, addresses) in enumerate(steps):
            of_gates = product(row, out)
            if added is not None:
                of_gates[:, : 2 * H] += added[t, :, : 2 * H]
            step(*sizes, of_gates.data_ptr(), *addresses)
        ctx.save_for_backward(w_ih, w_hh)
        ctx.buffers, ctx.cuts = buffers, cuts_TN
        return outputs

    @staticmethod
    def backward(
        ctx: Any,
        grad_outputs: torch.Tensor,
    ) -> tuple[torch.Tensor | None, ...]:
        """Return gradients, shaped as ``forward``'s tensors; gates are overwritten by theirs."""
        inputs, gates, n, before, grads, grads_n = ctx.buffers.take()
        w_ih, w_hh = ctx.saved_tensors
        (T, N, H), D, full, dtype = n.shape, w_ih.shape[1], gates.dtype, inputs.dtype
        if dtype == full:
            before, grads, grads_n = inputs[..., D + 1 :], gates, n
        grad_outputs = grad_outputs.contiguous()
        dh = grad_outputs.new_zeros(N, H)
        dh_gates = torch.zeros_like(dh, dtype=dtype)
        step = load_cells(full, dtype).gru_backward
        at = [_addresses(x) for x in (gates, grads, n, grads_n, before, grad_outputs)]
        at.append(_addresses_after(ctx.cuts))
        product = prepare(transposed_step_product, N, dtype, w_hh)
        sizes = N, H, torch.get_num_threads(), before.stride(1)
        steps = zip(grads, zip(*at, strict=True), strict=True)
        for t, (grad, addresses) in reversed(list(enumerate(steps))):
            step(*sizes, *addresses, dh_gates.data_ptr(), dh.data_ptr())
            if t > 0 or ctx.needs_input_grad[1]:
                dh_gates = product(grad, dh_gates)
        dh += dh_gates
        dh.masked_fill_(ctx.cuts[0].unsqueeze(1), 0.0)
        flat_inputs, of_gates, of_candidates = (x.flatten(0, 1) for x in (inputs, grads, grads_n))
        of_rz, x_and_one, dx = of_gates[:, : 2 * H], flat_inputs[:, : D + 1].t(), None
        with torch.autocast("cpu", enabled=False):  # which is the forward pass's business
            if ctx.needs_input_grad[0]:
                of_x = w_ih.to(dtype)
                dx = torch.mm(of_rz, of_x[: 2 * H]).addmm_(of_candidates, of_x[2 * H :])
                dx = dx.unflatten(0, (T, N)).to(full)
            of_hidden = (flat_inputs[:, D:].t() @ of_gates).to(full)
            of_x = torch.cat((x_and_one @ of_rz, x_and_one @ of_candidates), dim=1).to(full)
        db_hh, dw_hh = of_hidden.t().split((1, H), dim=1)
        dw_ih, db_ih = of_x.t().split((D, 1), dim=1)
        d_added = None
        if ctx.needs_input_grad[6]:
            d_added = torch.cat((grads[..., : 2 * H], grads_n), dim=-1).to(full)
        ctx.buffers.release()
        of_biases = db_ih.squeeze(1), db_hh.squeeze(1)
        return dx, dh, dw_ih, dw_hh, *of_biases, d_added, None, None, None


def _outputs_of_products(gates: torch.Tensor, grads: torch.Tensor) -> torch.Tensor:
    """Return where the steps' products go: to the gates, or to one place if those are not short."""
    return gates if gates.dtype == grads.dtype else grads[:1].expand_as(gates)


def _addresses(steps: torch.Tensor) -> list[int | None]:
    """Return where each step's part of a tensor (T, ...) begins in memory."""
    first, size = steps.data_ptr(), steps.stride(0) * steps.element_size()
    return [first + t * size for t in range(len(steps))]


def _addresses_after(steps: torch.Tensor) -> list[int | None]:
    """Return for each step where the next one's part begins, None after the last."""
    return [*_addresses(steps)[1:], None]


LAYERS: dict[str, LayerScan] = {"lstm": scan_lstm, "gru": scan_gru}
"""Scans of one layer, by the name of its cell."""

"""One LSTM layer over a window: the recurrence and its gradient, written out.

Hochreiter and Schmidhuber (1997) with the forget gate of Gers et al. (2000), in torch's gate order
and with the state cleared where an episode starts (``s_t``)::

    h', c' = where(s_t, 0, (h_{t-1}, c_{t-1}))
    i, f, o = sigmoid(W_ih x_t + W_hh h' + b)      g = tanh(...)
    c_t = f * c' + i * g                           h_t = o * tanh(c_t)

Shapes: T steps, N environments, D inputs, H hidden.
"""

from typing import Any

import torch

from rsl_tbptt.core.scan.products import Buffers, add_product, product

sigmoid_backward = torch.ops.aten.sigmoid_backward
tanh_backward = torch.ops.aten.tanh_backward


class LstmScan(torch.autograd.Function):
    """Differentiable scan of one LSTM layer; its backward pass may run once."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x_TND: torch.Tensor,
        h0_NH: torch.Tensor,
        c0_NH: torch.Tensor,
        w_ih: torch.Tensor,
        w_hh: torch.Tensor,
        bias: torch.Tensor,
        starts_TN: torch.Tensor,
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
            bias: Sum of both biases, shape (4H,).
            starts_TN: Episode starts, bool.
            dtype: Of the operands of matrix products.
        """
        num_steps, num_envs, _ = x_TND.shape
        hidden = w_hh.shape[1]
        gates = product(x_TND.flatten(0, 1), w_ih.t(), dtype).add_(bias)
        gates = gates.view(num_steps, num_envs, 4 * hidden)
        h_in, cells, outputs = (x_TND.new_empty(num_steps, num_envs, hidden) for _ in range(3))
        w_hh_t, starts, zero = w_hh.t().to(dtype), starts_TN.unsqueeze(-1), h0_NH.new_zeros(())
        h, c = h0_NH, c0_NH
        for t in range(num_steps):
            torch.where(starts[t], zero, h, out=h_in[t])
            c = c.masked_fill(starts[t], 0.0)
            gate = add_product(gates[t], h_in[t], w_hh_t)
            i, f, g, o = gate.chunk(4, dim=-1)
            gate[:, : 2 * hidden].sigmoid_()
            g.tanh_()
            o.sigmoid_()
            c = torch.mul(f, c, out=cells[t]).addcmul_(i, g)
            h = torch.mul(c.tanh(), o, out=outputs[t])
        ctx.save_for_backward(x_TND, c0_NH, w_ih, w_hh, starts_TN)
        ctx.buffers, ctx.dtype = Buffers(gates, h_in, cells), dtype
        ctx.set_materialize_grads(False)
        return outputs, cells[-1].clone()

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        grad_outputs: torch.Tensor | None,
        grad_cell: torch.Tensor | None,
    ) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of ``forward``'s tensors; gates are overwritten by theirs."""
        x_TND, c0_NH, w_ih, w_hh, starts_TN = ctx.saved_tensors
        gates, h_in, cells = ctx.buffers.take()
        starts, w_hh_d = starts_TN.unsqueeze(-1), w_hh.to(ctx.dtype)
        dc = torch.zeros_like(c0_NH) if grad_cell is None else grad_cell
        dh = torch.zeros_like(c0_NH)
        for t in reversed(range(len(gates))):
            if grad_outputs is not None:
                dh = dh + grad_outputs[t]
            i, f, g, o = gates[t].chunk(4, dim=-1)
            c_in = (cells[t - 1] if t > 0 else c0_NH).masked_fill(starts[t], 0.0)
            tanh_c = cells[t].tanh()
            dc = dc + tanh_backward(dh * o, tanh_c)
            di, df = sigmoid_backward(dc * g, i), sigmoid_backward(dc * c_in, f)
            dg, do = tanh_backward(dc * i, g), sigmoid_backward(dh * tanh_c, o)
            dc = (dc * f).masked_fill(starts[t], 0.0)
            torch.cat((di, df, dg, do), dim=-1, out=gates[t])
            if t > 0 or ctx.needs_input_grad[1]:
                dh = product(gates[t], w_hh_d, ctx.dtype).masked_fill(starts[t], 0.0)
        d_gates, flat_x = gates.flatten(0, 1), x_TND.flatten(0, 1)
        dx = product(d_gates, w_ih, ctx.dtype).view_as(x_TND) if ctx.needs_input_grad[0] else None
        dw_ih = product(d_gates.t(), flat_x, ctx.dtype)
        dw_hh = product(d_gates.t(), h_in.flatten(0, 1), ctx.dtype)
        return dx, dh, dc, dw_ih, dw_hh, d_gates.sum(0), None, None

"""One GRU layer over a window: the recurrence and its gradient, written out.

Cho et al. (2014) in the form of torch and cuDNN, with the state cleared where an episode starts
(``s_t``)::

    h' = where(s_t, 0, h_{t-1})
    r, z = sigmoid(W_ih x_t + b_ih + W_hh h' + b_hh)
    u = W_hh h' + b_hh (candidate part)            n = tanh(W_ih x_t + b_ih + r * u)
    h_t = n + z * (h' - n)

Shapes: T steps, N environments, D inputs, H hidden.
"""

from typing import Any

import torch

from rsl_tbptt.core.scan.products import Buffers, add_product, product

sigmoid_backward = torch.ops.aten.sigmoid_backward
tanh_backward = torch.ops.aten.tanh_backward


class GruScan(torch.autograd.Function):
    """Differentiable scan of one GRU layer; its backward pass may run once."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x_TND: torch.Tensor,
        h0_NH: torch.Tensor,
        w_ih: torch.Tensor,
        w_hh: torch.Tensor,
        b_ih: torch.Tensor,
        b_hh: torch.Tensor,
        starts_TN: torch.Tensor,
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
            starts_TN: Episode starts, bool.
            dtype: Of the operands of matrix products.
        """
        num_steps, num_envs, _ = x_TND.shape
        hidden = w_hh.shape[1]
        gates = product(x_TND.flatten(0, 1), w_ih.t(), dtype).add_(b_ih)
        gates = gates.view(num_steps, num_envs, 3 * hidden)
        h_in, candidates, outputs = (x_TND.new_empty(num_steps, num_envs, hidden) for _ in range(3))
        w_hh_t, starts, zero = w_hh.t().to(dtype), starts_TN.unsqueeze(-1), h0_NH.new_zeros(())
        h = h0_NH
        for t in range(num_steps):
            h = torch.where(starts[t], zero, h, out=h_in[t])
            projected = add_product(b_hh.expand(num_envs, -1).clone(), h, w_hh_t)
            candidates[t] = projected[:, 2 * hidden :]
            gates[t, :, : 2 * hidden].add_(projected[:, : 2 * hidden]).sigmoid_()
            r, z, n = gates[t].chunk(3, dim=-1)
            n.addcmul_(r, candidates[t]).tanh_()
            h = torch.lerp(n, h, z, out=outputs[t])
        ctx.save_for_backward(x_TND, w_ih, w_hh, starts_TN)
        ctx.buffers, ctx.dtype = Buffers(gates, h_in, candidates), dtype
        return outputs

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        grad_outputs: torch.Tensor,
    ) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of ``forward``'s tensors; gates are overwritten by theirs."""
        x_TND, w_ih, w_hh, starts_TN = ctx.saved_tensors
        gates, h_in, candidates = ctx.buffers.take()
        starts, w_hh_d = starts_TN.unsqueeze(-1), w_hh.to(ctx.dtype)
        projected_grads = torch.empty_like(gates)
        dh = torch.zeros_like(h_in[0])
        for t in reversed(range(len(gates))):
            dh = dh + grad_outputs[t]
            r, z, n = gates[t].chunk(3, dim=-1)
            dn = tanh_backward(torch.addcmul(dh, dh, z, value=-1.0), n)
            dz = sigmoid_backward(dh * (h_in[t] - n), z)
            dr = sigmoid_backward(dn * candidates[t], r)
            torch.cat((dr, dz, dn * r), dim=-1, out=projected_grads[t])
            dh = dh * z
            torch.cat((dr, dz, dn), dim=-1, out=gates[t])
            if t > 0 or ctx.needs_input_grad[1]:
                dh = dh + product(projected_grads[t], w_hh_d, ctx.dtype)
                dh = dh.masked_fill(starts[t], 0.0)
        d_gates, d_projected = gates.flatten(0, 1), projected_grads.flatten(0, 1)
        dx = product(d_gates, w_ih, ctx.dtype).view_as(x_TND) if ctx.needs_input_grad[0] else None
        dw_ih = product(d_gates.t(), x_TND.flatten(0, 1), ctx.dtype)
        dw_hh = product(d_projected.t(), h_in.flatten(0, 1), ctx.dtype)
        return dx, dh, dw_ih, dw_hh, d_gates.sum(0), d_projected.sum(0), None, None

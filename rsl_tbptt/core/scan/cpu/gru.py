"""One GRU layer over a window: the recurrence and its gradient, written out.

Cho et al. (2014) in the form of torch and cuDNN, with the state cleared where an episode starts
(``s_t``)::

    h' = where(s_t, 0, h_{t-1})
    r, z = sigmoid(W_ih x_t + b_ih + W_hh h' + b_hh)
    u = W_hh h' + b_hh (candidate part)            n = tanh(W_ih x_t + b_ih + r * u)
    h_t = n + z * (h' - n)

It is made fast as the LSTM is (see ``lstm.py``): ``[x | 1 | h']`` of all steps lies in one buffer,
a step takes one product, and the gates are kept as ``tr, tz`` with ``r = (1 + tr) / 2`` and so on,
beside ``v = u / 2`` and n, whose part of ``x`` is one product over the window. The factors of one
half go into the products; the weights of n are doubled, as it has no half.

Shapes: T steps, N environments, D inputs, H hidden.
"""

from typing import Any

import torch

from rsl_tbptt.core.scan.cpu.products import product_into, rows_of_steps
from rsl_tbptt.core.scan.cpu.workspace import Buffers
from rsl_tbptt.core.scan.layers import Tensors, as_in_layers

tanh_backward = torch.ops.aten.tanh_backward.grad_input


def scan_layer(
    inputs: torch.Tensor,
    state: Tensors,
    weights: Tensors,
    episode_starts: torch.Tensor,
    operand_dtype: torch.dtype,
    cuts: tuple[int, ...] = (),
) -> tuple[torch.Tensor, Tensors]:
    """Scan one layer over inputs (T, N, D); all arguments and the result as in ``LayerScan``."""
    outputs = GruScan.apply(inputs, *state, *weights, episode_starts, operand_dtype, cuts)
    return outputs, (outputs[-1],)


class GruScan(torch.autograd.Function):
    """Differentiable scan of one GRU layer; its backward pass may run once."""

    @staticmethod
    @as_in_layers
    def forward(
        ctx: Any,
        x_TND: torch.Tensor,
        h0_NH: torch.Tensor,
        w_ih: torch.Tensor,
        w_hh: torch.Tensor,
        b_ih: torch.Tensor,
        b_hh: torch.Tensor,
        starts_TN: torch.Tensor,
        dtype: torch.dtype,
        cuts: tuple[int, ...],
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
            cuts: Steps before which the gradient of the state stops.
        """
        (T, N, D), H = x_TND.shape, w_hh.shape[1]
        full = x_TND.dtype
        buffers = Buffers(
            x_TND.device,
            (dtype, (4 * H, D + 1 + H)),
            (dtype, (T, N, D + 1 + H)),
            (full, (T, N, 3 * H)),
            (full, (T, N, H)),
            (full, (T, N, H)),
            (full, (N, H)),
            (full, (T, N, H) if dtype != full else (0,)),
            (dtype, (T, N, 3 * H) if dtype != full else (0,)),
            (dtype, (T, N, H) if dtype != full else (0,)),
        )
        weights, inputs, gates, v, n, scratch, h_in, *_ = buffers.tensors
        outputs = x_TND.new_empty(T, N, H)
        inputs[..., :D] = x_TND
        inputs[..., D] = 1.0
        _pack(weights, w_ih, w_hh, b_ih, b_hh)
        of_vrz, of_n = weights[: 3 * H].t(), weights[3 * H :, : D + 1].t()
        x_and_one = inputs.flatten(0, 1)[:, : D + 1]
        product_into(n.flatten(0, 1), x_and_one, of_n, 0.5)
        rows = rows_of_steps(starts_TN)
        hidden = inputs[..., D + 1 :]
        h_in = hidden if dtype == full else h_in
        of_v, tr, tz = (gate.unbind(0) for gate in gates.chunk(3, dim=-1))
        h = h0_NH
        for t in range(T):
            h = h_in[t].copy_(h)
            if (envs := rows[t]) is not None:
                h.index_fill_(0, envs, 0.0)
            if h_in is not hidden:
                hidden[t] = h
            product_into(gates[t], inputs[t], of_vrz, 0.5)
            v[t].copy_(of_v[t])
            gates[t].tanh_()  # v's columns for nothing: one piece of memory is faster than rows
            n[t].add_(v[t]).addcmul_(tr[t], v[t]).tanh_()
            torch.lerp(n[t], h, tz[t], out=scratch)
            h = torch.lerp(scratch, h, 0.5, out=outputs[t])
        ctx.buffers, ctx.rows, ctx.cuts, ctx.num_inputs = buffers, rows, cuts, D
        return outputs

    @staticmethod
    @as_in_layers
    def backward(
        ctx: Any,
        grad_outputs: torch.Tensor,
    ) -> tuple[torch.Tensor | None, ...]:
        """Return gradients, shaped as ``forward``'s tensors; gates are overwritten by theirs."""
        weights, inputs, gates, v, n, scratch, h_in, grads, grads_n = ctx.buffers.take()
        rows, D, H = ctx.rows, ctx.num_inputs, scratch.shape[-1]
        if inputs.dtype == gates.dtype:
            h_in, grads, grads_n = inputs[..., D + 1 :], gates, n
        of_v, tr, tz = (gate.unbind(0) for gate in gates.chunk(3, dim=-1))
        tr_and_tz, w_hh = gates[..., H:].unbind(0), weights[: 3 * H, D + 1 :]
        upstream = torch.empty_like(tr_and_tz[0])
        up_r, up_z = upstream.chunk(2, dim=-1)
        dh, twice_dh = grad_outputs[-1].clone(), torch.empty_like(scratch)
        for t in reversed(range(len(gates))):
            torch.sub(h_in[t], n[t], out=scratch)
            torch.mul(dh, scratch, out=up_z)
            torch.addcmul(dh, dh, tz[t], out=twice_dh)
            torch.addcmul(dh, dh, tz[t], value=-1.0, out=scratch)
            dn = tanh_backward(scratch, n[t], grad_input=n[t])
            torch.mul(dn, v[t], out=up_r)
            torch.addcmul(dn, dn, tr[t], out=of_v[t])
            tanh_backward(upstream, tr_and_tz[t], grad_input=tr_and_tz[t])
            if grads is not gates:
                grads[t], grads_n[t] = gates[t], dn
            if t > 0 or ctx.needs_input_grad[1]:
                dh, twice_dh = product_into(twice_dh, grads[t], w_hh, 0.25, 0.5), dh
            if (envs := rows[t]) is not None:
                dh.index_fill_(0, envs, 0.0)
            if t in ctx.cuts:
                dh.zero_()
            if t > 0:
                dh.add_(grad_outputs[t - 1])
        flat_inputs, of_vrz, of_n = (x.flatten(0, 1) for x in (inputs, grads, grads_n))
        of_rz, dx = of_vrz[:, H:], None
        if ctx.needs_input_grad[0]:
            dx = gates.new_empty(*gates.shape[:2], D)
            product_into(dx.flatten(0, 1), of_rz, weights[H : 3 * H, :D], 0.25)
            product_into(dx.flatten(0, 1), of_n, weights[3 * H :, :D], 0.25, 1.0)
        of_hidden = gates.new_empty(1 + H, 3 * H)
        product_into(of_hidden, flat_inputs[:, D:].t(), of_vrz, 0.25)
        of_u, of_r_and_z = of_hidden.t().split((H, 2 * H))
        db_hh, dw_hh = torch.cat((of_r_and_z, of_u)).split((1, H), dim=1)
        of_x, x_and_one = gates.new_empty(D + 1, 3 * H), flat_inputs[:, : D + 1].t()
        product_into(of_x[:, : 2 * H], x_and_one, of_rz, 0.25)
        product_into(of_x[:, 2 * H :], x_and_one, of_n, 0.5)
        dw_ih, db_ih = of_x.t().split((D, 1), dim=1)
        ctx.buffers.release()
        return dx, dh, dw_ih, dw_hh, db_ih.squeeze(1), db_hh.squeeze(1), None, None, None


def _pack(
    weights: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor,
    b_hh: torch.Tensor,
) -> None:
    """Write what ``[x | 1 | h']`` is multiplied with for v, r, z and twice n: (4H, D + 1 + H)."""
    (_, D), H = w_ih.shape, w_hh.shape[1]
    of_x, of_one, of_hidden = weights.split((D, 1, H), dim=1)
    of_x[:H] = 0.0
    of_x[H:] = w_ih
    of_one[:H, 0] = b_hh[2 * H :]
    of_one[H:, 0] = b_ih
    of_one[H : 3 * H, 0] += b_hh[: 2 * H]
    weights[3 * H :, : D + 1].mul_(2.0)
    of_hidden[:H] = w_hh[2 * H :]
    of_hidden[H : 3 * H] = w_hh[: 2 * H]

"""One LSTM layer over a window: the recurrence and its gradient, written out.

Hochreiter and Schmidhuber (1997) with the forget gate of Gers et al. (2000), in torch's gate order
and with the state cleared where an episode starts (``s_t``)::

    h', c' = where(s_t, 0, (h_{t-1}, c_{t-1}))
    i, f, o = sigmoid(W_ih x_t + W_hh h' + b)      g = tanh(...)
    c_t = f * c' + i * g                           h_t = o * tanh(c_t)

Two forms make it fast. ``[x | 1 | h']`` of all steps lies in one buffer, so that a step takes one
product with ``[W_ih | b | W_hh]`` and the gradient of all weights is one product over the window.
And ``sigmoid(a) = (1 + tanh(a / 2)) / 2``, so that all gates are one tanh (on CPUs several times
as fast as torch's sigmoid): the buffers hold ``ti, tf, g, to`` with ``i = (1 + ti) / 2`` and so on.
The factors of one half go into the products; the weights of g are doubled, as it has no half.

Shapes: T steps, N environments, D inputs, H hidden, K = D + 1 + H.
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
    w_ih, w_hh, b_ih, b_hh = weights
    outputs, cell = LstmScan.apply(
        inputs, *state, w_ih, w_hh, b_ih + b_hh, episode_starts, operand_dtype, cuts
    )
    return outputs, (outputs[-1], cell)


class LstmScan(torch.autograd.Function):
    """Differentiable scan of one LSTM layer; its backward pass may run once."""

    @staticmethod
    @as_in_layers
    def forward(
        ctx: Any,
        x_TND: torch.Tensor,
        h0_NH: torch.Tensor,
        c0_NH: torch.Tensor,
        w_ih: torch.Tensor,
        w_hh: torch.Tensor,
        bias: torch.Tensor,
        starts_TN: torch.Tensor,
        dtype: torch.dtype,
        cuts: tuple[int, ...],
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
            cuts: Steps before which the gradient of the state stops.
        """
        (T, N, D), H = x_TND.shape, w_hh.shape[1]
        full = x_TND.dtype
        buffers = Buffers(
            x_TND.device,
            (dtype, (4 * H, D + 1 + H)),
            (dtype, (T, N, D + 1 + H)),
            (full, (T, N, 4 * H)),
            (full, (T + 1, N, H)),
            (full, (T, N, H)),
            (full, (N, H)),
            (dtype, (T, N, 4 * H) if dtype != full else (0,)),
        )
        weights, inputs, gates, cells, tanh_cells, scratch, _ = buffers.tensors
        outputs = x_TND.new_empty(T, N, H)
        inputs[..., :D] = x_TND
        inputs[..., D] = 1.0
        cells[0] = c0_NH
        torch.cat((w_ih, bias.unsqueeze(1), w_hh), dim=1, out=weights)
        weights[2 * H : 3 * H].mul_(2.0)
        rows = rows_of_steps(starts_TN)
        hidden = inputs[..., D + 1 :].unbind(0)
        ti, tf, g, to = (gate.unbind(0) for gate in gates.chunk(4, dim=-1))
        h = h0_NH
        for t in range(T):
            hidden[t].copy_(h)
            c = cells[t]
            if (envs := rows[t]) is not None:
                hidden[t].index_fill_(0, envs, 0.0)
                c.index_fill_(0, envs, 0.0)
            product_into(gates[t], inputs[t], weights.t(), 0.5).tanh_()
            twice_fc = torch.addcmul(c, tf[t], c, out=cells[t + 1])
            twice_ig = torch.addcmul(g[t], ti[t], g[t], out=scratch)
            c = twice_fc.lerp_(twice_ig, 0.5)
            tanh_c = torch.tanh(c, out=tanh_cells[t])
            h = torch.addcmul(tanh_c, to[t], tanh_c, out=outputs[t]).mul_(0.5)
        last_cell = cells[-1].clone()
        ctx.buffers, ctx.rows, ctx.cuts, ctx.num_inputs = buffers, rows, cuts, D
        return outputs, last_cell

    @staticmethod
    @as_in_layers
    def backward(
        ctx: Any,
        grad_outputs: torch.Tensor,
        grad_cell: torch.Tensor,
    ) -> tuple[torch.Tensor | None, ...]:
        """Return gradients, shaped as ``forward``'s tensors; gates are overwritten by theirs."""
        weights, inputs, gates, cells, tanh_cells, scratch, grads = ctx.buffers.take()
        rows, D, H = ctx.rows, ctx.num_inputs, cells.shape[-1]
        w_ih, _, w_hh = weights.split((D, 1, H), dim=1)
        grads = gates if inputs.dtype == gates.dtype else grads
        ti, tf, g, to = (gate.unbind(0) for gate in gates.chunk(4, dim=-1))
        upstream = torch.empty_like(gates[0])
        up_i, up_f, up_g, up_o = upstream.chunk(4, dim=-1)
        dh, dc, twice_dfc = grad_outputs[-1].clone(), torch.empty_like(grad_cell), 2 * grad_cell
        for t in reversed(range(len(gates))):
            torch.mul(dh, tanh_cells[t], out=up_o)
            torch.addcmul(dh, to[t], dh, out=scratch)
            tanh_backward(scratch, tanh_cells[t], grad_input=scratch)
            torch.lerp(twice_dfc, scratch, 0.5, out=dc)
            torch.mul(dc, g[t], out=up_i)
            torch.mul(dc, cells[t], out=up_f)
            torch.addcmul(dc, dc, ti[t], out=up_g)
            torch.addcmul(dc, dc, tf[t], out=twice_dfc)
            tanh_backward(upstream, gates[t], grad_input=gates[t])
            if grads is not gates:
                grads[t] = gates[t]
            if t > 0 or ctx.needs_input_grad[1]:
                product_into(dh, grads[t], w_hh, 0.25)
            if (envs := rows[t]) is not None:
                dh.index_fill_(0, envs, 0.0)
                twice_dfc.index_fill_(0, envs, 0.0)
            if t in ctx.cuts:
                dh.zero_()
                twice_dfc.zero_()
            if t > 0:
                dh.add_(grad_outputs[t - 1])
        flat_grads, dx = grads.flatten(0, 1), None
        if ctx.needs_input_grad[0]:
            dx = gates.new_empty(*gates.shape[:2], D)
            product_into(dx.flatten(0, 1), flat_grads, w_ih, 0.25)
        dw = gates.new_empty(D + 1 + H, 4 * H)
        product_into(dw, inputs.flatten(0, 1).t(), flat_grads, 0.25)
        dw[:, 2 * H : 3 * H].mul_(2.0)
        dw_ih, db, dw_hh = dw.t().split((D, 1, H), dim=1)
        ctx.buffers.release()
        return dx, dh, 0.5 * twice_dfc, dw_ih, dw_hh, db.squeeze(1), None, None, None

"""One GRU layer over a window: the recurrence and its gradient, written out.

Cho et al. (2014) in the form of torch and cuDNN, with the state cleared where an episode starts
(``s_t``)::

    h' = where(s_t, 0, h_{t-1})
    r, z = sigmoid(W_ih x_t + b_ih + W_hh h' + b_hh)
    u = W_hh h' + b_hh (candidate part)            n = tanh(W_ih x_t + b_ih + r * u)
    h_t = n + z * (h' - n)

It is made fast as the LSTM is (see ``lstm.py``): ``[x | 1 | h']`` of all steps lies in one buffer, a
step takes one product, and the gates are kept as ``tr, tz`` with ``r = (1 + tr) / 2`` and so on,
beside ``v = u / 2``. Their columns are ordered v, r, z, n: the first three depend on ``h'``, the last
three on ``x``.

Shapes: T steps, N environments, D inputs, H hidden.
"""

from typing import Any

import torch

from rsl_tbptt.core.scan.products import product_into, rows_of_steps, scale_gates
from rsl_tbptt.core.scan.workspace import Buffers

tanh_backward = torch.ops.aten.tanh_backward.grad_input

_HALVES = (0.5, 0.5, 0.5)
"""Factor of what enters v, r and z, in the tanh form."""

_GRADIENTS = (0.25, 0.25, 0.25)
"""What the gradients of v, r and z computed below have to be multiplied with."""

_CANDIDATE_GRADIENT = 0.5
"""The same for n."""


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
        (T, N, D), H = x_TND.shape, w_hh.shape[1]  # noqa: N806
        full = x_TND.dtype
        buffers = Buffers(
            x_TND.device,
            (dtype, (T, N, D + 1 + H)),
            (full, (T, N, 4 * H)),
            (full, (T, N, H)),
            (full, (N, H)),
            (dtype, (T, N, 4 * H) if dtype != full else (0,)),
        )
        inputs, gates, h_in, scratch, _ = buffers.tensors
        outputs = x_TND.new_empty(T, N, H)
        inputs[..., :D] = x_TND
        inputs[..., D] = 1.0
        weights, candidate_weights = _forward_weights(w_ih, w_hh, b_ih, b_hh, dtype)
        x_and_one = inputs.flatten(0, 1)[:, : D + 1]
        product_into(gates.flatten(0, 1)[:, 3 * H :], x_and_one, candidate_weights)
        rows = rows_of_steps(starts_TN)
        hidden, of_product = inputs[..., D + 1 :].unbind(0), gates[..., : 3 * H].unbind(0)
        tr_and_tz = gates[..., H : 3 * H].unbind(0)
        v, tr, tz, n = (gate.unbind(0) for gate in gates.chunk(4, dim=-1))
        h = h0_NH
        for t in range(T):
            h = h_in[t].copy_(h)
            if len(rows[t]) > 0:
                h.index_fill_(0, rows[t], 0.0)
            hidden[t].copy_(h)
            product_into(of_product[t], inputs[t], weights)
            tr_and_tz[t].tanh_()
            n[t].add_(v[t]).addcmul_(tr[t], v[t]).tanh_()
            torch.lerp(n[t], h, tz[t], out=scratch)
            h = torch.lerp(scratch, h, 0.5, out=outputs[t])
        ctx.save_for_backward(w_ih, w_hh)
        ctx.buffers, ctx.rows = buffers, rows
        return outputs

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        grad_outputs: torch.Tensor,
    ) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of ``forward``'s tensors; gates are overwritten by theirs."""
        w_ih, w_hh = ctx.saved_tensors
        inputs, gates, h_in, scratch, grads = ctx.buffers.take()
        rows, (D, H) = ctx.rows, (w_ih.shape[1], w_hh.shape[1])  # noqa: N806
        w_r, w_z, w_u = w_hh.chunk(3)
        weights = scale_gates(torch.cat((w_u, w_r, w_z)), _GRADIENTS).to(inputs.dtype)
        grads = gates if inputs.dtype == gates.dtype else grads
        of_product, tr_and_tz = grads[..., : 3 * H].unbind(0), gates[..., H : 3 * H].unbind(0)
        v, tr, tz, n = (gate.unbind(0) for gate in gates.chunk(4, dim=-1))
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
            torch.addcmul(dn, dn, tr[t], out=v[t])
            tanh_backward(upstream, tr_and_tz[t], grad_input=tr_and_tz[t])
            if grads is not gates:
                grads[t] = gates[t]
            if t > 0 or ctx.needs_input_grad[1]:
                product_into(dh, of_product[t], weights).add_(twice_dh, alpha=0.5)
            if len(rows[t]) > 0:
                dh.index_fill_(0, rows[t], 0.0)
            if t > 0:
                dh.add_(grad_outputs[t - 1])
        flat_inputs, flat_grads = inputs.flatten(0, 1), grads.flatten(0, 1)
        dx = None
        if ctx.needs_input_grad[0]:
            weights = scale_gates(w_ih, (*_GRADIENTS[1:], _CANDIDATE_GRADIENT)).to(inputs.dtype)
            dx = (flat_grads[:, H:] @ weights).to(gates.dtype).unflatten(0, grad_outputs.shape[:2])
        of_hidden = (flat_inputs[:, D:].t() @ flat_grads[:, : 3 * H]).to(gates.dtype).t()
        of_x = (flat_inputs[:, : D + 1].t() @ flat_grads[:, H:]).to(gates.dtype).t()
        of_u, of_r_and_z = scale_gates(of_hidden, _GRADIENTS).split((H, 2 * H))
        db_hh, dw_hh = torch.cat((of_r_and_z, of_u)).split((1, H), dim=1)
        of_x = scale_gates(of_x, (*_GRADIENTS[1:], _CANDIDATE_GRADIENT))
        dw_ih, db_ih = of_x.split((D, 1), dim=1)
        ctx.buffers.release()
        return dx, dh, dw_ih, dw_hh, db_ih.squeeze(1), db_hh.squeeze(1), None, None


def _forward_weights(
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor,
    b_hh: torch.Tensor,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what ``[x | 1 | h']`` is multiplied with for v, r, z, and ``[x | 1]`` for n.

    Shapes: (D + 1 + H, 3H) and (D + 1, H).
    """
    hidden = w_hh.shape[1]
    x_of_rz, x_of_n = torch.cat((w_ih, b_ih.unsqueeze(1)), dim=1).split((2 * hidden, hidden))
    h_of_rz, h_of_u = torch.cat((b_hh.unsqueeze(1), w_hh), dim=1).split((2 * hidden, hidden))
    of_v = torch.cat((torch.zeros_like(w_ih[:hidden]), h_of_u), dim=1)
    of_rz = torch.cat((x_of_rz, h_of_rz[:, 1:]), dim=1)
    of_rz[:, w_ih.shape[1]] += h_of_rz[:, 0]
    weights = scale_gates(torch.cat((of_v, of_rz)), _HALVES)
    return weights.to(dtype).t(), x_of_n.to(dtype).t()

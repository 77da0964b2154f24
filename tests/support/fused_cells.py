"""Stand-ins on the CPU for operators that only CUDA has, so that the CUDA engine runs here.

The cells read, return and keep the same tensors as aten/src/ATen/native/cuda/RNN.cu of torch. They
are registered as CPU kernels of torch's own operators, so the dispatcher checks each call.
"""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from torch.utils import _pytree as pytree

from rsl_tbptt.core.scan import ENGINES, cuda

SCHEMAS = {
    "_thnn_fused_lstm_cell": (
        "(Tensor input_gates, Tensor hidden_gates, Tensor cx, Tensor? input_bias=None,"
        " Tensor? hidden_bias=None) -> (Tensor, Tensor, Tensor)"
    ),
    "_thnn_fused_lstm_cell_backward_impl": (
        "(Tensor? grad_hy, Tensor? grad_cy, Tensor cx, Tensor cy, Tensor workspace,"
        " bool has_bias) -> (Tensor, Tensor, Tensor)"
    ),
    "_thnn_fused_gru_cell": (
        "(Tensor input_gates, Tensor hidden_gates, Tensor hx, Tensor? input_bias=None,"
        " Tensor? hidden_bias=None) -> (Tensor, Tensor)"
    ),
    "_thnn_fused_gru_cell_backward": (
        "(Tensor grad_hy, Tensor workspace, bool has_bias)"
        " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
    ),
}
"""Torch's declarations of the operators."""


def lstm_cell(input_gates, hidden_gates, cx, input_bias=None, hidden_bias=None):
    """Return the states after the step and the activated gates i, f, g, o."""
    check_forward(input_gates, hidden_gates, cx, input_bias, hidden_bias, num_gates=4)
    gates = input_gates + hidden_gates
    if input_bias is not None:
        gates = gates + input_bias + hidden_bias
    i, f, g, o = gates.chunk(4, dim=1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat((i, f, g, o), dim=1)


def lstm_cell_backward(grad_hy, grad_cy, cx, cy, workspace, has_bias):
    """Return the gradients of the gates' inputs, of ``cx`` and of a bias."""
    for tensor in (grad_hy, grad_cy, cx, cy):
        assert tensor is None or (tensor.shape == cx.shape and tensor.dtype == workspace.dtype)
    assert workspace.shape == (cx.shape[0], 4 * cx.shape[1])
    i, f, g, o = workspace.chunk(4, dim=1)
    grad_hy = torch.zeros_like(cx) if grad_hy is None else grad_hy
    grad_cy = torch.zeros_like(cx) if grad_cy is None else grad_cy
    tanh_c = cy.tanh()
    dc = grad_hy * o * (1 - tanh_c**2) + grad_cy
    of_gates = (
        dc * g * (1 - i) * i,
        dc * cx * (1 - f) * f,
        dc * i * (1 - g**2),
        grad_hy * tanh_c * (1 - o) * o,
    )
    gates = torch.cat(of_gates, dim=1)
    return gates, dc * f, gates.sum(0) if has_bias else gates.new_empty(0)


def gru_cell(input_gates, hidden_gates, hx, input_bias=None, hidden_bias=None):
    """Return the state after the step and r, z, n, ``hx``, hidden part of n's input with bias."""
    check_forward(input_gates, hidden_gates, hx, input_bias, hidden_bias, num_gates=3)
    if input_bias is not None:
        input_gates, hidden_gates = input_gates + input_bias, hidden_gates + hidden_bias
    (i_r, i_z, i_n), (h_r, h_z, h_n) = input_gates.chunk(3, dim=1), hidden_gates.chunk(3, dim=1)
    r, z = (i_r + h_r).sigmoid(), (i_z + h_z).sigmoid()
    n = (i_n + r * h_n).tanh()
    return n + z * (hx - n), torch.cat((r, z, n, hx, h_n), dim=1)


def gru_cell_backward(grad_hy, workspace, has_bias):
    """Return the gradients of input gates, hidden gates, ``hx`` and both biases."""
    assert workspace.shape == (grad_hy.shape[0], 5 * grad_hy.shape[1])
    assert workspace.dtype == grad_hy.dtype
    r, z, n, hx, h_n = workspace.chunk(5, dim=1)
    of_n = grad_hy * (1 - z) * (1 - n**2)
    of_r = of_n * h_n * (1 - r) * r
    of_z = grad_hy * (hx - n) * (1 - z) * z
    of_input, of_hidden = torch.cat((of_r, of_z, of_n), 1), torch.cat((of_r, of_z, of_n * r), 1)
    biases = [g.sum(0) if has_bias else g.new_empty(0) for g in (of_input, of_hidden)]
    return of_input, of_hidden, grad_hy * z, *biases


def check_forward(input_gates, hidden_gates, state, input_bias, hidden_bias, num_gates):
    """Raise an error for inputs that the kernels refuse, and for dtypes that they would misread."""
    assert input_gates.dim() == state.dim() == 2
    assert input_gates.shape == hidden_gates.shape
    assert input_gates.shape == (state.shape[0], num_gates * state.shape[1])
    assert (input_bias is None) == (hidden_bias is None)
    for tensor in (hidden_gates, state, input_bias, hidden_bias):
        assert tensor is None or tensor.dtype == input_gates.dtype
    for bias in (input_bias, hidden_bias):
        assert bias is None or bias.shape == (input_gates.shape[1],)


@contextlib.contextmanager
def registered():
    """Give torch's four operators these CPU kernels."""
    library = torch.library.Library("aten", "IMPL")
    kernels = (lstm_cell, lstm_cell_backward, gru_cell, gru_cell_backward)
    for name, kernel in zip(SCHEMAS, kernels, strict=True):
        library.impl(name, kernel, "CPU")
    try:
        yield
    finally:
        library._destroy()


@contextlib.contextmanager
def cuda_engine_on_cpu():
    """Run the CUDA engine on these stand-ins, recordings included."""
    with registered(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "record", record)
        patch.setattr(cuda, "_pool", cuda.Pool(10_000))
        patch.setitem(ENGINES, "cuda", ENGINES["cuda"]._replace(device=None))
        yield


def recordings():
    """Return the free recordings by their purpose."""
    return {
        (key, num_envs): list(free)
        for key, sizes in cuda._pool._free.items()
        for num_envs, free in sizes.items()
    }


def record(function, device, pool, before=None):
    """Stand in for a CUDA graph: a replay runs ``function`` again into the same memory."""
    outputs = function()

    @torch.autocast("cpu", enabled=False)  # a graph ignores the current modes
    def replay():
        kept, new = pytree.tree_leaves(outputs), pytree.tree_leaves(function())
        for target, source in zip(kept, new, strict=True):
            if target is not None:
                target.copy_(source)

    return SimpleNamespace(replay=replay), outputs

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
shapes alone, so CUDA graphs record it once per shape (``graphs``). Only the backward pass knows
cuts: they are one more mask, so a window with cuts is still one window.

The gates of a cell lie in the order of x alone, of both, of h alone, so x feeds the first ones and
h the last ones. A GRU has n, r, z, u: u is the part of the candidate from h, with its own bias.

Shapes: T steps, N environments, D inputs, H hidden.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.scan import graphs
from rsl_tbptt.core.scan.cells import OF_TORCH, Cell, CellLayers, RecurrentLayers
from rsl_tbptt.core.scan.graphs import InUse
from rsl_tbptt.core.scan.layers import (
    ONCE,
    Gradients,
    Tensors,
    products_as_in_layers,
    scan_layers,
)

_BLOCK = 512
"""Units of a program. On NVIDIA GPUs each thread has four, 16 bytes of float32 per load."""

_MM_TAKES_OUT_DTYPE = "dtype" in torch.ops.aten.mm.overloads()
"""Whether this version of torch can give a product in another dtype than its operands."""


def scan(
    rnn: RecurrentLayers,
    inputs: torch.Tensor,
    state: HiddenState,
    episode_starts: torch.Tensor,
    cuts: tuple[int, ...],
) -> tuple[torch.Tensor, HiddenState]:
    """Run the layers over inputs (T, N, D); all as in ``recurrent_scan``.

    Raises:
        NotImplementedError: If Triton is not installed.
    """
    cell = rnn.cell if isinstance(rnn, CellLayers) else OF_TORCH[rnn.mode]
    _kernels().kernels_of(cell)  # raises before a recording that fails hides the reason
    starts = torch.cat((episode_starts, episode_starts.new_zeros(1, inputs.shape[1])))
    stops = starts.clone()
    for cut in cuts:
        stops[cut].fill_(True)
    scan_layer = functools.partial(_scan_layer, cell, starts, stops)
    with torch.cuda.device_of(inputs):  # Triton launches on the current device
        return scan_layers(rnn, inputs, state, scan_layer)


def _scan_layer(
    cell: Cell, starts: torch.Tensor, stops: torch.Tensor, dtype: torch.dtype, *layer: Any
) -> Any:
    """Scan one layer, by a replay if there is a recording; see ``LayerScan``."""
    tensors: Tensors = (*layer, starts, stops)
    needs = tuple(torch.is_grad_enabled() and tensor.requires_grad for tensor in tensors)
    passes = Passes(needs, dtype, cell)
    in_use = graphs.cached_graphs.take(passes, tensors)
    if any(needs):
        return CellScan.apply(passes, in_use, *tensors)
    return in_use.recording.forward(tensors) if in_use else passes.forward(tensors)[0]


class CellScan(torch.autograd.Function):
    """Differentiable scan of one layer; its backward pass may run once."""

    @staticmethod
    def forward(ctx: Any, passes: "Passes", in_use: InUse | None, *tensors: Any) -> Tensors:
        """Return a layer's results: (T, N, H) and, with two states, (N, H)."""
        ctx.passes, ctx.kept = passes, in_use
        if in_use is not None:
            return in_use.recording.forward(tensors)
        results, ctx.kept = passes.forward(tensors)
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
        if isinstance(kept, InUse):
            return None, None, *kept.recording.backward(grads)
        with torch.autocast(grads[0].device.type, enabled=False):
            return None, None, *ctx.passes.backward(ctx.saved_tensors, kept, grads)


class Passes(NamedTuple):
    """The passes of one layer over a window, as functions of tensors alone.

    The tensors are those of a layer (see ``LayerScan``), starts and stops (see ``kernels``): nine
    with two states, eight with one. Neither pass synchronises.
    """

    needs: tuple[bool, ...]
    """Which of the tensors need a gradient."""

    dtype: torch.dtype
    """Dtype of the operands of products."""

    cell: Cell
    """Kind of layer."""

    @products_as_in_layers()
    def forward(self, tensors: Tensors) -> tuple[Tensors, Tensors]:
        """Return a layer's results, and the buffers that its backward pass reads and overwrites."""
        x_TND, *state, w_ih, w_hh, b_ih, b_hh, starts, _ = tensors
        (T, N, _), H, dtype = x_TND.shape, w_hh.shape[1], self.dtype
        width, shift, rest = self._columns(w_ih, w_hh)
        gates = x_TND.new_empty(T, N, width, dtype=dtype)
        states = x_TND.new_empty(T + 1, len(state), N, H)
        operands = x_TND.new_empty(T + 1, N, H, dtype=dtype)
        torch.stack(state, out=states[0])
        operands[0] = state[0].masked_fill(starts[0].unsqueeze(1), 0.0)

        w_x = functional.pad(w_ih.roll(shift, 0), (0, 0, 0, rest)).to(dtype)
        bias = functional.pad(b_ih.roll(shift), (0, rest)) + functional.pad(b_hh, (shift, 0))
        x = x_TND.flatten(0, 1).to(dtype)
        torch.addmm(bias.to(dtype), x, w_x.t(), out=gates.flatten(0, 1))

        run_kernel = _launcher(self.cell, "forward", N, H, gates, states, operands, starts)
        of_h, w_h = gates[..., shift:], w_hh.to(dtype).t()
        for t in range(T):
            of_h[t].addmm_(operands[t], w_h)
            run_kernel(t)
        return (states[1:, 0], *states[T, 1:].unbind(0)), (gates, states, operands)

    @products_as_in_layers()
    def backward(self, tensors: Tensors, kept: Tensors, grads: Tensors) -> Gradients:
        """Return the gradients of the tensors, given what was kept and those of the results."""
        x_TND, *state, w_ih, w_hh, _, _, starts, stops = tensors
        gates, states, operands = kept
        T, (N, H), dtype = len(gates), state[0].shape, self.dtype
        width, shift, rest = self._columns(w_ih, w_hh)
        needs_x, needs_h, needs_w_ih, needs_w_hh = (self.needs[i] for i in (0, 1, -6, -5))
        grad_hidden, carry = x_TND.new_zeros(N, H, dtype=dtype), torch.zeros_like(states[0])
        for gradient, given in zip(carry[1:], grads[1:], strict=True):
            gradient.copy_(given)
        buffers = (gates, states, grads[0].contiguous(), grad_hidden, carry, starts, stops)
        run_kernel = _launcher(self.cell, "backward", N, H, *buffers)
        of_h, w_h = gates[..., shift:], w_hh.to(dtype)
        for t in reversed(range(T)):
            run_kernel(t)
            if t > 0 or needs_h:  # otherwise nobody reads dh
                torch.mm(of_h[t], w_h, out=grad_hidden)

        of_x, of_h = gates[..., : width - rest].flatten(0, 1), of_h.flatten(0, 1)
        dx = dw_ih = dw_hh = None
        if needs_x:
            dx = self._product(of_x, w_ih.roll(shift, 0), w_ih.dtype).view_as(x_TND)
        if needs_w_ih:
            dw_ih = self._product(of_x.t(), x_TND.flatten(0, 1), w_ih.dtype).roll(-shift, 0)
        if needs_w_hh:
            dw_hh = self._product(of_h.t(), operands[:T].flatten(0, 1), w_ih.dtype)
        biases = gates.sum((0, 1), dtype=w_ih.dtype)
        dh = grad_hidden.masked_fill(starts[0].unsqueeze(1), 0.0).to(carry.dtype)
        of_biases = biases[: width - rest].roll(-shift), biases[shift:]
        return dx, dh + carry[0], *carry[1:], dw_ih, dw_hh, *of_biases, None, None

    def _columns(self, w_ih: torch.Tensor, w_hh: torch.Tensor) -> tuple[int, int, int]:
        """Return the columns of the gates, those of x alone, which are first, and of h alone.

        Rolled by the second, torch's order r, z, n of a GRU's input weights becomes n, r, z.
        """
        width = self.cell.num_gates * w_hh.shape[1]
        return width, width - len(w_hh), width - len(w_ih)

    def _product(self, a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return ``a @ b`` in ``dtype``, without rounding to the operands' dtype if torch can."""
        b = b.to(self.dtype)
        if self.dtype == dtype:
            return a @ b
        if a.is_cuda and dtype == torch.float32 and _MM_TAKES_OUT_DTYPE:
            return torch.mm(a, b, out_dtype=dtype)
        return (a @ b).to(dtype)


def _launcher(
    cell: Cell, direction: str, N: int, H: int, *buffers: torch.Tensor
) -> Callable[[int], None]:
    """Return a function that runs a kernel over the N * H units of a step, given the step."""
    kernel = _kernels().kernels_of(cell)[direction][-(-N * H // _BLOCK),]
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

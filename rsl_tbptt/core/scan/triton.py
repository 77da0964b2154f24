"""The GPU engine: each step is one Triton kernel, which multiplies and runs the cell's equations.

The inputs of all gates lie in one buffer (see ``kernels``), which has three lives::

    1. input projection    gates  = x W_ih + b         one product of torch before the loop
    2. inputs of gates     gates += h' W_hh            a kernel per step, in place
                           state, h' = cell(gates)     the same one
    3. their gradients     dh'    = gates W_hh         a kernel per step
                           gates  = dcell(gates)       the same one, in place
                           dx, dW                      one product each after the loop

A kernel's programs have few environments and hidden units each, so that the equations fit into
registers. For many units a product of torch, whose tiles are larger, and a kernel without it take
less time (``tile_of``).

The buffer and all operands have the dtype of products: under mixed precision they are bfloat16, and
no launch converts them. State, carry, sums and arithmetic are float32.

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
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch

from rsl_tbptt.core.scan.cells import Cell, RecurrentLayers, cell_of
from rsl_tbptt.core.scan.products import (
    ONCE,
    Gradients,
    LayerScan,
    Tensors,
    prepare,
    products_as_in_layers,
    tf32_in_layers,
)

_BLOCK = 512
"""Units of a program. On NVIDIA GPUs each thread has four, 16 bytes of float32 per load."""

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Operands that kernels multiply."""

_MOST_SUMS = 4
"""Gates of h up to which a kernel contains the product: each takes registers for its sum."""

_MOST_BYTES = 2**21
"""Bytes of a step's operands up to which a kernel contains the product."""

_MOST_NUMBERS = 6
"""Gates and states of a cell up to which the largest tile fits into registers."""

_BYTES_OF_A_ROW = 128
"""Of the factors that a program multiplies at once."""

_PROGRAMS = 128
"""Programs of a launch that keep the multiprocessors of a large GPU busy."""

_ALIGNMENT = 8
"""Rows of [x | 1] have a multiple of this length: cuBLAS is slower if they are not aligned."""

_MM_TAKES_OUT_DTYPE = "dtype" in torch.ops.aten.mm.overloads()
"""Whether this version of torch can give a product in another dtype than its operands."""


class Tile(NamedTuple):
    """The environments and hidden units of a program that contains the product, and its warps."""

    envs: int
    units: int
    warps: int

    def constants(self, dtype: torch.dtype) -> dict[str, Any]:
        """Return the kernel's constants for operands of a dtype.

        Float32 products have the precision of torch's layers.
        """
        precision = "tf32" if tf32_in_layers() and torch.version.hip is None else "ieee"
        blocks = {"BLOCK_N": self.envs, "BLOCK_H": self.units}
        blocks["BLOCK_K"] = _BYTES_OF_A_ROW // dtype.itemsize
        return {**blocks, "PRECISION": precision, "num_warps": self.warps}


TILES = (Tile(64, 32, 8), Tile(64, 16, 8), Tile(32, 16, 4))
"""From the largest, which reads the least: the first one with enough programs is taken."""


def layer_scan(
    rnn: RecurrentLayers, starts_TN: torch.Tensor, cuts: tuple[int, ...], *, multiplies: bool = True
) -> LayerScan:
    """Return the scan of a layer, given contiguous episode starts and cuts of ``recurrent_scan``.

    Kernels multiply where that is faster, unless ``multiplies`` is False. The scan raises
    NotImplementedError if Triton is not installed.
    """
    return functools.partial(CellScan.apply, cell_of(rnn), starts_TN, cuts, multiplies)


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
        multiplies: bool,
        dtype: torch.dtype,
        *layer: torch.Tensor,
    ) -> Tensors:
        """Return the outputs, shape (T, N, H), and the second state after step T-1 if there is one.

        Args:
            ctx: Autograd context.
            cell: Kind of layer.
            starts_TN: Episode starts, bool, contiguous.
            cuts: Steps before which the gradient of the state stops.
            multiplies: Whether kernels may contain the product.
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
        sizes_of_inputs = D, inputs.shape[-1], T * N
        _of_units(cell, "inputs", inputs.numel())(x_TND.contiguous(), inputs, *sizes_of_inputs)
        buffers, sizes = (states, operands, starts_TN), (T, N, H)
        begin = _of_units(cell, "begin", N * H)
        begin(*(tensor.contiguous() for tensor in state), *buffers, 0, *sizes)
        with products_as_in_layers():
            torch.addmm(bias, inputs.flatten(0, 1)[:, :D], w_x.t(), out=gates.flatten(0, 1))
            tile = tile_of(cell, dtype, N, H) if multiplies else None
            if tile:
                step = _with_product(cell, "forward", operands, H, tile)
                for t in range(T):
                    step(gates, w_h, *buffers, t, *sizes)
            else:
                step, of_h = _of_units(cell, "forward", N * H), gates[..., -len(w_h) :]
                for t in range(T):
                    of_h[t].addmm_(operands[t], w_h.t())
                    step(gates, *buffers, t, *sizes)
        ctx.save_for_backward(inputs, gates, *buffers, w_x, w_h)
        ctx.cell, ctx.cuts, ctx.tile, ctx.has_run = cell, cuts, tile, False
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
        needs, cell, H = ctx.needs_input_grad[5:], ctx.cell, w_h.shape[1]
        with torch.autocast(gates.device.type, enabled=False), products_as_in_layers():
            buffers = gates, states, starts_TN
            fixed = cell, ctx.cuts, ctx.tile
            of_state = _run_backward(*fixed, needs[1:-4], buffers, grads, w_h)
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
        return *(None,) * 5, dx, *of_state, dw_ih, dw_hh, db_ih, db_hh


def _run_backward(
    cell: Cell,
    cuts: tuple[int, ...],
    tile: Tile | None,
    needs: tuple[bool, ...],
    buffers: Tensors,
    grads: tuple[torch.Tensor | None, ...],
    w_h: torch.Tensor,
) -> Gradients:
    """Overwrite the gates by their gradients, the last step first.

    Args:
        cell: Kind of layer.
        cuts: Steps before which the gradient of the state stops.
        tile: Of kernels that contain the product; None for those that do not.
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
    of_outputs, of_h = of_outputs.contiguous(), gates[..., -len(w_h) :]
    if tile:
        step = _with_product(cell, "backward", gates, H, tile)
    else:
        step = _of_units(cell, "backward", N * H)
    for t in reversed(range(T)):
        if tile:
            has_next = int(t + 1 < T and t + 1 not in cuts)
            step(gates, w_h, states, of_outputs, carry, starts_TN, has_next, t, T, N, H)
        else:
            step(gates, states, of_outputs, dh, carry, starts_TN, t, T, N, H)
        if t in cuts:
            dh.zero_()
            carry.zero_()
        elif needs[0] if t == 0 else not tile:  # otherwise nobody reads dh
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


def tile_of(cell: Cell, dtype: torch.dtype, N: int, H: int) -> Tile | None:
    """Return the tile of a step's kernels; None where a step is a product of torch and a kernel.

    A tile reads its rows and columns of the factors from the cache again. For many units that takes
    longer than torch's product, whose tiles are larger: they need no room for the cell's equations.
    """
    is_large = N * H * dtype.itemsize > _MOST_BYTES
    if dtype not in _DTYPES or is_large or cell.gates + cell.hidden_gates > _MOST_SUMS:
        return None
    tiles = tiles_of(cell)
    fitting = (tile for tile in tiles if -(-N // tile.envs) * -(-H // tile.units) >= _PROGRAMS)
    return next(fitting, tiles[-1])


def tiles_of(cell: Cell) -> Sequence[Tile]:
    """Return the tiles whose equations fit into registers."""
    return TILES[cell.num_gates + cell.num_states > _MOST_NUMBERS :]


def _of_units(cell: Cell, name: str, num_units: int) -> Callable[..., None]:
    """Return a kernel of a cell that runs over a step's units, N * H."""
    return functools.partial(_kernel(cell, name, -(-num_units // _BLOCK)), BLOCK=_BLOCK)


def _with_product(
    cell: Cell, name: str, operands: torch.Tensor, H: int, tile: Tile
) -> Callable[..., None]:
    """Return a kernel of a cell that contains the product, and runs over the tiles of a step."""
    grid = -(-operands.shape[1] // tile.envs), -(-H // tile.units)
    kernel = _kernel(cell, f"{name}_with_product", *grid)
    return functools.partial(kernel, **tile.constants(operands.dtype))


def _kernel(cell: Cell, name: str, *grid: int) -> Callable[..., None]:
    """Return a kernel of a cell for a number of programs."""
    launch: Callable[..., None] = _kernels().kernels_of(cell)[name][grid]
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

"""The CPU engine: each step is one matrix product of torch and one compiled function.

In torch, a step does a dozen small operations in addition to its matrix product. ``cells.c`` does
them in one pass over memory, including the reset of the next step's state. ``[x | 1 | h']`` of all
steps lies in one buffer: a step takes one product with ``[W_ih | b | W_hh]``, and the gradient of
all weights is one product over the window. Zeros after the 1 fill the columns before h' up to a
multiple of 8: MKL multiplies rows of an odd length up to 10 % slower. Under autocast to bfloat16
that buffer, the products and their gradients are bfloat16; the rest stays float32. Layers of a
``Cell`` run C that is written from their equations (``equations.c``); gates of x alone come from
one product over the window.

LSTM (Hochreiter and Schmidhuber, 1997; Gers et al., 2000) and GRU (Cho et al., 2014, in the form of
torch and cuDNN), with the state cleared where an episode starts (``s_t``)::

    h', c' = where(s_t, 0, (h_{t-1}, c_{t-1}))
    LSTM: i, f, o = sigmoid(W_ih x_t + W_hh h' + b)      g = tanh(...)
          c_t = f * c' + i * g                           h_t = o * tanh(c_t)
    GRU:  r, z = sigmoid(W_ih x_t + b_ih + W_hh h' + b_hh)
          u = W_hh h' + b_hh (candidate part)            n = tanh(W_ih x_t + b_ih + r * u)
          h_t = n + z * (h' - n)

Shapes: T steps, N environments, D inputs, H hidden; K = P + H with P columns before h'; G rows of
W_hh.
"""

import ctypes
import functools
import itertools
import math
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from rsl_tbptt.core.scan.cells import OF_TORCH, Cell, RecurrentLayers, cell_of
from rsl_tbptt.core.scan.equations import statements_of
from rsl_tbptt.core.scan.products import (
    ONCE,
    Gradients,
    LayerScan,
    StepProduct,
    Tensors,
    multiply,
    multiply_columns,
    prepare,
    step_product,
)


def layer_scan(rnn: RecurrentLayers, starts_TN: torch.Tensor, cuts: tuple[int, ...]) -> LayerScan:
    """Return the scan of a layer, given contiguous episode starts and cuts of ``recurrent_scan``.

    It raises NotImplementedError if there is no C compiler, or it fails, or for any half precision
    other than bfloat16 operands with a float32 state.
    """
    stops_TN = starts_TN.index_fill(0, torch.tensor(cuts), True) if cuts else starts_TN
    return functools.partial(CellScan.apply, cell_of(rnn), starts_TN, stops_TN)


class CellScan(torch.autograd.Function):
    """Differentiable scan of one layer; its backward pass may run once.

    Gates that depend on x alone come from one product over the window, the others from a step's.
    """

    @staticmethod
    def forward(
        ctx: Any,
        cell: Cell,
        starts_TN: torch.Tensor,
        stops_TN: torch.Tensor,
        dtype: torch.dtype,
        *layer: torch.Tensor,
    ) -> Tensors:
        """Return the outputs, shape (T, N, H), and the second state after step T-1 if there is one.

        Args:
            ctx: Autograd context.
            cell: Kind of layer.
            starts_TN: Episode starts, bool, contiguous.
            stops_TN: The same with all steps before which the gradient of the state stops.
            dtype: Dtype of the operands of matrix products.
            *layer: The tensors of the layer; see ``LayerScan``.
        """
        x_TND, h0_NH, *second, w_ih, w_hh, b_ih, b_hh = layer
        (T, N, D), H, full = x_TND.shape, h0_NH.shape[1], x_TND.dtype
        width_of_step, width_of_x, short = len(w_hh), cell.input_gates * H, dtype != full
        step, ctx.step = _functions_of(cell, full, dtype)
        ctx.buffers = Buffers(
            (dtype, (T, N, _columns_of_x(D) + H)),
            (full, (T, N, width_of_step)),
            (dtype, (T, N, width_of_step) if short else (0,)),
            (full, (T, N, width_of_x or H)),  # without such gates an LSTM keeps tanh(c) there
            (dtype, (T, N, width_of_x) if short else (0,)),
            (full, (T, N, H) if short else (0,)),
            (full, (T + 1, N, H if second else 0)),
        )
        inputs, gates, grads, input_gates, _, before, seconds = ctx.buffers.tensors
        outputs = x_TND.new_empty(T, N, H)
        hidden = inputs[..., _columns_of_x(D) :]
        inputs[..., :D] = x_TND
        inputs[..., D] = 1.0
        inputs[..., D + 1 : _columns_of_x(D)] = 0.0
        before = before if short else hidden
        firsts = (hidden, h0_NH), (before, h0_NH), *((seconds, each) for each in second)
        for states, first in firsts:
            states[0] = first.masked_fill(starts_TN[0].unsqueeze(1), 0.0)
        product, factor = prepare(_products_of(cell), N, dtype, w_ih, w_hh, b_ih, b_hh)
        x_and_one = inputs.flatten(0, 1)[:, : D + 1]
        if width_of_x:
            multiply(x_and_one, factor, out=input_gates.flatten(0, 1))
        multiply_by, factors, takes_out = product
        sizes = N, H, torch.get_num_threads(), before.stride(1), inputs.stride(1)
        now = gates, input_gates, before, seconds[:-1], seconds[1:], outputs
        at = [*map(_addresses, now), *map(_addresses_after, (before, hidden, starts_TN))]
        # Products go to the gates, or into one shared buffer if the gates have a longer dtype.
        outs = grads[:1].expand_as(gates) if short else gates
        for row, out, addresses in zip(inputs, outs, zip(*at, strict=True), strict=True):
            of_gates = multiply_by(row, *factors, **({"out": out} if takes_out else {}))
            step(*sizes, of_gates.data_ptr(), *addresses)  # ``of_gates`` must stay alive until here
        ctx.save_for_backward(w_ih, w_hh)
        ctx.stops, ctx.cell, ctx.needs_h0 = stops_TN, cell, ctx.needs_input_grad[5]
        return outputs, *(seconds[-1].clone() for _ in second)

    @staticmethod
    def backward(ctx: Any, grad_outputs: torch.Tensor, *grad_second: torch.Tensor) -> Gradients:
        """Return gradients, shaped as ``forward``'s tensors; they overwrite the gates."""
        inputs, gates, grads, input_gates, input_grads, before, seconds = ctx.buffers.take()
        w_ih, w_hh = ctx.saved_tensors
        (T, N, _), (_, H), D = gates.shape, w_hh.shape, w_ih.shape[1]
        full, dtype, both = gates.dtype, inputs.dtype, ctx.cell.gates * H
        if dtype == full:
            before, grads, input_grads = inputs[..., -H:], gates, input_gates
        carried = torch.stack((grad_outputs.new_zeros(N, H), *grad_second))
        tensors = (gates, grads, input_gates, input_grads, before, seconds[:-1])
        tensors = (*tensors, grad_outputs.contiguous())
        carried[0] += _run_backward(ctx, grads, w_hh, before.stride(1), tensors, carried)
        carried.masked_fill_(ctx.stops[0].unsqueeze(1), 0.0)
        input_grads = input_grads[..., : ctx.cell.input_gates * H]
        flat_inputs, of_step, of_x = (t.flatten(0, 1) for t in (inputs, grads, input_grads))
        dx = None
        with torch.autocast("cpu", enabled=False):  # it applies to the forward pass only
            if ctx.needs_input_grad[4]:
                weights, no_others = w_ih.to(dtype), both == of_step.shape[1]
                dx = (multiply if no_others else torch.mm)(of_step[:, :both], weights[:both])
                dx = dx.addmm_(of_x, weights[both:])
                dx = dx.unflatten(0, (T, N)).to(full)
            dw = multiply_columns(of_step, flat_inputs).to(full)
            dw_of_x = multiply_columns(of_x, flat_inputs[:, : D + 1]).to(full)
        ctx.buffers.release()
        dw_ih, db_ih = torch.cat((dw[:both, : D + 1], dw_of_x)).split((D, 1), dim=1)
        of_weights = dw_ih, dw[:, -H:], db_ih.squeeze(1), dw[:, D]
        return None, None, None, None, dx, *carried, *of_weights


def _run_backward(
    ctx: Any,
    grads: torch.Tensor,
    w_hh: torch.Tensor,
    before_stride: int,
    tensors: Tensors,
    carried: torch.Tensor,
) -> torch.Tensor:
    """Run ``ctx.step`` and a product for each step, the last first.

    Args:
        ctx: Autograd context.
        grads: Buffer that ``step`` writes the gates' gradients into. Shape: (T, N, G).
        w_hh: Hidden weights, shape (G, H).
        before_stride: Elements between two environments' states.
        tensors: Tensors of all steps, shape (T, N, ...) each.
        carried: Gradient of the state that bypasses the gates; updated. Shape: (..., N, H).

    Returns:
        Gradient of the state before step 0 that went through the gates. Shape: (N, H).
    """
    N, H = carried.shape[-2:]
    sizes = N, H, torch.get_num_threads(), before_stride
    dh = carried.new_zeros(N, H, dtype=grads.dtype)
    multiply_by, factors, takes_out = prepare(step_product, N, grads.dtype, w_hh)
    at = [*map(_addresses, tensors), _addresses_after(ctx.stops)]
    steps = zip(grads, zip(*at, strict=True), strict=True)
    for t, (grad, addresses) in reversed(list(enumerate(steps))):
        ctx.step(*sizes, *addresses, dh.data_ptr(), carried.data_ptr())
        if t > 0 or ctx.needs_h0:
            dh = multiply_by(grad, *factors, **({"out": dh} if takes_out else {}))
    return dh


def _addresses(steps: torch.Tensor) -> list[int | None]:
    """Return the address of each step's part of a tensor (T, ...)."""
    first, size = steps.data_ptr(), steps.stride(0) * steps.element_size()
    return [first + t * size for t in range(len(steps))]


def _addresses_after(steps: torch.Tensor) -> list[int | None]:
    """Return for each step the address of the next step's part; None for the last."""
    return [*_addresses(steps)[1:], None]


def _columns_of_x(D: int) -> int:
    """Return P, the columns before h': those of x, the 1 and zeros up to a multiple of 8."""
    return -(-(D + 1) // 8) * 8


@functools.cache
def _products_of(cell: Cell) -> Callable[..., tuple[StepProduct, torch.Tensor]]:
    """Return a function that makes what a layer of a cell multiplies by; see ``prepare``."""

    def products(
        num_envs: int, dtype: torch.dtype, *weights: torch.Tensor
    ) -> tuple[StepProduct, torch.Tensor]:
        """Return the product of ``[x | 1 | h']`` with the weights of a step's gates, and a factor.

        The factor, (D + 1, gates of x alone * H), maps ``[x | 1]`` to the gates of x alone.
        """
        w_ih, w_hh, b_ih, b_hh = weights
        H = w_hh.shape[1]
        both, no_rows = cell.gates * H, cell.hidden_gates * H
        of_x = functional.pad(w_ih[:both], (0, 0, 0, no_rows))
        bias = functional.pad(b_ih[:both], (0, no_rows)) + b_hh
        zeros = w_ih.new_zeros(len(w_hh), _columns_of_x(w_ih.shape[1]) - w_ih.shape[1] - 1)
        joined = torch.cat((of_x, bias.unsqueeze(1), zeros, w_hh), dim=1)
        factor = torch.cat((w_ih[both:], b_ih[both:, None]), dim=1)
        return step_product(num_envs, dtype, joined.t()), factor.to(dtype).t()

    return products


_ALIGNMENT = 64
_MAX_FREE = 4
"""Free buffers that are kept: enough for four layers."""

_free: list[torch.Tensor] = []


class Buffers:
    """Buffers of one scan. Its backward pass overwrites them, so it can take them only once.

    A fresh buffer of megabytes spends most of its time on the first touch of its pages, so the
    buffers of one window are reused for the next.
    """

    def __init__(self, *shapes: tuple[torch.dtype, tuple[int, ...]]) -> None:
        """Borrow one uninitialised buffer for each dtype and shape."""
        sizes = [math.prod(shape) * dtype.itemsize for dtype, shape in shapes]
        aligned = (-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)
        ends = list(itertools.accumulate(aligned, initial=0))
        memory = _borrow(ends[-1])
        self._give_back = weakref.finalize(self, _give_back, memory)
        self.tensors: Tensors = tuple(
            memory[start : start + size].view(dtype).view(shape)
            for start, size, (dtype, shape) in zip(ends, sizes, shapes, strict=False)
        )

    def take(self) -> Tensors:
        """Return the buffers, in the shapes asked for, for the backward pass.

        Raises:
            RuntimeError: If they were taken before, or under ``create_graph=True``.
        """
        if not self.tensors or torch.is_grad_enabled():
            raise RuntimeError(ONCE)
        tensors, self.tensors = self.tensors, ()
        return tensors

    def release(self) -> None:
        """Give the buffers back; do not use them afterwards. Also runs when they are dropped."""
        self.tensors = ()
        self._give_back()


def free_buffers() -> None:
    """Give the memory of all free buffers back to the system."""
    _free.clear()


def _borrow(num_bytes: int) -> torch.Tensor:
    """Return at least ``num_bytes``: the smallest free buffer that suffices, or a new one."""
    if not torch.is_inference_mode_enabled():
        for index in reversed(range(len(_free))):
            if _free[index].numel() >= num_bytes:
                return _free.pop(index)
        if _free:
            _free.pop()  # outgrown
    return torch.empty(num_bytes, dtype=torch.uint8)


def _give_back(memory: torch.Tensor) -> None:
    if not memory.is_inference():
        _free.append(memory)
        _free.sort(key=torch.Tensor.numel, reverse=True)
        del _free[_MAX_FREE:]


# glibc gives freed blocks above a threshold back to the system. The threshold is the largest block
# freed so far, up to 32 MiB (mallopt(3)). Freeing this block, which is never touched, raises it, so
# that glibc keeps the memory an update frees instead of faulting it in again.
torch.empty(2**25 - 2**16, dtype=torch.uint8)

OPTIONS = {
    (torch.float32, torch.float32): ("-DREAL=float",),
    (torch.float64, torch.float64): ("-DREAL=double",),
    (torch.float32, torch.bfloat16): ("-DREAL=float", "-DBFLOAT16_OPERANDS"),
}
"""Options that ``cells.c`` is compiled with, by the dtypes of the state and products' operands."""

_FLAGS = ["-std=gnu11", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared"]
_FLAGS += ["-fno-math-errno", "-fno-trapping-math"]  # without these, loops are not vectorised
_FLAGS += ["-mprefer-vector-width=512"] * (platform.machine() == "x86_64")

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS = {
    "forward": (_INT, _INT, ctypes.c_int, _INT, _INT, *[_POINTER] * 10),
    "backward": (_INT, _INT, ctypes.c_int, _INT, *[_POINTER] * 10),
}


@functools.cache
def load_cells(
    dtype: torch.dtype, operand_dtype: torch.dtype, cell: Cell | None = None
) -> ctypes.CDLL:
    """Compile ``cells.c`` for this processor and load it: half a second per process and dtype.

    ``$CC`` may contain options and a launcher, as in make: "gcc -m64", "ccache gcc". Only Linux is
    supported, where torch shares its threads with OpenMP code of gcc.

    Args:
        dtype: Dtype of state and gates.
        operand_dtype: Dtype of the operands of matrix products.
        cell: A cell whose functions are compiled, from ``equations.c``.

    Returns:
        The library; its functions take sizes, then addresses as integers.

    Raises:
        NotImplementedError: If the dtypes are not in ``OPTIONS``, if there is no compiler or it
            fails, or if this is not Linux.
    """
    if (dtype, operand_dtype) not in OPTIONS or sys.platform != "linux":
        raise NotImplementedError(
            f"scan_engine 'compiled' has no {operand_dtype} products for weights of {dtype} on"
            f" {sys.platform}, expected float32 or float64, or bfloat16 products with float32"
            " weights, on Linux: use 'reference'."
        )
    named = os.environ.get("CC", "cc")
    with tempfile.TemporaryDirectory() as folder:
        library, source = Path(folder) / "cells.so", "cells.c"
        words = [*shlex.split(named), *_FLAGS, *OPTIONS[dtype, operand_dtype]]
        if cell is not None:
            equations, source = Path(folder) / "equations.h", "equations.c"
            equations.write_text(_equations_in_c(cell), encoding="utf-8")
            words.append(f'-DEQUATIONS="{equations}"')
        words += [str(Path(__file__).with_name(source)), "-o", str(library), "-lm"]
        try:
            subprocess.run(words, check=True, capture_output=True, text=True, timeout=60.0)
            cells = ctypes.CDLL(str(library))
        except (OSError, subprocess.SubprocessError) as error:
            reason = getattr(error, "stderr", None) or error
            raise NotImplementedError(
                "scan_engine 'compiled' needs gcc with OpenMP on Linux, or another compiler named"
                f" in CC; '{named}' failed: {reason}"
            ) from error
    for kind, name in itertools.product(("lstm", "gru") if cell is None else ("cell",), _ARGUMENTS):
        function = getattr(cells, f"{kind}_{name}")
        function.argtypes, function.restype = _ARGUMENTS[name], None
    return cells


def _functions_of(cell: Cell, dtype: torch.dtype, operand_dtype: torch.dtype) -> tuple[Any, Any]:
    """Return a cell's step forward and backward: generated, but written by hand for torch's."""
    if OF_TORCH.get(cell.name) == cell:
        kind, library = cell.name.lower(), load_cells(dtype, operand_dtype)
    else:
        kind, library = "cell", load_cells(dtype, operand_dtype, cell)
    return getattr(library, f"{kind}_forward"), getattr(library, f"{kind}_backward")


def _equations_in_c(cell: Cell) -> str:
    """Return what ``equations.c`` includes."""
    made = statements_of(cell.equations, cell.num_gates, cell.num_states)

    def define(
        name: str, statements: list[tuple[str, str]], *results: tuple[str, list[str]]
    ) -> str:
        lines = [f"const REAL {value} = {expression};" for value, expression in statements]
        for function, values in results:
            lines += [f"{function}({k}, {value});" for k, value in enumerate(values)]
        return f"#define {name} " + " \\\n    ".join(lines)

    sizes = {
        "GATES": cell.gates,
        "INPUT_GATES": cell.input_gates,
        "HIDDEN_GATES": cell.hidden_gates,
        "NUM_STATES": cell.num_states,
    }
    gradients = ("grad_gate", made.grad_gates), ("grad_before", made.grad_before)
    return "\n".join(
        [
            *(f"#define {name} {size}" for name, size in sizes.items()),
            define("FORWARD", made.forward, ("after", made.after)),
            define("BACKWARD", made.backward, *gradients),
            "",
        ]
    )

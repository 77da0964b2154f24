"""Triton kernels: one step of a cell, with its matrix product or without.

They are written from the cell's equations (``kernels_of``), for torch's LSTM and GRU, too. A kernel
runs over the N * H units of a step: ``unit`` is hidden unit ``unit % H`` of environment
``unit // H``. A program of a kernel with the product has some hidden units of some environments,
and multiplies all of h' of these by the weights of those. These are the buffers of a window, of
which ``step`` selects a part; a cell has G gates and S tensors of its state, the first is h::

    gates        (T, N, G, H)      inputs of the activations, which the backward pass overwrites
                                   with their gradients: of x alone, of both, of h alone
    states       (S, T + 1, N, H)  the state before each step, not cleared
    operands     (T, N, H)         h before each step, cleared: the operand of the step's product
    starts       (T, N)            True where the state is cleared before the step
    grads        (T, N, H)         gradient of h after each step, from the outputs
    grad_hidden  (N, H)            gradient of the next step's operands, from its product
    carry        (S, N, H)         gradient of the next step's states that bypasses that product
    weights      (rows, H)         of h: for the gates of both, then of h alone

Writes are disjoint: each unit belongs to one program, and each value that a kernel stores has an
address of its own for each unit. Gates and carry, which a kernel reads and overwrites, it reads at
the addresses of the same unit. So programs run in any order and need no barrier.

Activations are not stored but computed again in the backward pass. This spares the forward kernels
their largest write. It also keeps the gradient of saturated gates in bfloat16: an activation of
0.999 would be stored as 1. All arithmetic is in float32, or in float64 if the state is. Values and
gradients are cleared by selection, so a NaN does not survive.
"""

# Pyright reads calls of compiled functions as errors, which they are outside kernels.
# pyright: reportGeneralTypeIssues=false

import functools
import linecache
from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl
from triton.language import constexpr

from rsl_tbptt.core.scan.cells import Cell
from rsl_tbptt.core.scan.equations import statements_of

for_all_steps = triton.jit(do_not_specialize=["step", "T", "has_next"])
"""Compiles a kernel once; by default Triton would do so again for the steps 1 and 16, 32, ..."""


@triton.jit
def sigmoid(x):
    """Return the sigmoid by an exponential that cannot overflow."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x < 0, e, 1.0) / (1.0 + e)


@triton.jit
def tanh_of(x):
    """Return tanh, correct to the last digits for all sizes; ``tl`` has none on all backends.

    Exponentials cancel in small numbers. Below 1/2 it is Lambert's continued fraction up to its
    seventh term, with a relative error below 2e-16.
    """
    e = tl.exp(-2.0 * tl.abs(x))
    large = tl.where(x < 0, -1.0, 1.0) * (1.0 - e) / (1.0 + e)
    square = x * x
    above = ((square + 378.0) * square + 17325.0) * square + 135135.0
    below = ((28.0 * square + 3150.0) * square + 62370.0) * square + 135135.0
    return tl.where(tl.abs(x) < 0.5, x * above / below, large)


@triton.jit
def _units(step, T, N, H: constexpr, BLOCK: constexpr):
    """Return the program's units and their addresses.

    Returns:
        Whether a unit exists, and whether it has a next step; its number; the addresses, from the
        first step on, of its flag and of its value in a buffer with one value for each unit; and
        the size of one tensor of ``states``.
    """
    unit = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = unit < N * H
    flag = step.to(tl.int64) * N + unit // H
    at = step.to(tl.int64) * N * H + unit
    later = here & (flag < (T.to(tl.int64) - 1) * N)  # compares blocks: interpreters need that
    return here, later, unit, flag, at, (T.to(tl.int64) + 1) * N * H


@triton.jit
def _load(pointers, here):
    """Return values in float32, or in float64 if they are."""
    values = tl.load(pointers, here, 0.0)
    return values if values.dtype == tl.float64 else values.to(tl.float32)


@triton.jit
def _clear(values, flags, here):
    """Return the values, and 0 where the flag is True."""
    return tl.where(tl.load(flags, here, 0) != 0, 0.0, values)


@triton.jit
def multiply(rows, columns, sums, PRECISION: constexpr):
    """Return ``sums + rows @ columns``."""
    return tl.dot(rows, columns, sums, input_precision=PRECISION, out_dtype=sums.dtype)


@triton.jit
def _tile(step, T, N, H: constexpr, BLOCK_N: constexpr, BLOCK_H: constexpr):
    """Return the program's environments and hidden units, and what ``_units`` returns of them.

    Shapes: (BLOCK_N,) and (BLOCK_H,); all else (BLOCK_N, BLOCK_H), or a number.
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    here = (n < N)[:, None] & (h < H)[None, :]
    unit = n[:, None] * H + h[None, :]
    flag = step.to(tl.int64) * N + n[:, None] + 0 * h[None, :]
    at = step.to(tl.int64) * N * H + unit
    later = here & (flag < (T.to(tl.int64) - 1) * N)
    return n, h, here, later, unit, flag, at, (T.to(tl.int64) + 1) * N * H


OF_UNITS = ("begin", "forward", "backward")
WITH_PRODUCT = ("forward_with_product", "backward_with_product")
"""Names of a cell's kernels, after its own name."""
_ZEROS = "tl.full((BLOCK_N, BLOCK_H), 0.0, states.dtype.element_ty)"
_PRODUCT = """columns = tl.load(right + {1} * H * H, there, 0.0)
        sum_{0} = multiply(rows, columns, sum_{0}, PRECISION)"""
_KERNELS_OF_A_CELL = """
@triton.jit
def {name}_inputs(x, inputs, D: constexpr, WIDTH: constexpr, rows, BLOCK: constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row, column, here = place // WIDTH, place % WIDTH, place < rows * WIDTH
    values = tl.load(x + row * D + column, here & (column < D), 1.0)
    tl.store(inputs + place, values, here)

@for_all_steps
def {name}_begin({given}, states, operands, starts, step, T, N, H: constexpr, BLOCK: constexpr):
    here, later, unit, flag, at, size = _units(step, T, N, H, BLOCK)
    {begin}
    tl.store(operands + at, _clear({h_before}, starts + flag, here), here)

@for_all_steps
def {name}_forward(gates, states, operands, starts, step, T, N, H: constexpr, BLOCK: constexpr):
    here, later, unit, flag, at, size = _units(step, T, N, H, BLOCK)
    gate = at + flag * ({G} - 1) * H
    {forward}
    tl.store(operands + at + N * H, _clear({h}, starts + flag + N, later), later)

@for_all_steps
def {name}_backward(
    gates, states, grads, grad_hidden, carry, starts, step, T, N, H: constexpr, BLOCK: constexpr
):
    here, later, unit, flag, at, size = _units(step, T, N, H, BLOCK)
    gate = at + flag * ({G} - 1) * H
    dh = _clear(_load(grad_hidden + unit, here), starts + flag + N, later) + _load(grads + at, here)
    {backward}

@for_all_steps
def {name}_forward_with_product(
    gates, weights, states, operands, starts, step, T, N, H: constexpr,
    BLOCK_N: constexpr, BLOCK_H: constexpr, BLOCK_K: constexpr, PRECISION: constexpr
):
    n, h, here, later, unit, flag, at, size = _tile(step, T, N, H, BLOCK_N, BLOCK_H)
    gate = at + flag * ({G} - 1) * H
    left = operands + (step.to(tl.int64) * N + n)[:, None] * H
    {zeros}
    for first in range(0, H, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        rows = tl.load(left + k[None, :], (n < N)[:, None] & (k < H)[None, :], 0.0)
        right, there = weights + h[None, :] * H + k[:, None], (h < H)[None, :] & (k < H)[:, None]
        {products}
    {forward_of_sums}
    tl.store(operands + at + N * H, _clear({h}, starts + flag + N, later), later)

@for_all_steps
def {name}_backward_with_product(
    gates, weights, states, grads, carry, starts, has_next, step, T, N, H: constexpr,
    BLOCK_N: constexpr, BLOCK_H: constexpr, BLOCK_K: constexpr, PRECISION: constexpr
):
    n, h, here, later, unit, flag, at, size = _tile(step, T, N, H, BLOCK_N, BLOCK_H)
    gate = at + flag * ({G} - 1) * H
    left = gates + (((step.to(tl.int64) + 1) * N + n)[:, None] * {G} + {first}) * H
    next_rows = (n < N) & (step + 1 + 0 * n < T)
    dh = {zero}
    for first in range(0, ({G} - {first}) * H, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        there = k < ({G} - {first}) * H
        rows = tl.load(left + k[None, :], next_rows[:, None] & there[None, :], 0.0)
        right = weights + k[:, None] * H + h[None, :]
        columns = tl.load(right, there[:, None] & (h < H)[None, :], 0.0)
        dh = multiply(rows, columns, dh, PRECISION)
    follows = later & (has_next + 0 * unit != 0)  # compares blocks: interpreters need that
    dh = tl.where(follows, _clear(dh, starts + flag + N, later), 0.0)
    dh += _load(grads + at, here)
    {backward}
"""


@functools.cache
def kernels_of(cell: Cell) -> dict[str, Any]:
    """Define and return a cell's kernels by name.

    "inputs" writes [x | 1], rows of WIDTH numbers. "begin" writes the given state, one tensor
    (N, H) each, as that before step 0. "forward" and "backward" follow and precede a product of
    torch; "..._with_product" contain it.
    """
    G, S, first = cell.num_gates, cell.num_states, cell.input_gates
    made = statements_of(cell.equations, G, S)
    order = [*range(first, first + cell.gates), *range(first), *range(first + cell.gates, G)]
    gates = [f"gates + gate + {k} * H" for k in order]
    carry = [f"carry + unit + {s} * N * H" for s in range(S)]
    before = [f"states + at + {s} * size" for s in range(S)]
    after = [f"{state} + N * H" for state in before]
    inputs = {f"gate({k})": f"_load({at}, here)" for k, at in enumerate(gates)}
    inputs |= {
        f"before({s})": f"_clear(_load({at}, here), starts + flag, here)"
        for s, at in enumerate(before)
    }
    inputs |= {f"grad_after({s})": f"_load({at}, here)" for s, at in enumerate(carry)}
    inputs["grad_after(0)"] += " + dh"
    given = ["h", "c"][:S]
    given_values = [f"_load({tensor} + unit, here)" for tensor in given]
    grad_before = [f"_clear({value}, starts + flag, here)" for value in made.grad_before]
    # A product adds to the inputs of the gates of h, whose sums the backward pass reads.
    of_h = {f"gate({k})": at for k, at in enumerate(order) if at >= first}
    with_sums = {text: f"{inputs[text]} + sum_{at}" for text, at in of_h.items()}
    names = {text: name for name, text in made.forward}
    sums = {f"gates + gate + {at} * H": names[text] for text, at in of_h.items()}
    states = dict(zip(after, made.after, strict=True))
    source = _KERNELS_OF_A_CELL.format(
        name=cell.name.lower(),
        G=G,
        first=first,
        zero=_ZEROS,
        h=made.after[0],
        h_before=given_values[0],
        given=", ".join(given),
        begin=_lines([], dict(zip(before, given_values, strict=True))),
        forward=_lines(made.forward, states, inputs),
        zeros="\n    ".join(f"sum_{k} = {_ZEROS}" for k in range(first, G)),
        products="\n        ".join(_PRODUCT.format(k, k - first) for k in range(first, G)),
        forward_of_sums=_lines(made.forward, sums | states, inputs | with_sums),
        backward=_lines(
            made.backward,
            dict(zip(gates + carry, made.grad_gates + grad_before, strict=True)),
            inputs,
        ),
    )
    # Two cells may have one name, so each has a file and a namespace of its own.
    namespace = _namespace_of(source, f"<kernels of {cell.name}, {id(cell)}>")
    return {
        name: namespace[f"{cell.name.lower()}_{name}"]
        for name in ("inputs", *OF_UNITS, *WITH_PRODUCT)
    }


def _lines(
    statements: list[tuple[str, str]], stores: dict[str, str], inputs: Mapping[str, str] = {}
) -> str:
    """Return statements, whose inputs have these expressions, and stores of values by address."""
    body = [f"{name} = {inputs.get(text, text)}" for name, text in statements]
    return "\n    ".join(
        [*body, *(f"tl.store({at}, {value}, here)" for at, value in stores.items())]
    )


def _namespace_of(source: str, file: str) -> dict[str, Any]:
    """Run generated source, next to the names of this module; Triton reads it by its file."""
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    namespace = dict(globals())
    exec(compile(source, file, "exec"), namespace)
    return namespace

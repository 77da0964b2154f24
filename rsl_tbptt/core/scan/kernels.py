"""Triton kernels: what one step of a cell does besides its matrix product.

They are written from the cell's equations (``kernels_of``), for torch's LSTM and GRU, too. A kernel
runs over the N * H units of a step: ``unit`` is hidden unit ``unit % H`` of environment
``unit // H``. These are the buffers of a window, of which ``step`` selects a part; a cell has G
gates and S tensors of its state, the first of which is h::

    gates        (T, N, G, H)      inputs of the activations, which the backward pass overwrites
                                   with their gradients: of x alone, of both, of h alone
    states       (S, T + 1, N, H)  the state before each step, not cleared
    operands     (T, N, H)         h before each step, cleared: the operand of the step's product
    starts       (T, N)            True where the state is cleared before the step
    grads        (T, N, H)         gradient of h after each step, from the outputs
    grad_hidden  (N, H)            gradient of the next step's operands, from its product
    carry        (S, N, H)         gradient of the next step's states that bypasses that product

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
from typing import Any

import triton
import triton.language as tl
from triton.language import constexpr

from rsl_tbptt.core.scan.cells import Cell
from rsl_tbptt.core.scan.equations import statements_of

for_all_steps = triton.jit(do_not_specialize=["step", "T"])
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


_KERNELS_OF_A_CELL = """
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
"""


@functools.cache
def kernels_of(cell: Cell) -> dict[str, Any]:
    """Define and return a cell's kernels: "begin", "forward" and "backward".

    "begin" writes the given state, one tensor (N, H) each, as that before step 0.
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

    def lines(statements: list[tuple[str, str]], at: list[str], values: list[str]) -> str:
        body = [f"{name} = {inputs.get(text, text)}" for name, text in statements]
        stores = [f"tl.store({a}, {b}, here)" for a, b in zip(at, values, strict=True)]
        return "\n    ".join([*body, *stores])

    given = ["h", "c"][:S]
    given_values = [f"_load({tensor} + unit, here)" for tensor in given]
    grad_before = [f"_clear({value}, starts + flag, here)" for value in made.grad_before]
    source = _KERNELS_OF_A_CELL.format(
        name=cell.name.lower(),
        G=G,
        h=made.after[0],
        h_before=given_values[0],
        given=", ".join(given),
        begin=lines([], before, given_values),
        forward=lines(made.forward, after, made.after),
        backward=lines(made.backward, gates + carry, made.grad_gates + grad_before),
    )
    # Two cells may have one name, so each has a file and a namespace of its own.
    namespace = _namespace_of(source, f"<kernels of {cell.name}, {id(cell)}>")
    names = ("begin", "forward", "backward")
    return {name: namespace[f"{cell.name.lower()}_{name}"] for name in names}


def _namespace_of(source: str, file: str) -> dict[str, Any]:
    """Run generated source, next to the names of this module; Triton reads it by its file."""
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    namespace = dict(globals())
    exec(compile(source, file, "exec"), namespace)
    return namespace

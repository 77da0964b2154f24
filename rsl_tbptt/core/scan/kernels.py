"""Triton kernels: what one step of a cell does besides its matrix product.

They are written from the cell's equations (``kernels_of``), for torch's LSTM and GRU, too. A kernel
runs over the N * H units of a step: ``unit`` is hidden unit ``unit % H`` of environment
``unit // H``. These are the buffers of a window, of which ``step`` selects a part; a cell has G
gates and S tensors of its state, the first of which is h::

    gates        (T, N, G, H)      inputs of the activations, which the backward pass overwrites
                                   with their gradients: of x alone, of both, of h alone
    states       (T + 1, S, N, H)  the state before each step, not cleared
    operands     (T + 1, N, H)     h before each step, cleared: the operand of the step's product
    starts       (T + 1, N)        True where the state is cleared before the step
    stops        (T + 1, N)        True where its gradient stops: starts, and all at a cut
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

for_all_steps = triton.jit(do_not_specialize=["step"])
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
def _units(step, N, H: constexpr, BLOCK: constexpr):
    """Return the program's units and their addresses.

    Returns:
        Whether a unit exists, its number, and the addresses, from the first step on, of its flag
        and of its value in a buffer with one value for each unit.
    """
    unit = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    flag = step.to(tl.int64) * N + unit // H
    at = step.to(tl.int64) * N * H + unit
    return unit < N * H, unit, flag, at


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
def {name}_forward(gates, states, operands, starts, step, N, H: constexpr, BLOCK: constexpr):
    here, unit, flag, at = _units(step, N, H, BLOCK)
    gate, state = at + flag * ({G} - 1) * H, at + (at - unit) * ({S} - 1)
    {forward}
    tl.store(operands + at + N * H, _clear({h}, starts + flag + N, here), here)

@for_all_steps
def {name}_backward(
    gates, states, grads, grad_hidden, carry, starts, stops, step, N, H: constexpr, BLOCK: constexpr
):
    here, unit, flag, at = _units(step, N, H, BLOCK)
    gate, state = at + flag * ({G} - 1) * H, at + (at - unit) * ({S} - 1)
    dh = _clear(_load(grad_hidden + unit, here), stops + flag + N, here) + _load(grads + at, here)
    {backward}
"""


@functools.cache
def kernels_of(cell: Cell) -> dict[str, Any]:
    """Define and return a cell's kernels: "forward" and "backward"."""
    G, S, first = cell.num_gates, cell.num_states, cell.input_gates
    made = statements_of(cell.equations, G, S)
    order = [*range(first, first + cell.gates), *range(first), *range(first + cell.gates, G)]
    gates = [f"gates + gate + {k} * H" for k in order]
    carry = [f"carry + unit + {s} * N * H" for s in range(S)]
    states = [f"states + state + {s} * N * H" for s in range(2 * S)]  # before the step, and after
    inputs = {f"gate({k})": f"_load({at}, here)" for k, at in enumerate(gates)}
    inputs |= {
        f"before({s})": f"_clear(_load({at}, here), starts + flag, here)"
        for s, at in enumerate(states[:S])
    }
    inputs |= {f"grad_after({s})": f"_load({at}, here)" for s, at in enumerate(carry)}
    inputs["grad_after(0)"] += " + dh"

    def lines(statements: list[tuple[str, str]], at: list[str], values: list[str]) -> str:
        body = [f"{name} = {inputs.get(text, text)}" for name, text in statements]
        stores = [f"tl.store({a}, {b}, here)" for a, b in zip(at, values, strict=True)]
        return "\n    ".join([*body, *stores])

    before = [f"_clear({value}, stops + flag, here)" for value in made.grad_before]
    source = _KERNELS_OF_A_CELL.format(
        name=cell.name.lower(),
        G=G,
        S=S,
        h=made.after[0],
        forward=lines(made.forward, states[S:], made.after),
        backward=lines(made.backward, gates + carry, made.grad_gates + before),
    )
    # Two cells may have one name, so each has a file and a namespace of its own.
    file, namespace = f"<kernels of {cell.name}, {id(cell)}>", dict(globals())
    # Triton reads a kernel's source, which Python finds here.
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    exec(compile(source, file, "exec"), namespace)
    return {each: namespace[f"{cell.name.lower()}_{each}"] for each in ("forward", "backward")}

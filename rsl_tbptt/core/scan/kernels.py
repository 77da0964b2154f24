"""Triton kernels: what one step of an LSTM or GRU does besides its matrix product.

A kernel runs over the N * H units of a step: unit ``at`` is hidden unit ``at % H`` of environment
``at // H``. Addresses have 32 bits inside a step and 64 bits from step to step. These are the
buffers of a window, of which ``step`` selects a part::

    gates        (T, N, 4, H)   inputs of the activations, which the backward pass overwrites with
                                their gradients. LSTM: i, f, g, o. GRU: n (from x), r, z, u (the
                                part of n's input from h)
    states       (T + 1, N, H)  the state that stays elementwise, before each step and not cleared:
                                c of an LSTM, h of a GRU
    operands     (T + 1, N, H)  h before each step, cleared: the operand of the step's product
    outputs      (T, N, H)      h after each step of an LSTM; those of a GRU are states[1:]
    starts       (T + 1, N)     True where the state is cleared before the step
    stops        (T + 1, N)     True where its gradient stops: starts, and all at a cut
    grad_hidden  (N, H)         gradient of the next step's operands, from its product
    carry        (N, H)         gradient of the next step's states that bypasses that product

Writes are disjoint: each unit belongs to one program, and each value that a kernel stores has an
address of its own for each unit. Gates and carry, which a kernel reads and overwrites, it reads at
the addresses of the same unit. So programs run in any order and need no barrier.

Activations are not stored but computed again in the backward pass. That takes less time than to
write and read them. It also keeps the gradient of a saturated gate in bfloat16, to which an
activation of 0.999 would be rounded as 1. All arithmetic is in float32, or in float64 if the state
is. Values and gradients are cleared by selection, so a NaN does not survive.
"""

import triton
import triton.language as tl

for_all_steps = triton.jit(do_not_specialize=["step"])
"""Compiles a kernel once; by default Triton would do so again for the steps 1 and 16, 32, ..."""


@triton.jit
def _sigmoid(x):
    """Return the sigmoid by an exponential that cannot overflow."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x < 0, e, 1.0) / (1.0 + e)


@triton.jit
def _tanh(x):
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
def _units(num_envs, H: tl.constexpr, BLOCK: tl.constexpr) -> tuple[tl.tensor, ...]:
    """Return the program's units: which exist, their numbers, environments and first gates."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    env = at // H
    return at < num_envs * H, at, env, at + env * (3 * H)


@triton.jit
def _part(buffer, step, size):
    """Return the pointer to a step's part of a buffer, whose steps have ``size`` elements."""
    return buffer + step.to(tl.int64) * size


@triton.jit
def _load(pointers, here):
    """Return values in float32, or in float64 if they are."""
    values = tl.load(pointers, mask=here, other=0.0)
    return values if values.dtype == tl.float64 else values.to(tl.float32)


@triton.jit
def _clear(values, flags, here):
    """Return the values, and 0 where the flag is True."""
    return tl.where(tl.load(flags, mask=here, other=0) != 0, 0.0, values)


@for_all_steps
def lstm_forward(
    gates, states, operands, starts, outputs, step, num_envs, H: tl.constexpr, BLOCK: tl.constexpr
):
    """Write c and h after the step, and the next step's operand."""
    here, at, env, gate = _units(num_envs, H, BLOCK)
    size = num_envs * H
    gates = _part(gates, step, 4 * size) + gate
    before, after = _part(states, step, size) + at, _part(states, step + 1, size) + at
    starts_now, starts_next = _part(starts, step, num_envs), _part(starts, step + 1, num_envs)

    c = _clear(_load(before, here), starts_now + env, here)
    i, f = _sigmoid(_load(gates, here)), _sigmoid(_load(gates + H, here))
    g, o = _tanh(_load(gates + 2 * H, here)), _sigmoid(_load(gates + 3 * H, here))
    c = f * c + i * g
    h = o * _tanh(c)
    tl.store(after, c, mask=here)
    tl.store(_part(outputs, step, size) + at, h, mask=here)
    operand = _clear(h, starts_next + env, here)
    tl.store(_part(operands, step + 1, size) + at, operand, mask=here)


@for_all_steps
def lstm_backward(
    gates,
    states,
    grad_outputs,
    grad_hidden,
    carry,
    starts,
    stops,
    step,
    num_envs,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Overwrite the step's gates with their gradients, and dc after the step with dc before it."""
    here, at, env, gate = _units(num_envs, H, BLOCK)
    size = num_envs * H
    gates = _part(gates, step, 4 * size) + gate
    before, after = _part(states, step, size) + at, _part(states, step + 1, size) + at
    stops_now, stops_next = _part(stops, step, num_envs), _part(stops, step + 1, num_envs)

    c = _clear(_load(before, here), _part(starts, step, num_envs) + env, here)
    i, f = _sigmoid(_load(gates, here)), _sigmoid(_load(gates + H, here))
    g, o = _tanh(_load(gates + 2 * H, here)), _sigmoid(_load(gates + 3 * H, here))
    tanh_c = _tanh(_load(after, here))
    dh = _load(_part(grad_outputs, step, size) + at, here)
    dh += _clear(_load(grad_hidden + at, here), stops_next + env, here)
    dc = _load(carry + at, here) + dh * o * (1.0 - tanh_c * tanh_c)
    tl.store(gates, dc * g * i * (1.0 - i), mask=here)
    tl.store(gates + H, dc * c * f * (1.0 - f), mask=here)
    tl.store(gates + 2 * H, dc * i * (1.0 - g * g), mask=here)
    tl.store(gates + 3 * H, dh * tanh_c * o * (1.0 - o), mask=here)
    tl.store(carry + at, _clear(dc * f, stops_now + env, here), mask=here)


@for_all_steps
def gru_forward(
    gates, states, operands, starts, step, num_envs, H: tl.constexpr, BLOCK: tl.constexpr
):
    """Write h after the step, and the next step's operand."""
    here, at, env, gate = _units(num_envs, H, BLOCK)
    size = num_envs * H
    gates = _part(gates, step, 4 * size) + gate
    before, after = _part(states, step, size) + at, _part(states, step + 1, size) + at
    starts_now, starts_next = _part(starts, step, num_envs), _part(starts, step + 1, num_envs)

    h = _clear(_load(before, here), starts_now + env, here)
    r, z = _sigmoid(_load(gates + H, here)), _sigmoid(_load(gates + 2 * H, here))
    n = _tanh(_load(gates, here) + r * _load(gates + 3 * H, here))
    h = n + z * (h - n)
    tl.store(after, h, mask=here)
    operand = _clear(h, starts_next + env, here)
    tl.store(_part(operands, step + 1, size) + at, operand, mask=here)


@for_all_steps
def gru_backward(
    gates,
    states,
    grad_outputs,
    grad_hidden,
    carry,
    starts,
    stops,
    step,
    num_envs,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Overwrite the step's gates with their gradients, and write dh before it past the gates."""
    here, at, env, gate = _units(num_envs, H, BLOCK)
    size = num_envs * H
    gates = _part(gates, step, 4 * size) + gate
    stops_now, stops_next = _part(stops, step, num_envs), _part(stops, step + 1, num_envs)

    h = _load(_part(states, step, size) + at, here)
    h = _clear(h, _part(starts, step, num_envs) + env, here)
    r, z = _sigmoid(_load(gates + H, here)), _sigmoid(_load(gates + 2 * H, here))
    u = _load(gates + 3 * H, here)
    n = _tanh(_load(gates, here) + r * u)
    dh = _load(_part(grad_outputs, step, size) + at, here) + _load(carry + at, here)
    dh += _clear(_load(grad_hidden + at, here), stops_next + env, here)
    dn = dh * (1.0 - z) * (1.0 - n * n)
    tl.store(gates, dn, mask=here)
    tl.store(gates + H, dn * u * r * (1.0 - r), mask=here)
    tl.store(gates + 2 * H, dh * (h - n) * z * (1.0 - z), mask=here)
    tl.store(gates + 3 * H, dn * r, mask=here)
    tl.store(carry + at, _clear(dh * z, stops_now + env, here), mask=here)

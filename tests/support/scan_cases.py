"""Cases for scans, and an engine's results for them."""

import functools
import math

import torch
from hypothesis import strategies as st

from rsl_tbptt.core.hidden_state import as_tensors, from_tensors
from rsl_tbptt.core.scan import CELLS, Cell, num_states, recurrent_scan

D, H = 3, 4


def make_case(
    cell,
    num_layers,
    num_steps,
    num_envs,
    done_rate,
    seed=0,
    bias=True,
    dtype=torch.float64,
    device="cpu",
):
    """Return layers, inputs, state and episode starts, with the same numbers in any dtype.

    ``bias`` is for torch's own layers: those of a ``Cell`` always have biases.
    """
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    options = {} if isinstance(CELLS[cell], Cell) else {"bias": bias}
    rnn = CELLS[cell](D, H, num_layers, **options)
    inputs, *tensors = (
        torch.randn(shape, generator=generator).to(device, dtype)
        for shape in ((num_steps, num_envs, D), *[(num_layers, num_envs, H)] * num_states(cell))
    )
    starts = torch.rand(num_steps, num_envs, generator=generator) < done_rate
    return rnn.to(device, dtype), inputs, from_tensors(tensors), starts.to(device)


def values_and_gradients(rnn, inputs, state, starts, engine, cuts=()):
    """Return outputs, last state and the gradients of all arguments for a random cotangent.

    ``engine`` is a name, or a function with engine and cuts that replaces ``recurrent_scan``.
    """
    leaves = [leaf.detach().clone().requires_grad_() for leaf in (inputs, *as_tensors(state))]
    given = from_tensors(leaves[1:])
    scan = engine
    if isinstance(engine, str):
        scan = functools.partial(recurrent_scan, engine=engine, cuts=cuts)
    outputs, last = scan(rnn, leaves[0], given, starts)
    results = [outputs, *as_tensors(last)]
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(r.shape, generator=generator).to(inputs) for r in results]
    total = torch.stack([(r * w).sum() for r, w in zip(results, weights, strict=True)]).sum()
    return [*results, *torch.autograd.grad(total, [*leaves, *rnn.parameters()])]


def assert_all_close(got, want, **tolerance):
    """Compare tensors with those of the reference, which may have another dtype and device."""
    for left, right in zip(got, want, strict=True):
        right = right.detach().to(left)
        torch.testing.assert_close(left.detach(), right, **tolerance)


LAYOUTS = {
    "rows": torch.Tensor.contiguous,
    "columns": lambda tensor: tensor.mT.contiguous().mT,
    "every second": lambda tensor: torch.stack((tensor, tensor), dim=-1)[..., 0],
    "one number": lambda tensor: tensor.flatten()[0].expand(tensor.shape),  # as sum() does
}

IN_MEMORY = {
    "num_layers": st.integers(1, 2),
    "layouts": st.fixed_dictionaries(
        {name: st.sampled_from(list(LAYOUTS)) for name in ("inputs", "state", "starts")}
    ),
    "layouts_of_grads": st.lists(st.sampled_from([*LAYOUTS, None]), min_size=3, max_size=3).filter(
        lambda layouts: layouts[0] or layouts[1]
    ),
}
"""Memory layouts of a scan's arguments and of the gradients of outputs, h and c; None: none."""


def run_in_memory(case, lie, layouts_of_grads, engine):
    """Return results and gradients, with ``lie`` applied to all arguments of an engine."""
    rnn, inputs, state, starts = case
    leaves = [lie(t).detach().requires_grad_() for t in (inputs, *as_tensors(state))]
    outputs, last = recurrent_scan(rnn, leaves[0], from_tensors(leaves[1:]), lie(starts), engine)
    results = [outputs, *as_tensors(last)]
    generator = torch.Generator().manual_seed(1)
    pairs = [
        (result, lie(LAYOUTS[layout](torch.randn(result.shape, generator=generator).to(inputs))))
        for result, layout in zip(results, layouts_of_grads, strict=False)
        if layout
    ]
    roots, grads = zip(*pairs, strict=True)
    leaves += rnn.parameters()
    return [*results, *torch.autograd.grad(roots, leaves, grads, materialize_grads=True)]


def check_tanh(tanh_of, tolerance, num, device="cpu", dtype=torch.float32):
    """Check a tanh over all sizes of numbers by its relative error, and NaN, inf and 0 exactly."""
    sizes = torch.logspace(-30, 30, num, base=2.0, dtype=torch.float64)
    x = torch.cat((sizes, -sizes, torch.linspace(-10.0, 10.0, num))).to(device, dtype)
    want = x.double().tanh()
    error = (tanh_of(x).double() - want) / want.abs().clamp(min=1e-30)
    assert error.abs().max() < tolerance
    odd = torch.tensor([math.nan, math.inf, -math.inf, 0.0], device=device, dtype=dtype)
    torch.testing.assert_close(tanh_of(odd), odd.tanh(), equal_nan=True, rtol=0, atol=0)

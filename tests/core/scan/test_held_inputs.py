"""Columns of inputs that steps share give what they give when every step has its own copy."""

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.scan_cases import assert_all_close
from support.tolerances import EXACT_FLOAT64, WINDOW_FLOAT32

from rsl_tbptt.core.hidden_state import as_tensors
from rsl_tbptt.core.scan import Held, HeldInputs, recurrent_scan
from rsl_tbptt.core.scan.cpu import compiled

T, N, H = 7, 3, 4
TOLERANCES = {torch.float64: EXACT_FLOAT64, torch.float32: WINDOW_FLOAT32}

OF_NOBODY = 5
"""A row that no step shows."""


def make_case(cell, own_width, held_widths, num_layers=1, dtype=torch.float64, device="cpu"):
    """Return layers, inputs and episode starts: the same numbers whatever the dtype."""
    torch.manual_seed(0)
    rnn = cell.rnn_type(own_width + sum(held_widths), H, num_layers)

    def random(*shape):
        return torch.randn(shape, dtype=torch.float64).to(device, dtype).requires_grad_()

    held = []
    for width in held_widths:
        places = torch.randint(OF_NOBODY, (T, N), device=device)
        held.append(Held(random(OF_NOBODY + 1, width), places))
    starts = torch.rand(T, N) < 0.3
    inputs = HeldInputs(random(T, N, own_width), tuple(held))
    return rnn.to(device, dtype), inputs, starts.to(device)


def values_and_gradients(rnn, inputs, starts, given_inputs, engine, cuts=()):
    """Return outputs, last state and all gradients; ``given_inputs`` are made of ``inputs``."""
    outputs, last = recurrent_scan(rnn, given_inputs, None, starts, engine, cuts)
    results = [outputs, *as_tensors(last)]
    weights = torch.arange(H).to(outputs)
    total = torch.stack([(result * weights).square().sum() for result in results]).sum()
    leaves = [inputs.own, *(held.rows for held in inputs.held), *rnn.parameters()]
    return [*results, *torch.autograd.grad(total, leaves)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    own_width=st.integers(0, 3),
    held_widths=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    num_layers=st.integers(1, 2),
    cuts=st.sampled_from([(), (3,), (1, 6)]),
)
def test_held_inputs_equal_joined_ones(engine, cell, dtype, device, cuts, **sizes):
    case = make_case(cell, **sizes, dtype=dtype, device=device)
    got = values_and_gradients(*case, case[1], engine.name, cuts)
    on_cpu = make_case(cell, **sizes)
    want = values_and_gradients(*on_cpu, on_cpu[1].joined(), "reference", cuts)
    assert_all_close(got, want, **TOLERANCES[dtype])


def test_joined_by_hand():
    own = torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]])
    held = Held(torch.tensor([[10.0, 11.0], [20.0, 21.0]]), torch.tensor([[0, 1], [0, 0]]))
    inputs = HeldInputs(own, (held,))
    expected = [[[1.0, 10, 11], [2, 20, 21]], [[3, 10, 11], [4, 10, 11]]]
    assert inputs.joined().tolist() == expected
    assert inputs.shape == (2, 2, 3)
    assert len(inputs) == 2


@pytest.mark.engines(knows_held_inputs=True)
def test_they_can_be_run_from_cut_to_cut(engine, cell):
    rnn, inputs, starts = make_case(cell, 2, [3, 1], num_layers=2)
    state = cell.zero_state(rnn, N)
    one_by_one = replace(engine, cuts_gradient=False)
    got = one_by_one.scan(cell, rnn, inputs, state, starts, (2, 5))
    want = recurrent_scan(rnn, inputs.joined(), state, starts, "reference", (2, 5))
    assert_all_close(
        [got[0], *as_tensors(got[1])], [want[0], *as_tensors(want[1])], **EXACT_FLOAT64
    )


@pytest.mark.engines(name="compiled")
def test_such_an_engine_multiplies_each_row_once(engine, cell, monkeypatch):
    monkeypatch.setattr(HeldInputs, "joined", None)
    rnn, inputs, starts = make_case(cell, 2, [64])
    rows, matmul = [], torch.Tensor.__matmul__
    monkeypatch.setattr(
        torch.Tensor, "__matmul__", lambda a, b: rows.append((a.shape, b.shape)) or matmul(a, b)
    )
    recurrent_scan(rnn, inputs, None, starts, engine.name)
    gates = len(rnn.weight_ih_l0)
    assert [shapes for shapes in rows if shapes[0][1] == 64] == [((OF_NOBODY + 1, 64), (64, gates))]


@pytest.mark.engines(knows_held_inputs=True)
@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16])
def test_short_operands(engine, cell, autocast):
    rnn, inputs, starts = make_case(cell, 2, [3, 2], num_layers=2, dtype=torch.float32)
    want = values_and_gradients(rnn, inputs, starts, inputs.joined(), "reference")
    with torch.autocast("cpu", autocast):
        got = values_and_gradients(rnn, inputs, starts, inputs, engine.name)
    for found, expected in zip(got, want, strict=True):
        assert found.dtype == torch.float32
        assert 0.0 < (found - expected).norm() / expected.norm() < 0.02


@pytest.mark.engines(knows_held_inputs=True)
def test_what_no_step_shows_gets_no_gradient(engine, cell):
    rnn, inputs, starts = make_case(cell, 2, [3])
    outputs, _ = recurrent_scan(rnn, inputs, None, starts, engine.name)
    (held,) = inputs.held
    (of_rows,) = torch.autograd.grad(outputs.square().sum(), held.rows)
    assert not of_rows[OF_NOBODY].any()
    assert of_rows[held.places].all()


def test_gradients_outlive_the_next_scan(cell):
    """They are no buffers, which the next window overwrites."""
    rnn, inputs, starts = make_case(cell, 2, [])
    added = torch.randn(T, N, len(rnn.weight_ih_l0), dtype=torch.float64, requires_grad=True)
    state = (torch.zeros(N, H).double(),) * cell.num_states

    def gradient():
        arguments = (inputs.own, state, tuple(rnn.all_weights[0]), starts, torch.float64, (), added)
        outputs, _ = compiled.LAYERS[cell.name](*arguments)
        return torch.autograd.grad(outputs.square().sum(), added)[0]

    first = gradient()
    kept = first.clone()
    with torch.no_grad():
        added.mul_(-3.0)
    second = gradient()
    assert torch.equal(first, kept)
    assert not torch.equal(first, second)

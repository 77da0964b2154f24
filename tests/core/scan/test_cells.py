"""Cells by their equations: LSTM and GRU equal torch's, and SRU equals a hand's result.

The other files of this folder compare all engines for every registered cell.
"""

import math
from dataclasses import replace

import pytest
import torch
from support.scan_cases import D, H, assert_all_close, make_case, values_and_gradients
from support.tolerances import EXACT_FLOAT64
from torch import nn

from rsl_tbptt.core.hidden_state import as_tensors
from rsl_tbptt.core.scan import CELLS, Cell, is_supported, recurrent_scan, register
from rsl_tbptt.core.scan.cells import OF_TORCH


def every_operation(gates, state):
    """Use each operation with numbers on both sides, no gate in the middle, and a state twice."""
    a, _, b, c = gates
    h, kept = state
    new = 0.5 * (1.0 - a.sigmoid()) - (-b).tanh() * 2.0 + (h - 1.0) * (0.25 + c + 1.0) * h
    return new.tanh(), kept


WRITTEN = {name: replace(cell, name=f"WRITTEN_{name}") for name, cell in OF_TORCH.items()}


@pytest.fixture
def registered():
    """Return a function that registers a cell for one test."""
    before = dict(CELLS)
    yield register
    CELLS.clear()
    CELLS.update(before)


@pytest.mark.parametrize("name", WRITTEN)
def test_torchs_layers_written_as_equations_equal_them(registered, engine, name, device):
    registered(WRITTEN[name])
    torchs, inputs, state, starts = make_case(name, 2, 6, 3, 0.3, device=device)
    ours = WRITTEN[name](D, H, 2, device=device, dtype=torch.float64)
    ours.load_state_dict(torchs.state_dict())
    expected = values_and_gradients(torchs, inputs, state, starts, "reference")
    found = values_and_gradients(ours, inputs, state, starts, engine)
    assert_all_close(found, expected, **EXACT_FLOAT64)


def test_every_operation_has_its_gradient(registered, engine, device):
    registered(Cell("OPS", every_operation, 1, input_gates=2, hidden_gates=1, num_states=2))
    case = make_case("OPS", 2, 5, 3, 0.3, device=device)
    expected = values_and_gradients(*case, "reference")
    assert_all_close(values_and_gradients(*case, engine), expected, **EXACT_FLOAT64)


def test_cells_of_one_name_keep_their_own_equations(registered, engine, device):
    tanh = Cell("TWICE", lambda gates, _: (gates[0].tanh(),), gates=1)
    sigmoid = Cell("TWICE", lambda gates, _: (gates[0].sigmoid(),), gates=1)
    # Each window has another length, so that no CUDA graph of an earlier one is replayed.
    for num_steps, cell in enumerate((tanh, sigmoid, tanh), start=3):
        registered(cell)
        case = make_case("TWICE", 1, num_steps, 3, 0.3, device=device)
        expected = values_and_gradients(*case, "reference")
        assert_all_close(values_and_gradients(*case, engine), expected, **EXACT_FLOAT64)


def sigmoid(x):
    return 1.0 / (1.0 + math.exp(-x))


def test_one_step_of_sru_by_hand(engine, device):
    """Yang et al. (2025), section on SRU-LSTM with the refined gate, in one unit."""
    rnn = CELLS["SRU"](1, 1, device=device, dtype=torch.float64)
    w_ih = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5], dtype=torch.float64)  # i, f, g, o, s
    w_hh = torch.tensor([0.6, 0.7, 0.8, 0.9], dtype=torch.float64)  # s does not see h
    x, h, c = 2.0, 0.5, -0.25
    with torch.no_grad():
        rnn.get_parameter("weight_ih_l0").copy_(w_ih[:, None])
        rnn.get_parameter("weight_hh_l0").copy_(w_hh[:, None])
        rnn.get_parameter("bias_ih_l0").fill_(0.1)
        rnn.get_parameter("bias_hh_l0").fill_(0.2)
    inputs, hidden, cell = (
        torch.full((1, 1, 1), value, dtype=torch.float64, device=device) for value in (x, h, c)
    )
    starts = torch.zeros(1, 1, dtype=torch.bool, device=device)
    outputs, last = recurrent_scan(rnn, inputs, (hidden, cell), starts, engine)
    i, f, g, o = (w * x + v * h + 0.3 for w, v in zip(w_ih.tolist(), w_hh.tolist(), strict=False))
    s, i, f = 0.5 * x + 0.1, sigmoid(i), sigmoid(f)
    r = i * (1 - (1 - f) ** 2) + (1 - i) * f**2
    expected_c = r * c + (1 - r) * math.tanh(s * g)
    assert isinstance(last, tuple)
    assert last[1].item() == pytest.approx(expected_c, rel=1e-12)
    assert outputs.item() == pytest.approx(sigmoid(o) * math.tanh(expected_c), rel=1e-12)


def test_layers_run_a_window_as_torchs_do():
    rnn, inputs, state, starts = make_case("SRU", 2, 4, 3, 0.0)
    for given in (state, None):
        outputs, last = rnn(inputs, given)
        expected, expected_last = recurrent_scan(rnn, inputs, given, starts, "reference")
        found, wanted = [outputs, *as_tensors(last)], [expected, *as_tensors(expected_last)]
        assert_all_close(found, wanted, **EXACT_FLOAT64)


def test_the_forget_gate_starts_open():
    bias = CELLS["SRU"](D, H).get_parameter("bias_ih_l0").view(5, H)
    assert bias.sum(dim=1).tolist() == [0.0, H, 0.0, 0.0, 0.0]


def test_an_operation_that_no_compiler_knows_is_left_to_the_reference(registered):
    def rectified(gates, state):
        return (torch.relu(gates[0]),)

    rnn, starts = registered(Cell("RELU", rectified, gates=1))(D, H), torch.zeros(2, 1).bool()
    with pytest.warns(UserWarning, match="takes 'reference' for a RELU"):
        recurrent_scan(rnn, torch.zeros(2, 1, D), None, starts)


def test_only_registered_cells_run_and_torchs_names_are_taken(registered):
    layers = WRITTEN["GRU"](D, H)
    assert not is_supported(layers)
    registered(WRITTEN["GRU"])
    assert is_supported(layers)
    with pytest.raises(ValueError, match="name is 'LSTM', expected another"):
        register(OF_TORCH["LSTM"])
    assert is_supported(nn.LSTM(D, H))


@pytest.mark.parametrize(
    ("name", "num_states", "message"),
    [
        ("mgu", 1, "name is 'mgu', expected upper case: letters, digits and _."),
        ("SRU-2", 1, "name is 'SRU-2', expected upper case: letters, digits and _."),
        ("X", 3, "num_states is 3, expected"),
    ],
)
def test_wrong_cells_are_refused(name, num_states, message):
    with pytest.raises(ValueError, match=message):
        replace(OF_TORCH["GRU"], name=name, num_states=num_states)

"""What is refused, what "auto" tries and what one entry more needs: the registry says it."""

import sys

import pytest
import torch
from support.scan_cases import D, H, assert_all_close, make_case, values_and_gradients
from support.tolerances import EXACT_FLOAT64
from support.triton_kernels import torchrl_on_cpu
from torch import nn

from rsl_tbptt.core.hidden_state import as_tensors
from rsl_tbptt.core.scan import (
    CELLS,
    ENGINES,
    Cell,
    Engine,
    is_supported,
    recurrent_scan,
    reference,
    registry,
    selection,
)
from rsl_tbptt.core.scan.cuda import torchrl_triton

LSTM, CPU = CELLS["lstm"], torch.device("cpu")


def names_of_candidates(device, cell=LSTM, dtype=torch.float32):
    return [engine.name for engine in registry.candidates(cell, torch.device(device), dtype)]


def test_names_are_keys():
    for table in (CELLS, ENGINES):
        assert all(entry.name == name for name, entry in table.items())


def test_engines_know_cells_of_the_registry_and_the_reference_all():
    assert all(engine.cells.keys() <= CELLS.keys() for engine in ENGINES.values())
    assert ENGINES["reference"].cells.keys() == CELLS.keys()


def test_the_zero_state_of_a_cell_has_the_form_of_torchs(cell):
    rnn = cell.rnn_type(D, H, 2)
    _, state = rnn(torch.zeros(1, 5, D))
    zeros = as_tensors(cell.zero_state(rnn, num_envs=5))
    assert [tensor.shape for tensor in zeros] == [tensor.shape for tensor in as_tensors(state)]
    assert not any(tensor.any() for tensor in zeros)


@pytest.mark.parametrize(
    ("device", "compiler_found", "expected"),
    [
        ("cuda:1", True, ["cuda_graphs", "cuda_cells", "fused"]),
        ("mps", True, ["fused"]),
        ("cpu", True, ["compiled", "fused"]),
        ("cpu", False, ["fused"]),
    ],
)
def test_auto_tries_what_suits_the_device(device, compiler_found, expected, monkeypatch):
    command = ("cc",) if compiler_found else None
    monkeypatch.setattr(registry.compiler, "compiler", lambda: command)
    assert names_of_candidates(device) == expected


def test_auto_runs_what_was_chosen(monkeypatch):
    asked = []

    def choose_last(cell, device, dtype, candidates):
        *_, last = candidates
        asked.append((cell.name, device, dtype, last.name))
        return last

    monkeypatch.setattr("rsl_tbptt.core.scan.first_that_works", choose_last)
    case = make_case(LSTM, 1, 4, 3, 0.3)
    outputs, _ = recurrent_scan(*case)
    assert asked == [("lstm", CPU, torch.float64, "fused")]
    torch.testing.assert_close(outputs, recurrent_scan(*case, "fused")[0], rtol=0, atol=0)


def test_the_shape_of_episode_starts_is_checked():
    rnn, inputs, state, starts = make_case(LSTM, 1, 4, 3, 0.0)
    with pytest.raises(ValueError, match=r"episode_starts has shape \(3, 3\), expected \(4, 3\)"):
        recurrent_scan(rnn, inputs, state, starts[:3])


def test_an_unknown_engine_is_refused():
    with pytest.raises(ValueError, match="scan_engine is 'warp', expected one of"):
        recurrent_scan(*make_case(LSTM, 1, 4, 3, 0.0), "warp")


@pytest.mark.parametrize("name", [e.name for e in ENGINES.values() if e.devices == ("cuda",)])
def test_an_engine_is_refused_where_it_does_not_run(name):
    case = make_case(LSTM, 1, 4, 3, 0.0, dtype=torch.float32)
    with pytest.raises(
        ValueError,
        match=rf"scan_engine is '{name}', expected one of \['auto', 'compiled', 'fused', .* on cpu:"
        " it runs on cuda alone",
    ):
        recurrent_scan(*case, name)


def test_compiled_is_refused_off_the_cpu():
    rnn, inputs, _, starts = make_case(LSTM, 1, 4, 3, 0.0)
    with pytest.raises(ValueError, match=r"'compiled', expected .* on meta: it runs on cpu alone"):
        recurrent_scan(rnn, inputs.to("meta"), None, starts.to("meta"), "compiled")


@pytest.mark.parametrize(
    "rnn",
    [
        nn.LSTM(D, H, bidirectional=True),
        nn.GRU(D, H, batch_first=True),
        nn.LSTM(D, H, proj_size=2),
        nn.GRU(D, H, num_layers=2, dropout=0.1),
        nn.RNNBase("RNN_TANH", D, H),
        nn.Linear(D, H),
    ],
)
def test_other_layers_are_refused(rnn):
    _, inputs, _, starts = make_case(LSTM, 1, 4, 3, 0.0)
    assert not is_supported(rnn)
    with pytest.raises(NotImplementedError, match=r"unidirectional nn\.LSTM or nn\.GRU .*without"):
        recurrent_scan(rnn, inputs, None, starts)


def test_dropout_of_a_single_layer_is_none():
    with pytest.warns(UserWarning, match="dropout"):
        assert is_supported(nn.GRU(D, H, dropout=0.1))


def test_torchrl_refuses_float64():
    message = r"'torchrl', expected .* torch\.float64 .* takes weights of torch\.float32 alone"
    with torchrl_on_cpu(), pytest.raises(ValueError, match=message):
        recurrent_scan(*make_case(LSTM, 1, 2, 2, 0.0), "torchrl")


@pytest.mark.parametrize("name", list(ENGINES["torchrl"].cells))
def test_torchrl_says_what_to_install(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchrl", None)
    assert not torchrl_triton.is_available()
    case = make_case(CELLS[name], 1, 2, 2, 0.0, dtype=torch.float32)
    with pytest.raises(NotImplementedError, match=r"'torchrl', expected TorchRL .* pip install"):
        ENGINES["torchrl"].cells[name](*case)


@pytest.fixture
def elman(monkeypatch):
    """Enter a cell that ``reference`` alone knows."""
    cell = Cell("elman", nn.RNN, num_states=1)
    monkeypatch.setattr(registry, "CELLS", {"elman": cell})
    monkeypatch.setitem(ENGINES, "reference", Engine("reference", {"elman": reference.scan}))
    return cell


def test_a_cell_is_an_entry(elman):
    case = make_case(elman, 2, 5, 3, 0.3)
    rnn, inputs, _, starts = case
    assert is_supported(rnn)
    expected = values_and_gradients(*case, "reference")
    assert_all_close(values_and_gradients(*case, "auto"), expected, **EXACT_FLOAT64)
    outputs, last = recurrent_scan(rnn, inputs, None, torch.zeros_like(starts), "reference")
    expected = rnn(inputs)
    assert_all_close((outputs, last), expected, **EXACT_FLOAT64)
    with pytest.raises(
        ValueError,
        match=r"'fused', expected one of \['auto', 'reference'\] for cell 'elman' .* it runs lstm",
    ):
        recurrent_scan(*case, "fused")


def test_an_engine_is_an_entry(monkeypatch):
    used = []

    def scan(*arguments):
        used.append(arguments)
        return reference.scan(*arguments)

    others = dict(ENGINES)
    monkeypatch.setattr(registry, "ENGINES", {"mine": Engine("mine", {"lstm": scan}, auto=True)})
    registry.ENGINES.update(others)
    assert names_of_candidates("cpu")[0] == names_of_candidates("mps")[0] == "mine"
    assert "mine" not in names_of_candidates("cpu", CELLS["gru"])
    case = make_case(LSTM, 1, 4, 3, 0.3)
    recurrent_scan(*case, "mine")
    assert len(used) == 1
    recurrent_scan(*case)
    assert len(used) == 4  # two for the check
    assert [engine.name for engine in selection._chosen.values()] == ["mine"]

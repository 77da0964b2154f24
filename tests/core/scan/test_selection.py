"""What the front door refuses, and that ``auto`` takes what was seen to work."""

import warnings

import pytest
import torch
from support.scan_cases import D, H, make_case
from torch import nn

from rsl_tbptt.core import scan
from rsl_tbptt.core.hidden_state import as_tensors
from rsl_tbptt.core.scan import ENGINES, Engine, is_supported, recurrent_scan, reference_scan

CPU = torch.device("cpu")


def raises(*arguments):
    raise NotImplementedError("no such kernel here")


def wrong_values(*arguments):
    outputs, state = reference_scan(*arguments)
    return 1.01 * outputs, state


def wrong_last_state(*arguments):
    outputs, state = reference_scan(*arguments)
    hidden, cell = as_tensors(state)
    return outputs, (hidden, 1.01 * cell)


def wrong_gradient(*arguments):
    outputs, state = reference_scan(*arguments)
    outputs.register_hook(lambda gradient: 1.01 * gradient)
    return outputs, state


def ignores_episode_starts(rnn, inputs, state, episode_starts, cuts):
    return reference_scan(rnn, inputs, state, torch.zeros_like(episode_starts), cuts)


def ignores_cuts(rnn, inputs, state, episode_starts, cuts):
    return reference_scan(rnn, inputs, state, episode_starts, ())


def right_once():
    """Return a scan that is right the first time alone."""
    calls = []

    def scan(*arguments):
        calls.append(1)
        outputs, state = reference_scan(*arguments)
        return len(calls) * outputs, state

    return scan


def choose(monkeypatch, scan_of_engine, dtype=torch.float32, cell="LSTM"):
    """Return what "auto" takes where the CPU's engine runs this scan."""
    monkeypatch.setitem(ENGINES, "compiled", Engine(scan_of_engine, "cpu"))
    recurrent_scan(*make_case(cell, 1, 4, 3, 0.3, dtype=dtype))
    return list(scan._chosen.values())[-1]


@pytest.mark.parametrize(
    "wrong",
    [
        raises,
        wrong_values,
        wrong_last_state,
        wrong_gradient,
        ignores_episode_starts,
        ignores_cuts,
        right_once,
    ],
)
def test_an_engine_that_fails_the_comparison_is_passed_over(monkeypatch, wrong):
    wrong = wrong() if wrong is right_once else wrong
    with pytest.warns(UserWarning, match="takes 'reference' for a LSTM .*'compiled'.*Error: "):
        assert choose(monkeypatch, wrong) == "reference"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        recurrent_scan(*make_case("LSTM", 1, 4, 3, 0.3, dtype=torch.float32))


def test_an_interrupted_comparison_chooses_nothing(monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        choose(monkeypatch, interrupted)
    with pytest.warns(UserWarning, match="takes 'reference'"):
        assert choose(monkeypatch, wrong_values) == "reference"


def test_a_choice_is_made_once_for_each_kind_of_layer_and_dtype(monkeypatch):
    num_scans = 0

    def counting(*arguments):
        nonlocal num_scans
        num_scans += 1
        return reference_scan(*arguments)

    for _ in range(3):
        assert choose(monkeypatch, counting) == "compiled"
    assert num_scans == 2 + 3  # two for the check
    choose(monkeypatch, counting, torch.float64)
    choose(monkeypatch, counting, cell="GRU")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        choose(monkeypatch, counting)
    assert num_scans == 5 + 3 * (2 + 1)


def test_nothing_is_compared_while_a_graph_is_captured(monkeypatch):
    """A comparison would break the capture; the choice is made later."""
    cuda = torch.device("cuda:0")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(scan, "check_against_reference", raises)
    assert scan.fastest_engine("LSTM", cuda, torch.float32) == "reference"
    assert not scan._chosen
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(scan, "check_against_reference", lambda *case: None)
    assert scan.fastest_engine("LSTM", cuda, torch.float32) == "triton"


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_check_leaves_no_trace(mode, monkeypatch):
    case = make_case("LSTM", 1, 4, 3, 0.3)
    state = torch.get_rng_state()
    monkeypatch.setitem(ENGINES, "compiled", Engine(reference_scan, "cpu"))
    with mode():
        recurrent_scan(*case)
        assert not torch.is_grad_enabled()
    assert list(scan._chosen.values()) == ["compiled"]
    torch.testing.assert_close(torch.get_rng_state(), state, rtol=0, atol=0)


@pytest.mark.engines("compiled", "triton")
@pytest.mark.parametrize("operand_dtype", [None, torch.bfloat16])
def test_the_tolerance_lets_rounding_pass(engine, cell, dtype, device, operand_dtype):
    if operand_dtype is not None and dtype == torch.float64:
        pytest.skip("no such products")
    tolerance = scan._TOLERANCES[operand_dtype or dtype] / 2
    check = ENGINES[engine], cell, device, dtype, tolerance
    for seed in range(3 if engine == "triton" else 10):  # the interpreter is slow
        with torch.autocast(device.type, operand_dtype, enabled=operand_dtype is not None):
            scan.check_against_reference(*check, seed)


HERE = r"expected one of \['auto', 'compiled', 'reference'\] on cpu"


@pytest.mark.parametrize(
    ("num_starts", "options", "message"),
    [
        (3, {}, r"episode_starts has shape \(3, 3\), expected \(7, 3\)"),
        (7, {"engine": "warp"}, f"scan_engine is 'warp', {HERE}"),
        (7, {"engine": "triton"}, f"scan_engine is 'triton', {HERE}"),
        *((7, {"cuts": cuts}, "cuts") for cuts in [(0,), (2, 2), (3, 1), (7,), (-1,)]),
    ],
)
def test_wrong_arguments_are_named(num_starts, options, message):
    rnn, inputs, state, starts = make_case("LSTM", 1, 7, 3, 0.0)
    with pytest.raises(ValueError, match=message):
        recurrent_scan(rnn, inputs, state, starts[:num_starts], **options)


@pytest.mark.parametrize(
    "rnn",
    [
        nn.LSTM(D, H, bidirectional=True),
        nn.GRU(D, H, batch_first=True),
        nn.LSTM(D, H, proj_size=2),
        nn.GRU(D, H, num_layers=2, dropout=0.1),
        nn.RNN(D, H),
        nn.Linear(D, H),
    ],
)
def test_other_layers_are_refused(rnn):
    _, inputs, _, starts = make_case("LSTM", 1, 4, 3, 0.0)
    assert not is_supported(rnn)
    with pytest.raises(NotImplementedError, match=r"unidirectional nn\.LSTM or nn\.GRU"):
        recurrent_scan(rnn, inputs, None, starts)


def test_dropout_of_a_single_layer_is_none():
    with pytest.warns(UserWarning, match="dropout"):
        assert is_supported(nn.GRU(D, H, dropout=0.1))

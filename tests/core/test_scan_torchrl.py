"""The engine around TorchRL's kernels, here with kernels written from their documentation."""

import sys
from types import SimpleNamespace

import pytest
import torch
from support.tolerances import SAME_FLOAT32
from test_scan import make_case, values_and_gradients

from rsl_tbptt.core import scan
from rsl_tbptt.core.hidden_state import as_tensors
from rsl_tbptt.core.scan import recurrent_scan, torchrl_triton


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    """Let the engine run on the CPU."""
    monkeypatch.setattr(scan, "CUDA_ENGINES", ())


def layer(step, x, states, starts):
    """Run a layer on (B, T) inputs; where ``starts``, the state is that step's value."""
    assert x.is_contiguous()
    assert starts.is_contiguous()
    assert all(state.shape[:2] == x.shape[:2] for state in states)
    current, outputs = [state[:, 0] for state in states], []
    for t in range(x.shape[1]):
        given = zip(states, current, strict=True)
        current = [torch.where(starts[:, t, None], value[:, t], h) for value, h in given]
        current = step(x[:, t], current)
        outputs.append(current)
    steps = [torch.stack(kind, dim=1) for kind in zip(*outputs, strict=True)]
    return (*steps, *current)


def lstm_triton(x, hidden, cell, *rest, input_precision):
    *weights, starts, compute_dtype = rest
    assert (compute_dtype, input_precision) == (torch.float32, "ieee")
    return layer(lambda x, s: torch._VF.lstm_cell(x, s, *weights), x, (hidden, cell), starts)


def gru_triton(x, hidden, *rest, input_precision):
    *weights, starts, compute_dtype = rest
    assert (compute_dtype, input_precision) == (torch.float32, "ieee")
    return layer(lambda x, s: [torch._VF.gru_cell(x, s[0], *weights)], x, (hidden,), starts)


def float32_case(rnn_type, *sizes, **options):
    rnn, inputs, state, starts = make_case(rnn_type, *sizes, **options)
    tensors = tuple(tensor.float() for tensor in as_tensors(state))
    return rnn.float(), inputs.float(), tensors if rnn_type == "lstm" else tensors[0], starts


@pytest.mark.parametrize("rnn_type", ["lstm", "gru"])
@pytest.mark.parametrize("done_rate", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("num_steps", [1, 5])
@pytest.mark.parametrize("bias", [True, False])
def test_engine_equals_reference(rnn_type, done_rate, num_steps, bias, monkeypatch):
    kernels = SimpleNamespace(lstm_triton=lstm_triton, gru_triton=gru_triton)
    monkeypatch.setattr(torchrl_triton, "_kernels", lambda: kernels)
    case = float32_case(rnn_type, 2, num_steps, 3, done_rate, bias=bias)
    expected = values_and_gradients(*case, "reference")
    for got, want in zip(values_and_gradients(*case, "torchrl"), expected, strict=True):
        torch.testing.assert_close(got, want, **SAME_FLOAT32)


def test_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchrl", None)
    with pytest.raises(NotImplementedError, match=r"'torchrl', expected TorchRL .* pip install"):
        recurrent_scan(*float32_case("lstm", 1, 2, 2, 0.0), "torchrl")


def test_refuses_float64():
    with pytest.raises(NotImplementedError, match=r"weights is torch\.float64, expected torch"):
        recurrent_scan(*make_case("gru", 1, 2, 2, 0.0), "torchrl")

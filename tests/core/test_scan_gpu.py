"""The engines on a CUDA device: run these before trusting them there (``pytest -m gpu``)."""

import warnings

import pytest
import torch
from support import fused_cells
from support.tolerances import BFLOAT16, EXACT_FLOAT64, SAME_FLOAT32
from test_scan import D, H, make_case, values_and_gradients
from torch import nn

from rsl_tbptt.core.hidden_state import as_tensors
from rsl_tbptt.core.scan import ENGINES, cuda_graphs, recurrent_scan, selection

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

FAST = ["cuda_cells", "cuda_graphs"]
RNN_TYPES = ["lstm", "gru"]
TF32 = {"rtol": 2e-2, "atol": 2e-2}


def on_gpu(rnn_type, *sizes, dtype=torch.float64, **options):
    """Return a case on the device."""
    rnn, inputs, state, starts = make_case(rnn_type, *sizes, **options)
    tensors = tuple(tensor.to("cuda", dtype) for tensor in as_tensors(state))
    state = tensors if rnn_type == "lstm" else tensors[0]
    return rnn.to("cuda", dtype), inputs.to("cuda", dtype), state, starts.cuda()


def assert_equal_to_cpu(engine, rnn_type, sizes, dtype, tolerance, autocast=None, seed=0):
    """Compare values and all gradients with the reference on the CPU in float64."""
    expected = values_and_gradients(*make_case(rnn_type, *sizes, seed=seed), "reference")
    with torch.autocast("cuda", dtype=autocast, enabled=autocast is not None):
        case = on_gpu(rnn_type, *sizes, dtype=dtype, seed=seed)
        results = values_and_gradients(*case, engine)
    for got, want in zip(results, expected, strict=True):
        torch.testing.assert_close(got.double().cpu(), want, **tolerance)


@pytest.mark.parametrize("name", list(fused_cells.SCHEMAS))
def test_the_stand_ins_of_the_cpu_tests_equal_torchs_kernels(name):
    torch.manual_seed(0)
    stand_ins = (
        fused_cells.lstm_cell,
        fused_cells.lstm_cell_backward,
        fused_cells.gru_cell,
        fused_cells.gru_cell_backward,
    )
    stand_in = dict(zip(fused_cells.SCHEMAS, stand_ins, strict=True))[name]
    width = (4 if "lstm" in name else 3) * H

    def random(*shape):
        return torch.rand(shape, dtype=torch.float64)

    if name == "_thnn_fused_lstm_cell_backward_impl":
        arguments = [*(random(5, H) for _ in range(4)), random(5, width), True]
    elif name == "_thnn_fused_gru_cell_backward":
        arguments = [random(5, H), random(5, 5 * H), True]
    else:
        arguments = [random(5, width), random(5, width), random(5, H), random(width), random(width)]
    moved = [a.cuda() if isinstance(a, torch.Tensor) else a for a in arguments]
    results = getattr(torch.ops.aten, name)(*moved)
    for got, want in zip(results, stand_in(*arguments), strict=True):
        torch.testing.assert_close(got.cpu(), want, **EXACT_FLOAT64)


@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "torchrl"])
@pytest.mark.parametrize("rnn_type", RNN_TYPES)
@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("done_rate", [0.0, 0.3, 1.0])
def test_float64_equals_the_reference(engine, rnn_type, num_layers, done_rate):
    for num_steps, seed in ((7, 0), (7, 1), (2, 0)):
        sizes = (num_layers, num_steps, 5, done_rate)
        assert_equal_to_cpu(engine, rnn_type, sizes, torch.float64, EXACT_FLOAT64, seed=seed)


@pytest.mark.parametrize("engine", list(ENGINES))
@pytest.mark.parametrize("rnn_type", RNN_TYPES)
@pytest.mark.parametrize("tf32", [False, True])
def test_float32_and_tf32(engine, rnn_type, tf32):
    if engine == "torchrl":
        pytest.importorskip("torchrl")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        tolerance = TF32 if tf32 else {**SAME_FLOAT32, "atol": 1e-5}
        assert_equal_to_cpu(engine, rnn_type, (2, 6, 5, 0.3), torch.float32, tolerance)
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("engine", [*FAST, "fused"])
@pytest.mark.parametrize("rnn_type", RNN_TYPES)
def test_bfloat16_operands_keep_a_float32_state(engine, rnn_type):
    sizes, dtype = (2, 6, 5, 0.3), torch.float32
    assert_equal_to_cpu(engine, rnn_type, sizes, dtype, BFLOAT16, autocast=torch.bfloat16)


@pytest.mark.parametrize("engine", FAST)
@pytest.mark.parametrize("rnn_type", RNN_TYPES)
def test_nothing_waits_for_the_device(engine, rnn_type):
    rnn, inputs, state, starts = on_gpu(rnn_type, 2, 6, 5, 0.3)

    def run():
        outputs, _ = recurrent_scan(rnn, inputs, state, starts, engine)
        outputs.square().sum().backward()

    run()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("rnn_type", RNN_TYPES)
def test_replays_alive_at_once_share_nothing(rnn_type):
    cases = [on_gpu(rnn_type, 2, 6, 5, 0.3, seed=seed) for seed in range(3)]
    for _ in range(2):
        results = [recurrent_scan(*case, "cuda_graphs") for case in cases]
        for case, (outputs, final) in reversed(list(zip(cases, results, strict=True))):
            expected, expected_final = recurrent_scan(*case, "reference")
            parameters = list(case[0].parameters())
            got = torch.autograd.grad(outputs.square().sum(), parameters)
            want = torch.autograd.grad(expected.square().sum(), parameters)
            pairs = [(outputs, expected), *zip(got, want, strict=True)]
            pairs += zip(as_tensors(final), as_tensors(expected_final), strict=True)
            for left, right in pairs:
                torch.testing.assert_close(left, right, **EXACT_FLOAT64)


@pytest.mark.parametrize("engine", FAST)
def test_other_streams(engine):
    case = on_gpu("lstm", 1, 6, 5, 0.3)
    expected = values_and_gradients(*case, "reference")
    for _ in range(2):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            results = values_and_gradients(*case, engine)
        torch.cuda.current_stream().wait_stream(stream)
        for got, want in zip(results, expected, strict=True):
            torch.testing.assert_close(got, want, **EXACT_FLOAT64)


@pytest.mark.parametrize("engine", [*FAST, "auto"])
def test_inside_the_callers_own_graph(engine):
    rnn, inputs, state, starts = on_gpu("gru", 1, 6, 5, 0.3)
    expected, _ = recurrent_scan(rnn, inputs, state, starts, "reference")
    with torch.no_grad():
        recurrent_scan(rnn, inputs, state, starts, engine)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs, _ = recurrent_scan(rnn, inputs, state, starts, engine)
        graph.replay()
    torch.testing.assert_close(outputs, expected.detach(), **EXACT_FLOAT64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rnn_type", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("autocast", [False, True])
def test_auto_takes_graphs_without_a_warning(rnn_type, dtype, autocast, monkeypatch):
    monkeypatch.setattr(selection, "_chosen", {})
    rnn = rnn_type(D, H, device="cuda", dtype=dtype)
    with warnings.catch_warnings(), torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        warnings.simplefilter("error")
        inputs = torch.randn(4, 3, D, device="cuda", dtype=dtype)
        recurrent_scan(rnn, inputs, None, torch.zeros(4, 3, device="cuda").bool())
    assert list(selection._chosen.values()) == ["cuda_graphs"]


def test_recordings_are_kept_up_to_a_bound(monkeypatch):
    monkeypatch.setattr(cuda_graphs, "_pool", cuda_graphs.Pool(max_recordings=2))
    case = on_gpu("lstm", 3, 6, 5, 0.3)
    expected = values_and_gradients(*case, "reference")
    with pytest.warns(UserWarning, match="2 are kept"):
        results = values_and_gradients(*case, "cuda_graphs")
    for got, want in zip(results, expected, strict=True):
        torch.testing.assert_close(got, want, **EXACT_FLOAT64)

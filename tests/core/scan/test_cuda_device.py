"""What a CUDA device alone can show. The suite itself runs there with ``--device cuda``."""

import warnings

import pytest
import torch
from support.scan_cases import D, assert_all_close, make_case, values_and_gradients
from support.tolerances import EXACT_FLOAT64
from support.waiting import waits_are_errors

from rsl_tbptt.core import scan
from rsl_tbptt.core.scan import CELLS, recurrent_scan

made_for_cuda = pytest.mark.engines("triton", "triton_mm")
TOLERANCES = {torch.float64: EXACT_FLOAT64, torch.float32: {"rtol": 2e-2, "atol": 2e-2}}


@pytest.fixture(autouse=True)
def on_cuda(device):
    """Skip what a CPU has nothing to say about."""
    if device.type != "cuda":
        pytest.skip("needs --device cuda")


def on_gpu(cell, *sizes, **options):
    """Return a case on the device."""
    return make_case(cell, *sizes, **options, device="cuda")


def test_tf32(engine, cell, dtype, monkeypatch):
    sizes = (2, 6, 5, 0.3)
    expected = values_and_gradients(*make_case(cell, *sizes), "reference")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    results = values_and_gradients(*on_gpu(cell, *sizes, dtype=dtype), engine)
    assert_all_close(results, expected, **TOLERANCES[dtype])


@made_for_cuda
def test_nothing_waits_for_the_device(engine, cell):
    rnn, inputs, state, starts = on_gpu(cell, 2, 6, 5, 0.3)

    def run():
        outputs, _ = recurrent_scan(rnn, inputs, state, starts, engine)
        outputs.square().sum().backward()

    run()
    with waits_are_errors():
        run()


@made_for_cuda
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")
def test_other_streams(engine, cell):
    case = on_gpu(cell, 1, 6, 5, 0.3)
    expected = values_and_gradients(*case, "reference")
    for _ in range(2):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            results = values_and_gradients(*case, engine)
        torch.cuda.current_stream().wait_stream(stream)
        assert_all_close(results, expected, **EXACT_FLOAT64)


@pytest.mark.parametrize("name", ["triton", "auto"])
def test_inside_the_callers_own_graph(name):
    case = on_gpu("GRU", 1, 6, 5, 0.3)

    def run(engine):
        outputs, _ = recurrent_scan(*case, engine)
        return outputs, *torch.autograd.grad(outputs, [*case[0].parameters()], outputs.detach())

    expected = [each.detach() for each in run("reference")]  # its graph's streams stay behind
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(name)  # compiles the kernels
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        results = run(name)
    graph.replay()
    assert_all_close(results, expected, **EXACT_FLOAT64)


@pytest.mark.engines("triton")
@pytest.mark.parametrize("autocast", [False, True])
def test_auto_takes_the_engine_without_a_warning(engine, cell, dtype, autocast):
    rnn = CELLS[cell](D, 4, device="cuda", dtype=dtype)
    with warnings.catch_warnings(), torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        warnings.simplefilter("error")
        inputs = torch.randn(4, 3, D, device="cuda", dtype=dtype)
        recurrent_scan(rnn, inputs, None, torch.zeros(4, 3, device="cuda").bool())
    assert list(scan._chosen.values()) == [engine]

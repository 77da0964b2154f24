"""Scans use their buffers again, and never one that is still needed."""

import pytest
import torch

from rsl_tbptt.core.memory import PeakMemory
from rsl_tbptt.core.scan import free_buffers, recurrent_scan
from rsl_tbptt.core.scan.cpu import workspace

pytestmark = pytest.mark.engines(name={"compiled", "fused"})

T, N, D, H = 6, 16, 3, 4
FLOAT = torch.float32


@pytest.fixture(autouse=True)
def _no_free_buffers():
    free_buffers()
    yield
    free_buffers()


def inputs(seed=0):
    return torch.randn(T, N, D, generator=torch.Generator().manual_seed(seed))


def starts():
    return torch.rand(T, N, generator=torch.Generator().manual_seed(2)) < 0.3


def gradient(rnn, x, engine):
    """Return the gradient of the weights for one scan that runs alone."""
    outputs, _ = recurrent_scan(rnn, x, None, starts(), engine.name)
    return torch.autograd.grad(outputs.square().sum(), rnn.all_weights[0])


def test_the_next_window_takes_the_buffers_of_the_last(engine, cell):
    rnn = cell.rnn_type(D, H)
    peaks = []
    for _ in range(3):
        with PeakMemory() as memory:
            gradient(rnn, inputs(), engine)
        peaks.append(memory.peak)
    assert peaks[1] == peaks[2]
    assert peaks[0] - peaks[1] >= T * N * 4 * H * FLOAT.itemsize  # the gates, at least


def test_buffers_are_free_after_the_backward_pass_though_its_results_live(engine, cell):
    rnn = cell.rnn_type(D, H)
    outputs, _ = recurrent_scan(rnn, inputs(), None, starts(), engine.name)
    loss = outputs.square().sum()
    loss.backward()
    with PeakMemory() as memory:
        recurrent_scan(rnn, inputs(), None, starts(), engine.name)
    assert memory.peak < T * N * 4 * H * FLOAT.itemsize
    assert outputs.grad_fn is not None


def test_a_forward_pass_without_gradient_gives_its_buffers_back(engine, cell):
    rnn = cell.rnn_type(D, H)
    with torch.no_grad():
        recurrent_scan(rnn, inputs(), None, starts(), engine.name)
    first = workspace.Buffers(torch.device("cpu"), (FLOAT, (1,)))
    assert first.tensors[0].untyped_storage().nbytes() > 64


def test_a_buffer_of_inference_mode_is_not_kept(engine, cell):
    rnn = cell.rnn_type(D, H)
    with torch.inference_mode():
        recurrent_scan(rnn, inputs(), None, starts(), engine.name)
    assert all(torch.isfinite(g).all() for g in gradient(rnn, inputs(), engine))


def test_buffers_have_their_dtype_and_do_not_overlap():
    buffers = workspace.Buffers(
        torch.device("cpu"), (torch.bfloat16, (3, 5)), (torch.float64, (7,)), (FLOAT, (0,))
    )
    first, second, third = buffers.tensors
    first.fill_(1.0)
    second.fill_(2.0)
    assert (first == 1.0).all()
    assert (second == 2.0).all()
    assert third.shape == (0,)


def test_few_free_buffers_are_kept():
    taken = [workspace.Buffers(torch.device("cpu"), (FLOAT, (100,))) for _ in range(20)]
    with PeakMemory() as memory:
        for buffers in taken:
            buffers.release()
        again = [workspace.Buffers(torch.device("cpu"), (FLOAT, (100,))) for _ in range(20)]
    assert memory.peak >= 10 * 400
    assert len(again) == 20

"""CUDA graphs: whose memory is whose, what is kept, and how they are captured.

On a CPU a replay runs the work again, and a capture is seen by what it asks of ``torch.cuda``.
"""

import contextlib
import gc
import inspect
import warnings
import weakref
from types import SimpleNamespace

import pytest
import torch
from support.launches import run_step_by_step
from support.scan_cases import assert_all_close, make_case
from support.tolerances import EXACT_FLOAT64

from rsl_tbptt.core.hidden_state import as_tensors
from rsl_tbptt.core.scan import graphs, recordings_aside, recurrent_scan

pytestmark = pytest.mark.engines("triton")


@pytest.fixture
def cached_graphs(engine, monkeypatch):
    """Return an empty cache of graphs; the recordings that each cache makes are counted."""
    make = graphs.Recording.__init__

    def counting(recording, cache, *arguments):
        make(recording, cache, *arguments)
        cache.num_made = getattr(cache, "num_made", 0) + 1

    monkeypatch.setattr(graphs.Recording, "__init__", counting)
    monkeypatch.setattr(graphs, "cached_graphs", graphs.CachedGraphs())
    return graphs.cached_graphs


@pytest.fixture
def scan(engine):
    """Return the scan with recordings."""
    return lambda *case: recurrent_scan(*case, engine=engine)


@pytest.fixture
def leaves_of(device):
    """Return a function that makes cases whose inputs need a gradient."""

    def leaves_of(seed, cell="LSTM", num_layers=1):
        rnn, inputs, state, starts = make_case(cell, num_layers, 4, 3, 0.3, seed, device=device)
        return rnn, inputs.requires_grad_(), state, starts

    return leaves_of


def num_recordings(cache):
    """Return how many recordings are free, and how many were made."""
    free = sum(len(each) for sizes in cache._free.values() for each in sizes.values())
    return free, getattr(cache, "num_made", 0)


def gradients_of(outputs, rnn, inputs):
    return torch.autograd.grad(outputs.square().sum(), [inputs, *rnn.parameters()])


def assert_equals_reference(outputs, case):
    """Compare outputs and their gradients."""
    expected, _ = recurrent_scan(*case, engine="reference")
    torch.testing.assert_close(outputs, expected, **EXACT_FLOAT64)
    got = gradients_of(outputs, case[0], case[1])
    assert_all_close(got, gradients_of(expected, case[0], case[1]), **EXACT_FLOAT64)


def no_memory_left(*arguments):
    raise torch.OutOfMemoryError("no memory left")


def test_scans_alive_at_once_have_one_each_and_give_it_back(scan, cell, leaves_of, cached_graphs):
    cases = [leaves_of(seed, cell, num_layers=2) for seed in range(3)]
    results = [scan(*case) for case in cases]
    assert num_recordings(cached_graphs) == (0, 6)
    for case, (outputs, _) in zip(cases[:2], results, strict=False):
        gradients_of(outputs, case[0], case[1])
    assert num_recordings(cached_graphs) == (4, 6)
    del results, outputs, _  # the third is forgotten
    gc.collect()
    assert num_recordings(cached_graphs) == (6, 6)


def test_weights_may_change_between_forward_and_backward(scan, leaves_of):
    case = leaves_of(0)
    rnn, inputs, *_ = case
    expected = gradients_of(recurrent_scan(*case, engine="reference")[0], rnn, inputs)
    outputs, _ = scan(*case)
    with torch.no_grad():
        for parameter in rnn.parameters():
            parameter.mul_(2.0)
    assert_all_close(gradients_of(outputs, rnn, inputs), expected, **EXACT_FLOAT64)


@pytest.mark.parametrize("recorded", [True, False])
def test_results_may_be_overwritten(scan, cell, leaves_of, monkeypatch, recorded):
    if not recorded:
        run_step_by_step(monkeypatch)
    case = leaves_of(0, cell)
    rnn, inputs, *_ = case

    def gradients(scan, factor):
        outputs, last = scan(*case)
        total = torch.stack([each.sum() for each in (outputs, *as_tensors(last))]).sum()
        for result in (outputs, *as_tensors(last)):
            result.data.mul_(factor)
        return torch.autograd.grad(total, [inputs, *rnn.parameters()])

    assert_all_close(gradients(scan, 3.0), gradients(scan, 1.0), rtol=0, atol=0)


def test_each_shape_and_setting_is_recorded_once(scan, leaves_of, cached_graphs, monkeypatch):
    rnn, inputs, state, starts = leaves_of(0)

    def run():
        for num_steps in (4, 3):
            outputs, _ = scan(rnn, inputs[:num_steps], state, starts[:num_steps])
            gradients_of(outputs, rnn, inputs)

    run()
    run()
    assert num_recordings(cached_graphs) == (2, 2)
    scan(rnn, inputs.detach(), state, starts)[0].sum().backward()
    assert num_recordings(cached_graphs) == (3, 3)
    monkeypatch.setattr(graphs, "situation_of", lambda device: "other precision")
    run()
    assert num_recordings(cached_graphs) == (5, 5)


def test_no_more_recordings_once_they_take_their_share_of_memory(
    scan, leaves_of, cached_graphs, monkeypatch
):
    monkeypatch.setattr(graphs, "max_bytes", lambda device: 1)
    case = leaves_of(0, num_layers=2)
    with pytest.warns(UserWarning, match="shapes are not recorded: they take .* GB, 25% of"):
        outputs, _ = scan(*case)
    assert_equals_reference(outputs, case)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        outputs, _ = scan(*case)
    assert_equals_reference(outputs, case)
    assert num_recordings(cached_graphs) == (1, 1)


def test_the_memory_of_all_tensors_of_a_recording_is_counted(scan, device, cached_graphs):
    T, N, D, H = 6, 256, 3, 4
    rnn, x, state, starts = make_case("LSTM", 1, T, N, 0.3, device=device)
    scan(rnn, x.requires_grad_(), state, starts)[0].sum().backward()
    inputs, buffers, results, gradients = D, 4 * H + H + H, H, H + D
    least = T * N * (inputs + buffers + results + gradients) * torch.float64.itemsize
    assert cached_graphs.num_bytes > least
    if device.type == "cpu":  # a GPU reserves whole segments
        assert cached_graphs.num_bytes < 1.5 * least


def test_sizes_that_change_all_the_time_leave_room_for_other_windows(scan, device, cached_graphs):
    most = graphs._MAX_SIZES

    def run(num_envs, num_steps=3):
        case = make_case("LSTM", 1, num_steps, num_envs, 0.3, device=device)
        case[1].requires_grad_()
        assert_equals_reference(scan(*case)[0], case)

    for num_envs in range(1, most + 1):
        run(num_envs)
    with pytest.warns(UserWarning, match=f"this kind are kept for {most} numbers of environments"):
        run(most + 1)
    for num_envs in (most + 2, 1, most):  # said once
        run(num_envs)
    assert num_recordings(cached_graphs) == (most, most)
    run(most + 1, num_steps=2)
    assert num_recordings(cached_graphs) == (most + 1, most + 1)


@pytest.mark.usefixtures("cached_graphs")
def test_a_recording_that_fails_does_not_end_training(scan, leaves_of, monkeypatch):
    case = leaves_of(0, num_layers=2)
    monkeypatch.setattr(graphs, "record", no_memory_left)
    with pytest.warns(UserWarning, match=r"not recorded: one could not .*no memory left"):
        outputs, _ = scan(*case)
    assert_equals_reference(outputs, case)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once, and not tried again
        scan(*case)


def test_nothing_is_recorded_inside_the_callers_capture(
    scan, leaves_of, cached_graphs, monkeypatch
):
    monkeypatch.setattr(graphs, "situation_of", lambda device: None)
    case = leaves_of(0)
    assert_equals_reference(scan(*case)[0], case)
    assert num_recordings(cached_graphs) == (0, 0)


def test_recordings_made_aside_are_dropped(scan, leaves_of, cached_graphs):
    case = leaves_of(0)
    scan(*case)
    with recordings_aside():
        assert num_recordings(graphs.cached_graphs) == (0, 0)
        scan(*case)
        ((recordings,),) = (sizes.values() for sizes in graphs.cached_graphs._free.values())
        recording = weakref.ref(recordings[0])
        del recordings
    assert recording() is None
    assert graphs.cached_graphs is cached_graphs
    assert num_recordings(cached_graphs) == (1, 1)


class FakeStream:
    """A stream that nobody waits for."""

    device = torch.device("cuda:0")

    def __init__(self, device=device):
        """Take the device that torch's own takes."""

    def wait_stream(self, other):
        """Return at once."""


class FakeCuda:
    """Knows the current stream, as torch.cuda does."""

    def __init__(self, monkeypatch):
        self.error_at_end, self.reserved = None, 0
        self.current = self.first = FakeStream()
        self.capture = inspect.signature(torch.cuda.graph.__init__)
        for name in ("stream", "graph"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, f"{name}_context"))
        monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: self.current)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", SimpleNamespace)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: self.reserved)
        graphs._side_stream.cache_clear()

    @contextlib.contextmanager
    def stream_context(self, stream):
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextlib.contextmanager
    def graph_context(self, *arguments, **options):
        """As ``torch.cuda.graph`` of torch up to 2.12: without a ``finally``."""
        bound = self.capture.bind(None, *arguments, **options).arguments
        assert bound["capture_error_mode"] == "thread_local"
        before, self.current = self.current, bound["stream"]
        try:
            yield
        finally:
            if self.error_at_end is not None:
                raise self.error_at_end
        self.current = before


@pytest.fixture
def fake_cuda(monkeypatch):
    """Return a device that does nothing."""
    yield FakeCuda(monkeypatch)
    graphs._side_stream.cache_clear()


def test_a_capture_that_cannot_be_ended_leaves_the_stream_and_keeps_its_graph(fake_cuda):
    """Torch still knows a graph whose capture did not end; no garbage is collected meanwhile."""
    collects, cache = [], graphs.CachedGraphs()
    fake_cuda.error_at_end = RuntimeError("the capture was invalidated")
    assert gc.isenabled()
    with pytest.raises(RuntimeError, match="invalidated"):
        graphs.record(lambda: collects.append(gc.isenabled()), cache)
    assert fake_cuda.current is fake_cuda.first
    assert len(cache.graphs) == 1
    assert collects == [False] * 3
    assert gc.isenabled()


def test_memory_that_a_capture_reserves_is_counted(fake_cuda):
    def function():
        fake_cuda.reserved += 100

    cache = graphs.CachedGraphs()
    graphs.record(function, cache)
    assert cache.num_bytes == 100
    assert fake_cuda.reserved == 300  # warm-ups take the memory of everyone


def test_graphs_made_aside_are_captured_on_streams_of_their_own(fake_cuda, monkeypatch):
    streams = []

    def record():
        graphs.record(lambda: streams.append(fake_cuda.current), graphs.cached_graphs)

    monkeypatch.setattr(graphs, "cached_graphs", graphs.CachedGraphs())
    record()
    with graphs.recordings_aside():
        record()
        with graphs.recordings_aside():  # as where "auto" checks an engine meanwhile
            record()
        record()
    record()
    of_first, of_aside, of_inner, of_aside_again, of_first_again = streams[2::3]
    assert len({id(stream) for stream in (of_first, of_aside, of_inner)}) == 3
    assert of_aside_again is of_aside
    assert of_first_again is of_first

"""The capture of a CUDA graph, as far as it can be seen without a device."""

import contextlib
import gc
import inspect
from types import SimpleNamespace

import pytest
import torch

from rsl_tbptt.core.scan.cuda import graphs

DEVICE = torch.device("cuda:0")


class FakeCuda:
    """Writes down what is asked of torch.cuda, in the order it is asked."""

    def __init__(self, monkeypatch):
        self.log, self.reserved, self.error_at_end = [], 0, None
        self.current = self.stream("current")
        self.capture = inspect.signature(torch.cuda.graph.__init__)
        self.num_graphs = 0
        for name in ("stream", "graph"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, f"{name}_context"))
        monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: self.stream("side"))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: self.current)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: self.reserved)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", self.make_graph)
        graphs._side_stream.cache_clear()

    def stream(self, name):
        def wait_stream(other):
            self.log.append(f"{name} waits for {other.name}")

        return SimpleNamespace(name=name, wait_stream=wait_stream, cuda_stream=0)

    def make_graph(self):
        self.num_graphs += 1
        number = self.num_graphs
        return SimpleNamespace(replay=f"replay {number}", pool=lambda: f"memory of {number}")

    @contextlib.contextmanager
    def stream_context(self, stream):
        before, self.current = self.current, stream
        self.log.append(f"on {stream.name}")
        try:
            yield
        finally:
            self.current = before
            self.log.append(f"on {before.name}")

    @contextlib.contextmanager
    def graph_context(self, *arguments, **options):
        """As ``torch.cuda.graph`` of torch up to 2.12: without a ``finally``."""
        bound = self.capture.bind(None, *arguments, **options).arguments
        assert bound["capture_error_mode"] == "thread_local"
        before, self.current = self.current, bound["stream"]
        self.log.append(f"capture into {bound['pool'] or 'new memory'}")
        try:
            yield
        finally:
            if self.error_at_end is not None:
                raise self.error_at_end
        self.current = before
        self.log.append("end")


@pytest.fixture
def cuda(monkeypatch):
    """Return a device that only writes down what is asked of it."""
    yield FakeCuda(monkeypatch)
    graphs._side_stream.cache_clear()


def test_recording_warms_up_aside_and_captures_once(cuda):
    def work():
        cuda.log.append("work")
        return torch.zeros(())

    pool = graphs.Pool()
    graph, outputs = graphs.record(work, DEVICE, pool)
    assert (graph.replay, outputs.shape) == ("replay 1", ())
    warm_up = ["side waits for current", "on side", "work", "work", "current waits for side"]
    capture = ["capture into new memory", "work", "end", "on current"]
    assert cuda.log == [*warm_up, *capture]


def test_a_backward_pass_is_captured_into_the_memory_of_its_forward_pass(cuda):
    pool = graphs.Pool()
    forward, _ = graphs.record(lambda: (), DEVICE, pool)
    graphs.record(lambda: (), DEVICE, pool, forward)
    captures = [line for line in cuda.log if line.startswith("capture")]
    assert captures == ["capture into new memory", "capture into memory of 1"]


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("fails", [False, True])
def test_no_garbage_is_collected_during_a_capture(cuda, enabled, fails):
    seen = []

    def work():
        seen.append(gc.isenabled())
        if fails:
            raise RuntimeError("no memory left")

    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(RuntimeError) if fails else contextlib.nullcontext():
            graphs.record(work, DEVICE, graphs.Pool())
        after = gc.isenabled()
    finally:
        (gc.enable if before else gc.disable)()
    assert not seen[-1]
    assert after == enabled


@pytest.mark.parametrize("work_fails", [False, True])
def test_a_capture_that_cannot_be_ended_leaves_the_stream_and_keeps_its_graph(cuda, work_fails):
    """Torch still knows a graph whose capture did not end."""
    num_runs = 0

    def work():
        nonlocal num_runs
        num_runs += 1
        if work_fails and num_runs == 3:
            raise RuntimeError("no memory left")

    pool = graphs.Pool()
    cuda.error_at_end = RuntimeError("the capture was invalidated")
    with pytest.raises(RuntimeError, match="invalidated"):
        graphs.record(work, DEVICE, pool)
    assert cuda.current.name == "current"
    assert [graph.replay for graph in pool.graphs] == ["replay 1"]


def test_private_memory_beyond_tensors_is_counted(cuda):
    cuda.reserved = 1000

    def work():
        cuda.reserved += 512  # in the capture, and before it in both warm-ups
        outputs = torch.zeros(8)
        return (outputs, outputs.view(2, 4)), None

    pool = graphs.Pool()
    for number in (1, 2):
        graphs.record(work, DEVICE, pool)
        assert pool.bytes_beyond_tensors == number * (512 - 8 * 4)


def test_pools_that_are_dropped_capture_on_streams_of_their_own(cuda, monkeypatch):
    streams = []

    def record():
        graphs.record(lambda: streams.append(cuda.current), DEVICE, graphs._pool)

    monkeypatch.setattr(graphs, "_pool", graphs.Pool())
    record()
    with graphs.recordings_aside():
        record()
        with graphs.recordings_aside():  # as where "auto" checks an engine meanwhile
            record()
        record()
    record()
    of_pool, of_aside, of_inner, of_aside_again, of_pool_again = streams[2::3]
    assert len({id(stream) for stream in (of_pool, of_aside, of_inner)}) == 3
    assert of_aside_again is of_aside
    assert of_pool_again is of_pool

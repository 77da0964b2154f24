"""The capture of a CUDA graph, as far as it can be seen without a device."""

import contextlib
import inspect
from types import SimpleNamespace

import torch

from rsl_tbptt.core.scan.cuda import graphs


class FakeCuda:
    """Writes down what is asked of torch.cuda, in the order it is asked."""

    def __init__(self, monkeypatch):
        self.log = []
        self.capture = inspect.signature(torch.cuda.graph.__init__)
        monkeypatch.setattr(graphs, "_side_stream", lambda device, current: self.stream("side"))
        monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: self.stream("current"))
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: self.inside(f"on {stream.name}"))
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay="replay"))
        monkeypatch.setattr(torch.cuda, "graph", self.graph)

    def stream(self, name):
        def wait_stream(other):
            self.log.append(f"{name} waits for {other.name}")

        return SimpleNamespace(name=name, wait_stream=wait_stream, cuda_stream=0)

    def graph(self, *arguments, **options):
        bound = self.capture.bind(None, *arguments, **options).arguments
        assert bound["capture_error_mode"] == "thread_local"
        return self.inside(f"capture on {bound['stream'].name}")

    @contextlib.contextmanager
    def inside(self, what):
        self.log.append(what)
        yield
        self.log.append("end")


def test_recording_warms_up_aside_and_captures_once(monkeypatch):
    cuda = FakeCuda(monkeypatch)

    def work():
        cuda.log.append("work")
        return "outputs"

    assert graphs.record(work, torch.device("cuda:0")) == ("replay", "outputs")
    warm_up = ["side waits for current", "on side", "work", "work", "end"]
    capture = ["current waits for side", "capture on side", "work", "end"]
    assert cuda.log == [*warm_up, *capture]

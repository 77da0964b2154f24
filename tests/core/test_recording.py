"""Recorded steps: what they compute, what is recorded, and what happens if a capture fails.

Without a GPU, a step's operations are recorded, and a capture is seen by what it asks of
``torch.cuda``. Tests marked ``gpu`` run with ``--device cuda``.
"""

import contextlib
import gc
import warnings
import weakref
from types import SimpleNamespace

import pytest
import torch
from support.operations_recording import OperationsRecording
from torch import nn

from rsl_tbptt.core import hidden_state, recording
from rsl_tbptt.core.recording import Recorder


@pytest.fixture(autouse=True)
def _operations_without_state(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)


@pytest.fixture
def recorder():
    """Return a recorder of operations."""
    return Recorder("cpu", capture=OperationsRecording)


class Training:
    """A small training whose rate falls with every step; its tensors stay where they are."""

    def __init__(self, device="cpu", seed=0):
        torch.manual_seed(seed)
        self.actor, self.critic = (nn.Linear(3, 2).to(device) for _ in range(2))
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.rate = torch.full((), 0.1, device=device)
        self.optimizer = torch.optim.Adam(
            self.parameters, lr=self.rate, fused=True, capturable=self.rate.is_cuda
        )
        self.num_calls = 0

    def tensors(self):
        """Return all tensors that a step changes."""
        states = [value for state in self.optimizer.state.values() for value in state.values()]
        return [*self.parameters, *(p.grad for p in self.parameters), *states, self.rate]

    def step(self, inputs, state=None, *, branches=None):
        """Do one step with the models on a branch each; return losses and the next state."""
        self.num_calls += 1
        losses = []
        for index, model in enumerate((self.actor, self.critic)):
            with branches.stream(index) if branches else contextlib.nullcontext():
                model.zero_grad(set_to_none=False)  # here: a branch waits for nothing in the step
                loss = model(inputs).square().mean()
                loss.backward()
                losses.append(loss.detach())
        if branches:
            branches.join()
        self.optimizer.step()
        self.rate.mul_(0.9)
        return torch.stack(losses), hidden_state.apply(lambda tensor: tensor + inputs.sum(), state)


def train(recorder, training, step=None, num_steps=6, **fixed):
    """Return losses, state and parameters after a few steps; each has other inputs."""
    device, losses = training.rate.device, []
    state = torch.zeros(2, device=device), torch.ones(2, device=device)
    torch.manual_seed(1)
    for inputs in torch.randn(num_steps, 4, 3).to(device):
        loss, state = recorder(step or training.step, inputs, state, **fixed)
        losses.append(loss)
    return torch.stack([*losses, *state]), torch.cat([p.flatten() for p in training.parameters])


def assert_equal(results, expected):
    torch.testing.assert_close(results, expected, rtol=0, atol=0)


def add(first, second):
    return first + second


def run(recorder, function, *arguments, times=4, **fixed):
    """Return the result of the last of some equal steps."""
    for _ in range(times):
        result = recorder(function, *arguments, **fixed)
    return result


def num_recordings(recorder):
    return sum(form.recording is not None for form in recorder._forms.values())


def test_a_cpu_runs_steps_as_they_are():
    recorder, tensor = Recorder("cpu"), torch.ones(2)
    assert run(recorder, lambda tensor: tensor, tensor) is tensor
    assert recorder.reason == "device 'cpu' has no CUDA graphs"


def test_results_belong_to_the_caller(recorder):
    one = torch.ones(2)
    run(recorder, add, one, one, times=2)
    # The first of these is recorded, the others are replayed.
    results = [recorder(add, one, one * factor) for factor in (1, 2, 3)]
    assert_equal(results, [one + 1, one + 2, one + 3])
    results[0].zero_()
    assert_equal(recorder(add, one, one), one + 1)


@pytest.mark.parametrize(
    "change",
    [
        torch.Tensor.clone,
        torch.Tensor.requires_grad_,
        lambda tensor: tensor[:2],
        torch.Tensor.t,
        lambda tensor: tensor.view(torch.int32),
        lambda tensor: None,
    ],
)
def test_all_that_a_recording_knows_of_a_tensor_is_followed(recorder, change):
    tensor = torch.zeros(3, 3)
    for _ in range(2):
        recorder.follow([], [], [tensor, None])
        run(recorder, tensor.add_, torch.ones(3, 3))
    assert num_recordings(recorder) == 1
    assert_equal(tensor.detach(), torch.full((3, 3), 8.0))
    recorder.follow([], [], [change(tensor), None])
    assert num_recordings(recorder) == 0


def test_trees_of_one_form_are_placed_at_the_same_addresses(recorder):
    number, row = torch.zeros(()), torch.zeros(2)
    first = recorder.place("tree", {"number": number, "row": row, "size": 1})
    second = recorder.place("tree", {"number": number + 2, "row": row + 3, "size": 4})
    assert second == {**first, "size": 4}  # the same tensors
    assert_equal([number, row], [torch.tensor(2.0), torch.full((2,), 3.0)])
    for other in (row, number.double(), number.long()):
        placed = recorder.place("tree", {"number": other, "row": row, "size": 4})
        assert (placed["number"].dtype, placed["number"].shape) == (other.dtype, other.shape)


def test_each_form_has_a_recording(recorder, monkeypatch):
    one, num = torch.ones(2), 0

    def recorded(*arguments, **fixed):
        nonlocal num
        before = num_recordings(recorder)
        run(recorder, scaled, *arguments, **fixed)
        return num_recordings(recorder) - before

    def scaled(tensor, state=None, scale=1):
        return tensor * scale

    assert recorded(one) == 1
    assert recorded(one * 2) == 0
    assert recorded(one, scale=2) == 1
    assert recorded(one, scale=2) == 0
    assert recorded(torch.ones(3)) == 1
    assert recorded(one.double()) == 1
    assert recorded(one, one) == 1
    assert recorded(one, (one,)) == 1
    with torch.autocast("cpu", torch.bfloat16):
        assert recorded(one) == 1
    for name in ("tf32_in_layers", "tf32_in_products"):
        changed = not getattr(recording, name)()
        monkeypatch.setattr(recording, name, lambda changed=changed: changed)
        assert recorded(one) == 1


def test_equal_bound_methods_share_a_recording_and_are_not_kept(recorder):
    training = Training()
    run(recorder, training.step, torch.ones(4, 3))
    assert len(recorder._forms) == 1
    gone = weakref.ref(training)
    gc.disable()
    try:
        del training
        assert gone() is None
    finally:
        gc.enable()


def test_a_step_inside_a_step_is_part_of_it(recorder):
    def outer(tensor):
        return recorder(add, tensor, tensor)

    one = torch.ones(2)
    assert_equal(run(recorder, outer, one), one * 2)
    assert len(recorder._forms) == 1


def test_forms_are_bounded(recorder, monkeypatch):
    monkeypatch.setattr(recording, "_MAX_FORMS", 2)
    tensors = [torch.ones(size) for size in (1, 2, 3)]
    for tensor in tensors[:2]:
        run(recorder, add, tensor, tensor)
    with pytest.warns(UserWarning, match=r"No more steps are recorded: 2 forms .* same results"):
        assert_equal(run(recorder, add, tensors[2], tensors[2]), tensors[2] * 2)
    assert "2 forms of steps" in str(recorder.reason)
    for tensor in tensors:  # said once
        assert_equal(run(recorder, add, tensor, tensor), tensor * 2)
    assert num_recordings(recorder) == 2
    recorder.forget()
    assert recorder.reason is None
    run(recorder, add, tensors[2], tensors[2])
    assert num_recordings(recorder) == 1


class FakeStream:
    """A stream that remembers whom it waited for, and is its own event."""

    device = torch.device("cuda:0")

    def __init__(self, device=device):
        self.waited, self.cuda_stream = [], id(self)

    def wait_stream(self, other):
        self.waited.append(other)

    wait_event = wait_stream

    def record_event(self):
        return self


class FakeCuda:
    """Captures operations of the CPU, and knows the current stream, as torch.cuda does."""

    def __init__(self, monkeypatch):
        self.error_at_begin = self.error_at_end = None
        self.in_capture = self.is_capturing = False
        self.reserved, self.pools, self.generator_state = 0, [], "capturing"
        self.current = self.first = FakeStream()
        self.live = list  # returns tensors that a capture does not change
        generator = SimpleNamespace(
            clone_state=lambda: "new",
            graphsafe_set_state=lambda state: vars(self).update(generator_state=state),
        )
        fakes = {
            "stream": self.stream_context,
            "graph": self.graph_context,
            "Stream": FakeStream,
            "CUDAGraph": SimpleNamespace,
            "current_stream": lambda device=None: self.current,
            "memory_reserved": lambda device=None: self.reserved,
            "graph_pool_handle": object,
            "mem_get_info": lambda device: (0, 1000),
            "current_device": lambda: 0,
            "is_current_stream_capturing": lambda: self.is_capturing,
            "default_generators": [generator],
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)

    @contextlib.contextmanager
    def stream_context(self, stream):
        before, self.current = self.current, stream or self.current
        try:
            yield
        finally:
            self.current = before

    @contextlib.contextmanager
    def graph_context(self, cuda_graph, pool, stream, capture_error_mode):
        """Run nothing, as a capture: tensors in ``live`` are as before at the end."""
        if self.error_at_begin is not None:
            raise self.error_at_begin
        assert capture_error_mode == "thread_local"
        assert stream is self.current is not self.first
        self.pools.append(pool)
        before = [(tensor, tensor.detach().clone()) for tensor in self.live()]
        operations = OperationsRecording()
        self.in_capture = True
        try:
            with operations:
                yield
        finally:
            self.in_capture = False
            with torch.no_grad():
                for tensor, value in before:
                    tensor.copy_(value)
            if self.error_at_end is not None:  # also after an error, as torch's
                raise self.error_at_end
        cuda_graph.replay = operations.replay


@pytest.fixture
def fake_cuda(monkeypatch):
    """Return a CUDA device whose kernels run on the CPU."""
    monkeypatch.setattr(recording, "_UNFINISHED", [])
    return FakeCuda(monkeypatch)


def test_a_captured_step_runs_once(fake_cuda):
    recorder, training = Recorder("cuda"), Training()
    fake_cuda.live = training.tensors
    results = train(recorder, training, branches=recorder)
    assert (num_recordings(recorder), training.num_calls) == (1, 3)
    assert_equal(results, train(Recorder("cpu"), Training()))


@pytest.mark.parametrize("where", ["begin", "inside", "end"])
def test_a_capture_that_fails_loses_nothing(fake_cuda, where):
    recorder, training, error = Recorder("cuda"), Training(), torch.OutOfMemoryError("no memory")
    fake_cuda.live, fake_cuda.error_at_end = training.tensors, error
    fake_cuda.error_at_begin = error if where == "begin" else None

    def step(*arguments, **fixed):
        results = training.step(*arguments, **fixed)
        if where == "inside" and fake_cuda.in_capture:
            raise error
        return results

    with pytest.warns(UserWarning, match=r"not be captured \(.*no memory.*same results"):
        results = train(recorder, training, step, branches=recorder)
    assert fake_cuda.current is fake_cuda.first
    assert fake_cuda.generator_state == "new"
    assert "no memory" in str(recorder.reason)
    assert_equal(results, train(Recorder("cpu"), Training()))


def test_a_failed_capture_is_not_tried_again_until_all_is_forgotten(fake_cuda):
    """A pool whose graphs were destroyed is not used again; torch still knows the broken graph."""
    recorder, one = Recorder("cuda"), torch.ones(2)
    run(recorder, add, one, one)
    run(recorder, torch.sub, one, one)
    assert not recording._UNFINISHED
    fake_cuda.error_at_end = RuntimeError("invalidated")
    with pytest.warns(UserWarning, match="invalidated"):
        run(recorder, torch.mul, one, one)
    fake_cuda.error_at_end = None
    assert_equal(run(recorder, add, one, one), one * 2)
    assert num_recordings(recorder) == 0
    recorder.forget()
    run(recorder, add, one, one)
    assert num_recordings(recorder) == len(recording._UNFINISHED) == 1
    first, second, failed, later = fake_cuda.pools
    assert first is second is failed
    assert later is not first


def test_ctrl_c_in_a_capture_is_not_lost(fake_cuda):
    def step():
        if fake_cuda.in_capture:
            raise KeyboardInterrupt

    fake_cuda.error_at_end = RuntimeError("invalidated")
    with pytest.raises(KeyboardInterrupt):
        run(Recorder("cuda"), step)


def test_a_failed_capture_holds_no_memory_when_the_step_runs_again(fake_cuda):
    recorder, seen = Recorder("cuda"), []

    def step():
        assert not seen or seen[-1]() is None
        seen.append(weakref.ref(activations := nn.Linear(1, 1)))
        if fake_cuda.in_capture:
            raise RuntimeError("memory is full")
        return activations.weight + 1

    with pytest.warns(UserWarning, match="memory is full"):
        run(recorder, step, times=3)
    assert len(seen) == 4
    assert "RuntimeError: memory is full" in recorder.traceback


def test_random_numbers_go_on_also_if_the_warning_is_an_error(fake_cuda):
    fake_cuda.error_at_end = RuntimeError("invalidated")
    with pytest.raises(UserWarning, match="invalidated"):
        run(Recorder("cuda"), lambda: None)
    assert fake_cuda.generator_state == "new"


def test_a_branch_never_has_the_stream_of_the_step(fake_cuda, monkeypatch):
    own, other = FakeStream(), FakeStream()
    streams = iter([own, own, other])  # torch hands out a few in turn
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: next(streams))
    recorder = Recorder("cuda")
    with recorder._aside(), recorder.stream(1):
        assert fake_cuda.current is other


@pytest.mark.parametrize("fails", [False, True])
def test_no_garbage_is_collected_in_a_capture(fake_cuda, fails):
    recorder, collects = Recorder("cuda"), []
    fake_cuda.error_at_end = RuntimeError("invalidated") if fails else None
    assert gc.isenabled()
    with pytest.warns(UserWarning, match="invalidated") if fails else contextlib.nullcontext():
        run(recorder, lambda: collects.append(gc.isenabled()), times=3)
    assert collects == [True, True, False] + [True] * fails
    assert gc.isenabled()


def test_recordings_are_bounded_by_memory(fake_cuda):
    def step(tensor):
        fake_cuda.reserved += 242
        return tensor + 1

    recorder, two = Recorder("cuda"), torch.ones(2)
    run(recorder, step, two)
    assert recorder.num_bytes == 242 + 8
    with pytest.warns(UserWarning, match=r"No more steps .* take 25% of the memory"):
        run(recorder, step, torch.ones(3))
    assert_equal(run(recorder, step, two), two + 1)
    assert num_recordings(recorder) == 1


def test_branches_have_streams_and_join(fake_cuda):
    recorder, seen = Recorder("cuda"), []

    def step():
        for index in (0, 1, 2):
            with recorder.stream(index):
                seen.append(fake_cuda.current)
        recorder.join()
        seen.append(list(fake_cuda.current.waited))

    recorder(step)
    step_stream, first, second, waited = seen
    assert len({fake_cuda.first, step_stream, first, second}) == 4
    assert fake_cuda.first.waited == [step_stream]
    assert first.waited == second.waited == [step_stream]
    assert waited == [fake_cuda.first, first, second]
    run(recorder, step, times=3)
    assert seen[8:11] == [step_stream, first, second]
    seen.clear()
    step()  # outside of a recorder
    assert seen[:3] == [fake_cuda.first] * 3


def test_a_warm_up_that_fails_joins_its_branches(fake_cuda):
    recorder, streams = Recorder("cuda"), []

    def step():
        with recorder.stream(1):
            streams.append(fake_cuda.current)
            raise torch.OutOfMemoryError("memory is full")

    with pytest.raises(torch.OutOfMemoryError):
        recorder(step)
    assert streams[0] in fake_cuda.first.waited[0].waited
    assert fake_cuda.current is fake_cuda.first
    assert_equal(run(recorder, add, torch.ones(2), torch.ones(2)), torch.full((2,), 2.0))


@pytest.fixture
def cuda(device):
    """Return the device of ``--device``, if it is a CUDA device."""
    if device.type != "cuda":
        pytest.skip("needs --device cuda")
    return device


@pytest.mark.gpu
@pytest.mark.parametrize("num_branches", [1, 2])
def test_a_graph_is_equal_to_the_eager_step_to_the_bit(cuda, num_branches):
    recorder = Recorder(cuda)
    fixed = {"branches": recorder} if num_branches == 2 else {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = train(recorder, Training(cuda), num_steps=8, **fixed)
    assert num_recordings(recorder) == 1
    assert recorder.num_bytes > 0
    eager = train(lambda function, *args: function(*args), Training(cuda), num_steps=8)
    assert_equal(results, eager)


@pytest.mark.gpu
def test_training_goes_on_after_a_capture_that_failed(cuda):
    recorder, one = Recorder(cuda), torch.ones(2, device=cuda)
    with pytest.warns(UserWarning, match="not be captured"):
        run(recorder, lambda tensor: tensor * tensor.sum().item(), one)
    torch.randn(2, device=cuda)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert_equal(run(recorder, add, one, one), one * 2)
    recorder.forget()
    assert_equal(run(recorder, add, one, one), one * 2)
    assert num_recordings(recorder) == 1

"""The CUDA engines equal the reference: here on stand-ins for their kernels, and on a GPU."""

import contextlib
import gc
import inspect
import warnings
import weakref
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import fused_cells
from support.tolerances import BFLOAT16, EXACT_FLOAT64, SAME_FLOAT32
from test_scan import IN_MEMORY, D, H, check_strides, make_case, values_and_gradients
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from rsl_tbptt.core import scan
from rsl_tbptt.core.hidden_state import as_tensors
from rsl_tbptt.core.scan import cuda_graphs, recurrent_scan, selection

STAND_INS = ["cuda_cells", "cuda_graphs"]
"""The engines that run on stand-ins."""

RNN_TYPES = ["lstm", "gru"]

record_on_cuda = cuda_graphs.record


@pytest.fixture(scope="module", autouse=True)
def stand_ins():
    """Run the CUDA engines on the CPU."""
    with fused_cells.cuda_engines_on_cpu():
        yield


@pytest.fixture
def pool(monkeypatch):
    """Return a pool without recordings."""
    pool = cuda_graphs.Pool()
    monkeypatch.setattr(cuda_graphs, "_pool", pool)
    return pool


def num_recordings(pool):
    """Return how many recordings are free, and how many were made."""
    return sum(map(len, pool._free.values())), pool._num_made


# The stand-ins themselves.


@pytest.mark.parametrize("name", list(fused_cells.SCHEMAS))
def test_torch_declares_the_cells_as_the_engines_call_them(name):
    schema = getattr(torch.ops.aten, name).default._schema
    assert str(schema) == f"aten::{name}{fused_cells.SCHEMAS[name]}"


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rnn_type", RNN_TYPES)
def test_the_stand_in_cells_equal_torch(rnn_type, bias):
    torch.manual_seed(0)
    num_states = 2 if rnn_type == "lstm" else 1
    cell_type = nn.LSTMCell if rnn_type == "lstm" else nn.GRUCell
    cell = cell_type(D, H, bias=bias).double()
    x, *state = (torch.randn(5, size, dtype=torch.float64) for size in (D, *[H] * num_states))
    x.requires_grad_()
    state = [tensor.requires_grad_() for tensor in state]
    expected = cell(x, tuple(state) if rnn_type == "lstm" else state[0])
    expected = expected if isinstance(expected, tuple) else (expected,)
    grads = [torch.randn_like(result) for result in expected]
    arguments = [x, *state, *cell.parameters()]
    expected_grads = torch.autograd.grad(expected, arguments, grads)
    with torch.no_grad():
        of_x, of_h = x @ cell.weight_ih.t(), state[0] @ cell.weight_hh.t()
        biases = (cell.bias_ih, cell.bias_hh) if bias else (None, None)
        aten = torch.ops.aten
        if rnn_type == "lstm":
            *results, kept = aten._thnn_fused_lstm_cell(of_x, of_h, state[1], *biases)
            di, dc, db = aten._thnn_fused_lstm_cell_backward_impl(
                *grads, state[1], results[1], kept, bias
            )
            dh, of_biases, direct, others = di, (db, db), 0.0, [dc]
        else:
            *results, kept = aten._thnn_fused_gru_cell(of_x, of_h, state[0], *biases)
            di, dh, direct, *of_biases = aten._thnn_fused_gru_cell_backward(*grads, kept, bias)
            others = []
        got = [di @ cell.weight_ih, dh @ cell.weight_hh + direct, *others]
        got += [di.t() @ x, dh.t() @ state[0], *(of_biases if bias else ())]
    for left, right in zip([*results, *got], [*expected, *expected_grads], strict=True):
        torch.testing.assert_close(left, right, **EXACT_FLOAT64)


# Equality with the reference.


@pytest.mark.parametrize("engine", STAND_INS)
@given(
    rnn_type=st.sampled_from(RNN_TYPES),
    num_layers=st.integers(1, 3),
    num_steps=st.integers(1, 6),
    num_envs=st.integers(1, 4),
    done_rate=st.sampled_from([0.0, 0.3, 1.0]),
    bias=st.booleans(),
    seed=st.integers(0, 100),
)
def test_engine_equals_reference(
    engine, rnn_type, num_layers, num_steps, num_envs, done_rate, bias, seed
):
    case = make_case(rnn_type, num_layers, num_steps, num_envs, done_rate, seed, bias)
    expected = values_and_gradients(*case, engine="reference")
    for got, want in zip(values_and_gradients(*case, engine=engine), expected, strict=True):
        torch.testing.assert_close(got, want, **EXACT_FLOAT64)


@pytest.mark.parametrize("engine", STAND_INS)
@given(**IN_MEMORY)
def test_tensors_are_read_by_their_strides(engine, **drawn):
    check_strides(engine, **drawn)


@pytest.mark.parametrize("engine", STAND_INS)
@pytest.mark.parametrize("rnn_type", RNN_TYPES)
@pytest.mark.parametrize(
    "needed", ["inputs", "state", "weight_ih_l0", "weight_hh_l0", "bias_hh_l0"]
)
def test_one_gradient_alone(engine, rnn_type, needed):
    rnn, inputs, state, starts = make_case(rnn_type, 1, 5, 3, 0.3)
    leaves = {"inputs": inputs, "state": as_tensors(state)[-1], **dict(rnn.named_parameters())}
    for name, leaf in leaves.items():
        leaf.requires_grad_(name == needed)

    def gradient(engine):
        outputs, _ = recurrent_scan(rnn, inputs, state, starts, engine)
        return torch.autograd.grad(outputs.square().sum(), leaves[needed])

    torch.testing.assert_close(gradient(engine), gradient("reference"), **EXACT_FLOAT64)


@pytest.mark.parametrize("engine", STAND_INS)
@pytest.mark.parametrize("rnn_type", RNN_TYPES)
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_poison_stays_in_its_episode(engine, rnn_type, poison):
    case = make_case(rnn_type, 1, 6, 3, 0.0)
    rnn, inputs, state, starts = case
    starts[3, 1] = True
    weights = torch.ones(6, 3, H, dtype=torch.float64)
    weights[:3, 1] = 0.0

    def run():
        given = inputs.clone().requires_grad_()
        outputs, final = recurrent_scan(rnn, given, state, starts, engine)
        healthy = outputs.where(weights > 0, torch.zeros(()).double())
        (gradient,) = torch.autograd.grad(healthy.sum(), given)
        return healthy, gradient[weights[..., 0] > 0], *as_tensors(final)

    expected = run()
    inputs[:3, 1] = poison
    for tensor in as_tensors(state):
        tensor[:, 1] = poison
    for got, want in zip(run(), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize("engine", STAND_INS)
@pytest.mark.parametrize("rnn_type", RNN_TYPES)
def test_bfloat16_operands_keep_a_float32_state(engine, rnn_type):
    rnn, inputs, state, starts = make_case(rnn_type, 2, 6, 4, 0.3)
    rnn, inputs = rnn.float(), inputs.float()
    tensors = tuple(tensor.float() for tensor in as_tensors(state))
    state = tensors if rnn_type == "lstm" else tensors[0]
    expected = values_and_gradients(rnn, inputs, state, starts, "reference")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        results = values_and_gradients(rnn, inputs, state, starts, engine)
    assert not torch.equal(results[0], expected[0])
    for got, want in zip(results, expected, strict=True):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, want, **BFLOAT16)


@pytest.mark.parametrize("engine", STAND_INS)
@pytest.mark.parametrize("rnn_type", RNN_TYPES)
def test_autocast_around_the_backward_pass_alone_has_no_effect(engine, rnn_type):
    rnn, inputs, _, starts = make_case(rnn_type, 1, 4, 3, 0.3)
    rnn, inputs = rnn.float(), inputs.float().requires_grad_()

    def gradient(enabled):
        outputs, _ = recurrent_scan(rnn, inputs, None, starts, engine)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            return torch.autograd.grad(outputs.sum(), inputs)

    torch.testing.assert_close(gradient(True), gradient(False), rtol=0, atol=0)


@pytest.mark.parametrize("engine", STAND_INS)
@pytest.mark.parametrize("rnn_type", RNN_TYPES)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(engine, rnn_type, mode):
    rnn, inputs, state, starts = make_case(rnn_type, 2, 4, 3, 0.3)
    expected, expected_final = recurrent_scan(rnn, inputs, state, starts, "reference")
    with mode():
        outputs, final = recurrent_scan(rnn, inputs, state, starts, engine)
    assert not outputs.requires_grad
    torch.testing.assert_close(outputs, expected.detach(), **EXACT_FLOAT64)
    for got, want in zip(as_tensors(final), as_tensors(expected_final), strict=True):
        torch.testing.assert_close(got, want.detach(), **EXACT_FLOAT64)


@pytest.mark.parametrize("engine", STAND_INS)
@pytest.mark.parametrize("rnn_type", RNN_TYPES)
def test_the_backward_pass_runs_once(engine, rnn_type):
    rnn, inputs, state, starts = make_case(rnn_type, 1, 3, 2, 0.0)
    outputs, _ = recurrent_scan(rnn, inputs, state, starts, engine)
    outputs.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        outputs.sum().backward()


@pytest.mark.parametrize("engine", STAND_INS)
@pytest.mark.parametrize("rnn_type", RNN_TYPES)
def test_double_backward_is_refused(engine, rnn_type):
    rnn, inputs, state, starts = make_case(rnn_type, 1, 3, 2, 0.0)
    outputs, _ = recurrent_scan(rnn, inputs, state, starts, engine)
    with pytest.raises(RuntimeError, match="create_graph=True"):
        torch.autograd.grad(outputs.sum(), list(rnn.parameters()), create_graph=True)


@pytest.mark.parametrize("rnn_type", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("engine", STAND_INS)
def test_the_check_of_auto_passes(rnn_type, autocast, engine, monkeypatch):
    monkeypatch.setattr(selection, "_chosen", {})
    with warnings.catch_warnings(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        warnings.simplefilter("error")
        candidates = {engine: scan.ENGINES[engine]}
        assert selection.first_that_works(rnn_type(D, H), torch.device("cpu"), candidates) == engine


@pytest.mark.parametrize("engine", STAND_INS)
def test_the_check_of_auto_notices_a_cell_that_changed(engine, pool, monkeypatch):
    monkeypatch.setattr(selection, "_chosen", {})
    backward = fused_cells.lstm_cell_backward

    def with_gates_in_another_order(*arguments):
        gates, *others = backward(*arguments)
        return gates.roll(H, dims=1), *others

    name = "_thnn_fused_lstm_cell_backward_impl"
    monkeypatch.setattr(torch.ops.aten, name, with_gates_in_another_order)
    candidates = {engine: scan.ENGINES[engine]}
    with pytest.warns(UserWarning, match=f"takes 'reference' .*'{engine}' .AssertionError"):
        selection.first_that_works(nn.LSTM(D, H), torch.device("cpu"), candidates)


@pytest.mark.parametrize("engine", STAND_INS)
@pytest.mark.parametrize("rnn_type", RNN_TYPES)
def test_a_scan_that_is_forgotten_is_freed_at_once(engine, rnn_type):
    rnn, inputs, state, starts = make_case(rnn_type, 1, 3, 2, 0.3)
    outputs, final = recurrent_scan(rnn, inputs, state, starts, engine)
    scan_node = weakref.ref(outputs.grad_fn)
    gc.disable()
    try:
        del outputs, final
        assert scan_node() is None
    finally:
        gc.enable()


# What happens depends on shapes alone.


class Operations(TorchDispatchMode):
    """Lists the operations that run."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.seen.append(operation.name().removeprefix("aten::").split(".")[0])
        return operation(*args, **(kwargs or {}))


WAITING = (
    "_local_scalar_dense",
    "nonzero",
    "is_nonzero",
    "masked_select",
    "item",
    "equal",
    "unique",
)
"""Operations whose result or its size the host has to know."""


def operations(engine, rnn_type, num_steps, done_rate, backward=True):
    """Return the names of all operations of a scan."""
    rnn, inputs, state, starts = make_case(rnn_type, 2, num_steps, 4, done_rate)
    recurrent_scan(rnn, inputs, state, starts, engine)
    with Operations() as recorded:
        outputs, _ = recurrent_scan(rnn, inputs, state, starts, engine)
        if backward:
            outputs.sum().backward()
    return recorded.seen


@pytest.mark.parametrize("engine", STAND_INS)
@pytest.mark.parametrize("rnn_type", RNN_TYPES)
def test_the_host_never_asks_the_device(engine, rnn_type):
    quiet = operations(engine, rnn_type, 5, done_rate=0.0)
    assert not [name for name in quiet if name.startswith(WAITING)]
    assert operations(engine, rnn_type, 5, done_rate=0.4) == quiet


def test_an_engine_that_asks_is_seen():
    assert {"nonzero", "_local_scalar_dense"} & set(operations("fused", "lstm", 5, 0.4))


@pytest.mark.parametrize("rnn_type", RNN_TYPES)
@pytest.mark.parametrize("num_steps", [4, 9])
def test_two_products_a_step_and_a_few_a_window(rnn_type, num_steps):
    forward = operations("cuda_cells", rnn_type, num_steps, 0.3, backward=False)
    both = operations("cuda_cells", rnn_type, num_steps, 0.3)
    assert forward.count("mm") == 2 * (num_steps + 1)
    backward_of_layers = 2 * (num_steps - 1) + 2 * 2  # steps after the first, weights
    assert both.count("mm") - forward.count("mm") == backward_of_layers + 1  # dx of the upper layer


# Recordings: whose memory is whose.


def leaves_of(seed, rnn_type="lstm", num_layers=1):
    rnn, inputs, state, starts = make_case(rnn_type, num_layers, 4, 3, 0.3, seed)
    return rnn, inputs.requires_grad_(), state, starts


def gradients_of(outputs, rnn, inputs):
    return torch.autograd.grad(outputs.square().sum(), [inputs, *rnn.parameters()])


@pytest.mark.parametrize("rnn_type", RNN_TYPES)
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_scans_alive_at_once_share_nothing(rnn_type, order, pool):
    cases = [leaves_of(seed, rnn_type, num_layers=2) for seed in range(3)]
    results = [recurrent_scan(*case, "cuda_graphs") for case in cases]
    assert num_recordings(pool) == (0, 6)
    for index in order:
        case, (outputs, final) = cases[index], results[index]
        expected, expected_final = recurrent_scan(*case, "reference")
        torch.testing.assert_close(outputs, expected, **EXACT_FLOAT64)
        for got, want in zip(as_tensors(final), as_tensors(expected_final), strict=True):
            torch.testing.assert_close(got, want, **EXACT_FLOAT64)
        got = gradients_of(outputs, case[0], case[1])
        want = gradients_of(expected, case[0], case[1])
        torch.testing.assert_close(got, want, **EXACT_FLOAT64)
    assert num_recordings(pool) == (6, 6)


@pytest.mark.parametrize("rnn_type", RNN_TYPES)
def test_a_recording_serves_other_weights_and_values(rnn_type, pool):
    for seed in range(3):
        case = leaves_of(seed, rnn_type)
        outputs, _ = recurrent_scan(*case, "cuda_graphs")
        expected, _ = recurrent_scan(*case, "reference")
        got = gradients_of(outputs, case[0], case[1])
        torch.testing.assert_close(got, gradients_of(expected, case[0], case[1]), **EXACT_FLOAT64)
    assert num_recordings(pool) == (1, 1)


def test_what_was_handed_out_outlives_the_next_replay(pool):
    first, second = leaves_of(0), leaves_of(1)
    outputs, final = recurrent_scan(*first, "cuda_graphs")
    gradients = gradients_of(outputs, first[0], first[1])
    handed_out = [outputs.detach(), *as_tensors(final), *gradients]
    copies = [tensor.clone() for tensor in handed_out]
    gradients_of(recurrent_scan(*second, "cuda_graphs")[0], second[0], second[1])
    with torch.no_grad():
        recurrent_scan(*second, "cuda_graphs")
    for tensor, copy in zip(handed_out, copies, strict=True):
        torch.testing.assert_close(tensor, copy, rtol=0, atol=0)


def test_weights_may_change_between_forward_and_backward(pool):
    rnn, inputs, state, starts = leaves_of(0)
    expected = gradients_of(recurrent_scan(rnn, inputs, state, starts, "reference")[0], rnn, inputs)
    outputs, _ = recurrent_scan(rnn, inputs, state, starts, "cuda_graphs")
    with torch.no_grad():
        for parameter in rnn.parameters():
            parameter.mul_(2.0)
    torch.testing.assert_close(gradients_of(outputs, rnn, inputs), expected, **EXACT_FLOAT64)


def test_a_forgotten_scan_gives_its_recording_back(pool):
    outputs, final = recurrent_scan(*leaves_of(0), "cuda_graphs")
    assert num_recordings(pool) == (0, 1)
    del outputs, final
    gc.collect()
    assert num_recordings(pool) == (1, 1)


def test_a_failed_backward_pass_gives_its_recording_back(pool):
    rnn, inputs, state, starts = leaves_of(0)
    outputs, final = recurrent_scan(rnn, inputs, state, starts, "cuda_graphs")
    with pytest.raises(RuntimeError, match="create_graph=True"):
        torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
    del outputs, final
    gc.collect()
    assert num_recordings(pool) == (1, 1)


def test_a_recording_is_free_after_each_pass_that_needs_it_no_more(pool):
    case = leaves_of(0)
    for _ in range(3):
        gradients_of(recurrent_scan(*case, "cuda_graphs")[0], case[0], case[1])
        with torch.no_grad():
            recurrent_scan(*case, "cuda_graphs")
    assert num_recordings(pool) == (2, 2)


def test_each_shape_and_setting_is_recorded_once(pool, monkeypatch):
    rnn, inputs, state, starts = leaves_of(0)

    def run():
        for num_steps in (4, 3):
            outputs, _ = recurrent_scan(
                rnn, inputs[:num_steps], state, starts[:num_steps], "cuda_graphs"
            )
            gradients_of(outputs, rnn, inputs)

    run()
    run()
    assert num_recordings(pool) == (2, 2)
    recurrent_scan(rnn, inputs.detach(), state, starts, "cuda_graphs")[0].sum().backward()
    assert num_recordings(pool) == (3, 3)
    monkeypatch.setattr(cuda_graphs, "_situation", lambda device: "other precision")
    run()
    assert num_recordings(pool) == (5, 5)


def test_dtypes_have_recordings_of_their_own(pool):
    rnn, inputs, _, starts = leaves_of(0)
    expected, _ = recurrent_scan(rnn, inputs, None, starts, "reference")
    exact = recurrent_scan(rnn, inputs, None, starts, "cuda_graphs")[0].detach()
    with torch.autocast("cpu", torch.bfloat16):
        assert recurrent_scan(rnn, inputs, None, starts, "cuda_graphs")[0].dtype == torch.float64
    torch.testing.assert_close(exact, expected.detach(), **EXACT_FLOAT64)
    rnn, inputs = rnn.float(), inputs.detach().float().requires_grad_()
    single = recurrent_scan(rnn, inputs, None, starts, "cuda_graphs")[0].detach()
    with torch.autocast("cpu", torch.bfloat16):
        rounded = recurrent_scan(rnn, inputs, None, starts, "cuda_graphs")[0].detach()
    for got, tolerance in ((single, SAME_FLOAT32), (rounded, BFLOAT16)):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), exact, **tolerance)
    assert not torch.equal(single, rounded)
    assert num_recordings(pool) == (4, 4)


def test_a_recording_made_in_inference_mode_serves_later(pool):
    case = leaves_of(0)
    expected, _ = recurrent_scan(*case, "reference")
    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            outputs, _ = recurrent_scan(*case, "cuda_graphs")
        torch.testing.assert_close(outputs, expected.detach(), **EXACT_FLOAT64)
    assert num_recordings(pool) == (1, 1)


def test_no_more_recordings_than_are_kept(monkeypatch):
    pool = cuda_graphs.Pool(max_recordings=1)
    monkeypatch.setattr(cuda_graphs, "_pool", pool)
    case = leaves_of(0, num_layers=2)
    expected, _ = recurrent_scan(*case, "reference")
    with pytest.warns(UserWarning, match="further window shapes are not recorded: 1 are kept"):
        outputs, _ = recurrent_scan(*case, "cuda_graphs")
    want = gradients_of(expected, case[0], case[1])
    torch.testing.assert_close(gradients_of(outputs, case[0], case[1]), want, **EXACT_FLOAT64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        outputs, _ = recurrent_scan(*case, "cuda_graphs")
    torch.testing.assert_close(gradients_of(outputs, case[0], case[1]), want, **EXACT_FLOAT64)
    assert num_recordings(pool) == (1, 1)


def test_a_recording_that_fails_later_does_not_end_training(pool, monkeypatch):
    case = leaves_of(0)
    recurrent_scan(*case, "cuda_graphs")

    def fail(function, device):
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr(cuda_graphs, "record", fail)
    rnn, inputs, state, starts = leaves_of(0, num_layers=2)
    expected, _ = recurrent_scan(rnn, inputs, state, starts, "reference")
    with pytest.warns(UserWarning, match=r"not recorded: one could not .*no memory left"):
        outputs, _ = recurrent_scan(rnn, inputs, state, starts, "cuda_graphs")
    torch.testing.assert_close(outputs, expected, **EXACT_FLOAT64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once, and not tried again
        recurrent_scan(rnn, inputs, state, starts, "cuda_graphs")


def test_a_first_recording_that_fails_is_an_error(pool, monkeypatch):
    def fail(function, device):
        raise RuntimeError("this device records nothing")

    monkeypatch.setattr(cuda_graphs, "record", fail)
    with pytest.raises(RuntimeError, match="records nothing"):
        recurrent_scan(*leaves_of(0), "cuda_graphs")


def test_nothing_is_recorded_inside_the_callers_capture(pool, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "_situation", lambda device: None)
    case = leaves_of(0)
    outputs, _ = recurrent_scan(*case, "cuda_graphs")
    expected, _ = recurrent_scan(*case, "reference")
    got = gradients_of(outputs, case[0], case[1])
    torch.testing.assert_close(got, gradients_of(expected, case[0], case[1]), **EXACT_FLOAT64)
    assert num_recordings(pool) == (0, 0)


def test_recordings_made_aside_are_dropped(pool):
    case = leaves_of(0)
    recurrent_scan(*case, "cuda_graphs")
    with cuda_graphs.recordings_aside():
        assert num_recordings(cuda_graphs._pool) == (0, 0)
        recurrent_scan(*case, "cuda_graphs")
        recording = weakref.ref(next(filter(None, cuda_graphs._pool._free.values()))[0])
    assert recording() is None
    assert cuda_graphs._pool is pool
    assert num_recordings(pool) == (1, 1)


def test_what_was_recorded_aside_shows_that_recording_works(pool, monkeypatch):
    with cuda_graphs.recordings_aside():
        recurrent_scan(*leaves_of(0), "cuda_graphs")

    def fail(function, device):
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr(cuda_graphs, "record", fail)
    with pytest.warns(UserWarning, match=r"not recorded: one could not .*no memory left"):
        recurrent_scan(*leaves_of(0), "cuda_graphs")


# Recording itself, as far as it can be seen without a device.


class FakeCuda:
    """Writes down what is asked of torch.cuda, in the order it is asked."""

    def __init__(self, monkeypatch):
        self.log = []
        self.capture = inspect.signature(torch.cuda.graph.__init__)
        monkeypatch.setattr(
            cuda_graphs, "_side_stream", lambda device, current: self.stream("side")
        )
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

    assert record_on_cuda(work, torch.device("cuda:0")) == ("replay", "outputs")
    warm_up = ["side waits for current", "on side", "work", "work", "end"]
    capture = ["current waits for side", "capture on side", "work", "end"]
    assert cuda.log == [*warm_up, *capture]

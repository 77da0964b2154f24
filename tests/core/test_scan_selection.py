"""``auto`` takes what was seen to work, and one switch governs the precision of all engines."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from rsl_tbptt.core import scan
from rsl_tbptt.core.scan import fused, precision, reference, selection

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """Start with nothing chosen."""
    monkeypatch.setattr(selection, "_chosen", {})


def raises(*arguments):
    raise NotImplementedError("no such kernel here")


def wrong_values(*arguments):
    outputs, state = reference.scan(*arguments)
    return 1.01 * outputs, state


def wrong_last_state(*arguments):
    outputs, state = reference.scan(*arguments)
    return outputs, (state[0], 1.01 * state[1])


def wrong_gradient(*arguments):
    outputs, state = reference.scan(*arguments)
    outputs.register_hook(lambda gradient: 1.01 * gradient)
    return outputs, state


def ignores_episode_starts(rnn, inputs, state, episode_starts):
    return rnn(inputs, state)


class RightOnce:
    """An engine that is right in its first scan alone."""

    def __init__(self):
        self.first = True

    def __call__(self, *arguments):
        outputs, state = reference.scan(*arguments)
        first, self.first = self.first, False
        return outputs if first else 2.0 * outputs, state


class Counting:
    """A right engine that counts its scans."""

    def __init__(self):
        self.count = 0

    def __call__(self, *arguments):
        self.count += 1
        return reference.scan(*arguments)


def choose(candidates, dtype=torch.float32, rnn_type=nn.LSTM):
    rnn = rnn_type(2, 3, device="meta", dtype=dtype)
    return selection.first_that_works(rnn, CPU, candidates)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "wrong",
    [wrong_values, wrong_last_state, wrong_gradient, ignores_episode_starts, RightOnce()],
)
def test_the_first_engine_that_agrees_is_taken(wrong, dtype):
    if isinstance(wrong, RightOnce):
        wrong.first = True
    candidates = {"raises": raises, "wrong": wrong, "right": fused.scan, "never": raises}
    with pytest.warns(UserWarning, match="takes 'right' for a LSTM") as caught:
        assert choose(candidates, dtype) == "right"
    (warning,) = caught
    message = str(warning.message)
    assert "'raises' (NotImplementedError: no such kernel here)" in message
    assert "'wrong' (AssertionError: Tensor-likes are not close" in message
    assert "'never'" not in message


@pytest.mark.parametrize("operand_dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rnn_type", [nn.LSTM, nn.GRU])
def test_the_tolerance_lets_rounding_pass(rnn_type, dtype, operand_dtype):
    for seed in range(20):
        with torch.autocast("cpu", dtype=operand_dtype, enabled=operand_dtype is not None):
            effective = operand_dtype or dtype
            tolerance = selection._TOLERANCES[effective] / 2
            selection._check(fused.scan, rnn_type, CPU, dtype, tolerance, seed)


def test_without_one_that_works_it_is_the_reference():
    with pytest.warns(UserWarning, match="takes 'reference'"):
        assert choose({"raises": raises}) == "reference"


def test_a_choice_is_made_once_for_each_kind_of_layer_and_dtype():
    engine = Counting()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            assert choose({"counting": engine}) == "counting"
        assert engine.count == 2
        choose({"counting": engine}, torch.float64)
        choose({"counting": engine}, rnn_type=nn.GRU)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            choose({"counting": engine})
            choose({"counting": engine}, torch.float64)
        assert engine.count == 10


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_check_leaves_no_trace(mode):
    state = torch.get_rng_state()
    with mode():
        assert choose({"fused": fused.scan}) == "fused"
        assert not torch.is_grad_enabled()
    torch.testing.assert_close(torch.get_rng_state(), state, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("device", "compiler_found", "expected"),
    [
        ("cuda:1", True, ["cuda_graphs", "cuda_cells", "fused"]),
        ("mps", True, ["fused"]),
        ("cpu", True, ["compiled", "fused"]),
        ("cpu", False, ["fused"]),
    ],
)
def test_auto_asks_for_a_choice(device, compiler_found, expected, monkeypatch):
    asked = []

    def choose_last(rnn, device, candidates):
        asked.append((device, list(candidates)))
        return list(candidates)[-1]

    monkeypatch.setattr(selection, "first_that_works", choose_last)
    monkeypatch.setattr(scan.compiler, "compiler", lambda: "cc" if compiler_found else None)
    monkeypatch.setitem(scan.ENGINES, "fused", lambda *arguments: arguments)
    inputs = SimpleNamespace(device=torch.device(device))
    result = scan.resolve_engine("auto")("rnn", inputs, "state", "starts")
    assert result == ("rnn", inputs, "state", "starts")
    assert asked == [(torch.device(device), expected)]


@pytest.fixture
def restore_precision():
    """Leave the precision of torch as it was."""
    recurrent = torch.backends.cudnn.rnn.fp32_precision
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.rnn.fp32_precision = recurrent


def allow_by_flag(allowed):
    torch.backends.cuda.matmul.allow_tf32 = allowed


def allow_by_name(allowed):
    torch.set_float32_matmul_precision("high" if allowed else "highest")


def allow_by_new_setting(allowed):
    torch.backends.cuda.matmul.fp32_precision = "tf32" if allowed else "ieee"


needs_new_setting = pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch before 2.9"
)


@needs_new_setting
@pytest.mark.parametrize("allow", [allow_by_flag, allow_by_name, allow_by_new_setting])
@pytest.mark.parametrize("before", ["tf32", "ieee"])
def test_cudnn_follows_the_precision_of_products(allow, before, restore_precision):
    assert not precision.tf32_allowed()
    for allowed in (True, False):
        allow(allowed)
        torch.backends.cudnn.rnn.fp32_precision = before
        assert precision.tf32_allowed() == allowed
        with precision.cudnn_follows_matmul():
            assert precision.cudnn_tf32() == allowed
        assert torch.backends.cudnn.rnn.fp32_precision == before


class OldMatmul:
    allow_tf32 = True


class OldCudnn:
    allow_tf32 = False


def test_the_settings_of_torch_before_2_9(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "matmul", OldMatmul)
    monkeypatch.setattr(torch.backends, "cudnn", OldCudnn)
    assert precision.tf32_allowed()
    with precision.cudnn_follows_matmul():
        assert OldCudnn.allow_tf32
    assert not OldCudnn.allow_tf32


@needs_new_setting
def test_the_backward_pass_follows_too(restore_precision):
    torch.backends.cudnn.rnn.fp32_precision = "tf32"
    seen = []

    class Settings(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            seen.append(precision.cudnn_tf32())
            return operation(*args, **(kwargs or {}))

    rnn = nn.GRU(2, 3, device="meta")
    outputs, _ = precision.run_layers(rnn, torch.randn(4, 2, 2, device="meta"), None)
    assert precision.cudnn_tf32()
    with Settings():
        torch.autograd.grad(outputs.sum(), list(rnn.parameters()))
    followed = [index for index, tf32 in enumerate(seen) if not tf32]
    assert followed
    assert followed == list(range(followed[0], followed[-1] + 1))
    assert precision.cudnn_tf32()

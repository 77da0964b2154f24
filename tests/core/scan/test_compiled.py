"""The compiled functions are accurate in float32, and a machine without a compiler is told so."""

import math
import os

import pytest
import torch
from support.scan_cases import make_case, values_and_gradients
from torch import nn

from rsl_tbptt.core.scan import recurrent_scan, selection
from rsl_tbptt.core.scan.cpu import compiler

CPU = torch.device("cpu")
EPSILON = torch.finfo(torch.float32).eps

needs_compiler = pytest.mark.skipif(compiler.compiler() is None, reason="no C compiler")


@pytest.fixture
def compile_with(monkeypatch):
    """Return a function that sets the compiler; what was compiled before is forgotten."""

    def clear():
        compiler.compiler.cache_clear()
        compiler.load_cells.cache_clear()

    def use(command):
        monkeypatch.setenv("CC", str(command))
        clear()

    yield use
    clear()


def tanh_of(x):
    """Return what a GRU makes of its candidate's input where nothing else is in its way."""
    num_envs, H = len(x), 1
    gates, n = torch.zeros(num_envs, 3 * H), x.clone()
    before, h = torch.zeros(2, num_envs, H)
    addresses = [tensor.data_ptr() for tensor in (gates, gates, n, before, h)]
    cells = compiler.load_cells(torch.float32, torch.float32)
    cells.gru_forward(num_envs, H, 1, H, H, *addresses, None, None, None)
    return n


@needs_compiler
def test_tanh_is_right_to_the_last_digits_over_all_sizes():
    sizes = torch.logspace(-30, 30, 200_001, base=2.0)
    x = torch.cat((sizes, -sizes, torch.linspace(-10.0, 10.0, 200_001)))
    error = (tanh_of(x) - x.double().tanh()) / x.double().tanh().abs().clamp(min=1e-30)
    assert error.abs().max() < 2 * EPSILON


@needs_compiler
def test_tanh_of_what_is_no_number():
    x = torch.tensor([math.nan, math.inf, -math.inf, 0.0])
    torch.testing.assert_close(
        tanh_of(x), torch.tensor([math.nan, 1.0, -1.0, 0.0]), equal_nan=True, rtol=0, atol=0
    )


@needs_compiler
def test_operands_are_rounded_as_torch_rounds():
    bits = torch.randint(-(2**31), 2**31, (100_000,), generator=torch.Generator().manual_seed(0))
    ties = torch.arange(-(2**31), 2**31, 2**15)
    x = torch.cat((bits, ties, ties + 1, ties - 1)).to(torch.int32).view(torch.float32)
    num_envs, H, full, operand = len(x), 1, torch.float32, torch.bfloat16
    # z is 1 and n is 0, so that h is what it was before.
    product = torch.tensor([0.0, math.inf, 0.0], dtype=operand).repeat(num_envs, 1)
    gates, n = torch.empty(num_envs, 3), torch.zeros(num_envs)
    h, next_before, next_input = torch.empty_like(x), torch.empty_like(x), x.to(operand) * 0
    at = [t.data_ptr() for t in (product, gates, n, x, h, next_before, next_input)]
    compiler.load_cells(full, operand).gru_forward(num_envs, H, 1, H, H, *at, None)
    torch.testing.assert_close(next_before, x, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(next_input, x.to(operand), rtol=0, atol=0, equal_nan=True)


@pytest.mark.engines(name="compiled")
def test_float32_equals_float64_up_to_rounding(engine, cell):
    for seed in range(20):
        selection._check(engine, cell, CPU, torch.float32, 40 * EPSILON, seed)


@pytest.mark.engines(name="compiled")
@pytest.mark.parametrize("num_layers", [1, 2])
def test_bfloat16_is_as_exact_as_of_torchs_operations(engine, cell, num_layers):
    case = make_case(cell, num_layers, 12, 40, 0.2, dtype=torch.float32)
    expected = values_and_gradients(*case, "reference")
    with torch.autocast("cpu", torch.bfloat16):
        found, of_torch = (values_and_gradients(*case, name) for name in (engine.name, "fused"))
    for want, *got in zip(expected, found, of_torch, strict=True):
        error, usual = ((values - want).norm() / want.norm() for values in got)
        assert 0.0 < error < 1.3 * usual < 0.02


@pytest.mark.engines(name="compiled")
@pytest.mark.parametrize("num_envs", [33, 300])
def test_threads_change_nothing(engine, cell, num_envs):
    torch.manual_seed(0)
    rnn, x = cell.rnn_type(7, 130), torch.randn(5, num_envs, 7)
    starts = torch.rand(5, num_envs) < 0.3

    def gradients():
        outputs, _ = recurrent_scan(rnn, x, None, starts, engine.name)
        return [outputs, *torch.autograd.grad(outputs.square().sum(), list(rnn.parameters()))]

    alone = gradients()
    torch.set_num_threads(2)
    try:
        together = gradients()
    finally:
        torch.set_num_threads(1)
    for got, want in zip(together, alone, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def scan_once(engine):
    return recurrent_scan(nn.LSTM(2, 3), torch.zeros(1, 4, 2), None, torch.ones(1, 4) > 0, engine)


@pytest.mark.engines(name="compiled")
@pytest.mark.parametrize(
    ("real", "operand_dtype"),
    [(torch.bfloat16, None), (torch.float32, torch.float16), (torch.float64, torch.bfloat16)],
)
def test_other_half_precision_is_left_to_fused(engine, cell, real, operand_dtype):
    rnn, x = cell.rnn_type(2, 3).to(real), torch.randn(4, 5, 2).to(real)
    starts = torch.rand(4, 5) < 0.3
    with torch.autocast("cpu", operand_dtype, enabled=operand_dtype is not None):
        got, want = (recurrent_scan(rnn, x, None, starts, e)[0] for e in (engine.name, "fused"))
    torch.testing.assert_close(got, want, rtol=0, atol=0)


@needs_compiler
@pytest.mark.parametrize("command", ["{} -DWITH=options", "env {}", "env {} -g"])
def test_the_compiler_may_have_options_and_a_launcher(command, compile_with):
    compile_with(command.format(os.environ.get("CC", "cc")))
    scan_once("compiled")


@pytest.mark.parametrize(
    "command", ["no-such-compiler", "no-such-launcher gcc", "false", "env no-such-compiler", ""]
)
def test_without_a_working_compiler_the_engine_says_so(command, compile_with):
    compile_with(command)
    with pytest.raises(NotImplementedError, match=f"scan_engine 'compiled' needs .*'{command}'"):
        scan_once("compiled")


def test_auto_does_without_a_compiler(compile_with):
    compile_with("no-such-compiler")
    scan_once("auto")
    assert [engine.name for engine in selection._chosen.values()] == ["fused"]


def test_auto_says_why_a_compiler_was_of_no_use(compile_with, tmp_path):
    script = tmp_path / "cc"
    script.write_text("#!/bin/sh\necho unknown option >&2\nexit 1\n")
    script.chmod(0o755)
    compile_with(script)
    with pytest.warns(UserWarning, match="takes 'fused' .*'compiled'.*unknown option"):
        scan_once("auto")

"""The compiled engine: its functions, its products, what it keeps of weights, and its buffers."""

import math
import os

import pytest
import torch
from support.peak_memory import PeakMemory
from support.scan_cases import check_tanh
from torch import nn

from rsl_tbptt.core import scan
from rsl_tbptt.core.scan import (
    CELLS,
    ENGINES,
    cpu,
    free_buffers,
    products,
    recurrent_scan,
    unchanged_weights,
)

pytestmark = pytest.mark.engines("compiled")

CPU = torch.device("cpu")
EPSILON = torch.finfo(torch.float32).eps


@pytest.fixture
def compile_with(monkeypatch):
    """Return a function that sets the compiler; what was compiled before is forgotten."""

    def use(command):
        monkeypatch.setenv("CC", str(command))
        cpu.load_cells.cache_clear()

    yield use
    cpu.load_cells.cache_clear()


def tanh_of(x):
    """Return what a GRU makes of its candidate's input where nothing else is in its way."""
    num_envs, H = len(x), 1
    gates, n = torch.zeros(num_envs, 3 * H), x.clone()
    before, h = torch.zeros(2, num_envs, H)
    at = [tensor.data_ptr() for tensor in (gates, gates, n, before)]
    cells = cpu.load_cells(torch.float32, torch.float32)
    cells.gru_forward(num_envs, H, 1, H, H, *at, None, None, h.data_ptr(), None, None, None)
    return n


def test_tanh_is_right_to_the_last_digits_over_all_sizes():
    check_tanh(tanh_of, 2 * EPSILON, num=200_001)


def test_operands_are_rounded_as_torch_rounds():
    bits = torch.randint(-(2**31), 2**31, (100_000,), generator=torch.Generator().manual_seed(0))
    ties = torch.arange(-(2**31), 2**31, 2**15)
    x = torch.cat((bits, ties, ties + 1, ties - 1)).to(torch.int32).view(torch.float32)
    num_envs, H, full, operand = len(x), 1, torch.float32, torch.bfloat16
    # z is 1 and n is 0, so that h is what it was before.
    product = torch.tensor([0.0, math.inf, 0.0], dtype=operand).repeat(num_envs, 1)
    gates, n = torch.empty(num_envs, 3), torch.zeros(num_envs)
    h, next_before, next_input = torch.empty_like(x), torch.empty_like(x), x.to(operand) * 0
    at = [t.data_ptr() for t in (product, gates, n, x)]
    at += [None, None, *(t.data_ptr() for t in (h, next_before, next_input)), None]
    cpu.load_cells(full, operand).gru_forward(num_envs, H, 1, H, H, *at)
    torch.testing.assert_close(next_before, x, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(next_input, x.to(operand), rtol=0, atol=0, equal_nan=True)


def test_float32_equals_float64_up_to_rounding(engine, cell):
    for seed in range(20):
        scan.check_against_reference(ENGINES[engine], cell, CPU, torch.float32, 40 * EPSILON, seed)


def test_threads_change_nothing(engine, cell):
    torch.manual_seed(0)
    rnn, x = CELLS[cell](7, 130), torch.randn(5, 300, 7)
    starts = torch.rand(5, 300) < 0.3

    def gradients():
        outputs, _ = recurrent_scan(rnn, x, None, starts, engine)
        return [outputs, *torch.autograd.grad(outputs.square().sum(), list(rnn.parameters()))]

    alone = gradients()
    torch.set_num_threads(2)
    try:
        together = gradients()
    finally:
        torch.set_num_threads(1)
    for got, want in zip(together, alone, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def scan_once(engine, dtype=torch.float32):
    inputs = torch.zeros(1, 4, 2, dtype=dtype)
    recurrent_scan(nn.LSTM(2, 3).to(dtype), inputs, None, torch.ones(1, 4) > 0, engine)


def test_the_compiler_may_have_options_and_a_launcher(compile_with):
    compile_with(f"env {os.environ.get('CC', 'cc')} -g")
    scan_once("compiled")


@pytest.mark.parametrize("command", ["no-such-compiler", "false", ""])
def test_without_a_working_compiler_the_engine_says_so(command, compile_with):
    compile_with(command)
    with pytest.raises(NotImplementedError, match=f"scan_engine 'compiled' needs .*'{command}'"):
        scan_once("compiled")


def test_other_half_precision_is_left_to_the_reference():
    with pytest.raises(NotImplementedError, match="'compiled' has no"):
        scan_once("compiled", torch.bfloat16)
    with pytest.warns(UserWarning, match="takes 'reference'"):
        scan_once("auto", torch.bfloat16)


T, N, D, H = 5, 64, 3, 4


@pytest.fixture(params=["torch", "MKL", "oneDNN"])
def library(request, monkeypatch):
    """The library of products."""
    if request.param != "torch" and not products.has(request.param):
        pytest.skip("this torch lacks it")
    monkeypatch.setattr(products, "library_for", lambda *_: request.param)


def window(num_envs=N):
    """Return inputs, no state, and episode starts."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(T, num_envs, D, generator=generator)
    return inputs, None, torch.rand(T, num_envs, generator=generator) < 0.3


def gradients(rnn, engine, num_envs=N):
    outputs, _ = recurrent_scan(rnn, *window(num_envs), engine)
    return torch.autograd.grad(outputs.square().sum(), list(rnn.parameters()))


def test_nothing_is_kept_of_weights_that_may_change(engine, cell, library):
    rnn = CELLS[cell](D, H)
    gradients(rnn, engine)
    with torch.no_grad():
        rnn.get_parameter("weight_hh_l0").mul_(2.0)
    for one, other in zip(gradients(rnn, engine), gradients(rnn, "reference"), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("own", ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"])
def test_what_is_prepared_is_shared_by_windows_and_not_by_layers(engine, cell, library, own):
    torch.manual_seed(2)
    rnns = [CELLS[cell](D, H) for _ in range(2)]
    for name, weight in rnns[0].named_parameters():
        if name != own:
            setattr(rnns[1], name, weight)
    cases = [(rnn, engine, num_envs) for rnn in rnns for num_envs in (N, 2 * N)] * 2
    with unchanged_weights():
        found = [gradients(*case) for case in cases]
    for case, shared in zip(cases, found, strict=True):
        assert all(map(torch.equal, shared, gradients(*case)))


def matrix(rows, columns, *, seed, is_transposed=False, margin=0):
    """Return a random matrix; with a margin, a part of the columns of a larger one."""
    generator = torch.Generator().manual_seed(seed)
    shape = (columns, rows + margin) if is_transposed else (rows, columns + margin)
    values = torch.randn(shape, generator=generator)
    return values[:, :rows].t() if is_transposed else values[:, :columns]


@pytest.mark.parametrize("margin", [0, 3])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_products_of_two_matrices(library, is_transposed, margin):
    kind = {"is_transposed": is_transposed, "margin": margin}
    left, right = matrix(70, 33, seed=0, **kind), matrix(33, 40, seed=1, **kind)
    rows = matrix(70, 20, seed=2, **kind)
    outs = [torch.zeros(70, 40, dtype=dtype) for dtype in (torch.float32, torch.float64)]
    for out in outs:  # a given buffer keeps its dtype
        products.multiply(left, right, out=out)
    found = products.multiply_columns(left, rows), products.multiply(left, right), *outs
    product = left.double() @ right.double()
    wanted = left.double().t() @ rows.double(), *[product] * 3
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_envs", [1, 7, 64])
def test_products_of_a_step(library, num_envs):
    factor, rows = matrix(33, 40, seed=0), matrix(num_envs, 33, seed=1)
    out = torch.empty(num_envs, 40)
    multiply_by, factors, takes_out = products.step_product(num_envs, torch.float32, factor)
    product = multiply_by(rows, *factors, **({"out": out} if takes_out else {}))
    wanted = rows.double() @ factor.double()
    torch.testing.assert_close(product.double(), wanted, rtol=1e-5, atol=1e-5)


BYTES_OF_GATES = T * N * 4 * H * 4
"""Bytes of a window's float32 gates: what every cell keeps at least."""


@pytest.fixture(autouse=True)
def _no_free_buffers():
    free_buffers()
    yield
    free_buffers()


def test_the_next_window_takes_the_buffers_of_the_last(engine, cell):
    rnn = CELLS[cell](D, H)
    peaks = []
    for _ in range(3):
        with PeakMemory() as memory:
            gradients(rnn, engine)
        peaks.append(memory.peak)
    assert peaks[1] == peaks[2]
    assert peaks[0] - peaks[1] >= BYTES_OF_GATES


def test_buffers_are_free_after_the_backward_pass_though_its_results_live(engine, cell):
    rnn = CELLS[cell](D, H)
    outputs, _ = recurrent_scan(rnn, *window(), engine)
    outputs.square().sum().backward()
    with PeakMemory() as memory:
        recurrent_scan(rnn, *window(), engine)
    assert memory.peak < BYTES_OF_GATES
    assert outputs.grad_fn is not None


def test_a_buffer_of_inference_mode_is_not_kept(engine, cell):
    rnn = CELLS[cell](D, H)
    with torch.inference_mode():
        recurrent_scan(rnn, *window(), engine)
    assert all(torch.isfinite(g).all() for g in gradients(rnn, engine))

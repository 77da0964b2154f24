"""The Triton engine: what it launches, its tanh, and that its kernels compile for GPUs.

Launches are counted on a CPU; that a device agrees is seen in ``test_cuda_device.py``.
"""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.operations_recording import READS
from support.scan_cases import H, assert_all_close, check_tanh, make_case, values_and_gradients
from support.tolerances import EXACT_FLOAT64, WINDOW_FLOAT32

from rsl_tbptt.core import scan
from rsl_tbptt.core.hidden_state import from_tensors
from rsl_tbptt.core.scan import CELLS, num_states, recurrent_scan, triton, unchanged_weights
from rsl_tbptt.core.scan.cells import OF_TORCH
from scripts.benchmark.launches import Launches

pytestmark = pytest.mark.engines("triton", "triton_mm")

L, T = 2, 5
PASSES = ("forward", "backward")


@pytest.fixture
def launches(engine, cell, device):
    """Return a function that lists the operations and kernels of a scan, in order."""

    def launches(num_steps=T, done_rate=0.3, autocast=False, backward=True):
        dtype = torch.float32 if autocast else torch.float64
        case = make_case(cell, L, num_steps, 4, done_rate, dtype=dtype, device=device)
        with Launches() as launched:
            with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
                outputs, _ = recurrent_scan(*case, engine)
            if backward:
                outputs.sum().backward()
        return launched.names

    return launches


def test_the_host_never_asks_the_device(launches):
    launches()
    quiet = launches(done_rate=0.0)
    assert not [name for name in quiet if name.startswith(READS)]
    assert launches(done_rate=0.4) == quiet


@pytest.mark.parametrize("autocast", [False, True])
def test_a_step_is_a_kernel_for_each_layer_and_pass(launches, engine, cell, autocast, device):
    """All else that is launched does not depend on the number of steps.

    Without kernels that multiply, a step is a product and a kernel.
    """
    forward, backward = ["addmm_", f"{cell.lower()}_forward"], [f"{cell.lower()}_backward", "mm"]
    if engine == "triton":
        forward, backward = ([f"{cell.lower()}_{name}_with_product"] for name in PASSES)
    if device.type == "cuda":  # its backward pass has its own thread, where nothing is counted
        backward = []
    for with_backward, expected in ((False, forward), (True, forward + backward)):
        short, long = (
            launches(steps, 0.3, autocast, backward=with_backward) for steps in (T, T + 2)
        )
        more = {name: long.count(name) - short.count(name) for name in {*short, *long}}
        assert {name: n for name, n in more.items() if n} == dict.fromkeys(expected, 2 * L)


BEYOND_STEPS = {"LSTM": (5, 3), "GRU": (8, 4), "SRU": (7, 4)}
"""Launches of a layer's forward and backward pass besides a product and a kernel for each step."""


@pytest.mark.parametrize("needs_dx", [False, True])
def test_a_layer_launches_little_beyond_its_steps(engine, cell, device, needs_dx):
    """Accelerators wait a microsecond or more for each launch, however small."""
    rnn, inputs, state, starts = make_case(cell, 1, T, 4, 0.3, device=device)
    leaves = [*rnn.parameters(), *[inputs.requires_grad_(needs_dx)] * needs_dx]
    gradient = torch.ones(T, 4, H, dtype=inputs.dtype, device=device)
    with Launches() as launched:
        outputs, _ = recurrent_scan(rnn, inputs, state, starts, engine)
        num_forward = len(launched.names)
        torch.autograd.grad(outputs, leaves, gradient)
    forward, backward = launched.names[:num_forward], launched.names[num_forward:]
    of_steps = (
        (T, T) if engine == "triton" else (2 * T, 2 * T - 1)
    )  # step 0 has no product backward
    beyond = len(forward) - of_steps[0], len(backward) - of_steps[1]
    of_forward, of_backward = BEYOND_STEPS[cell]
    counted = slice(1) if device.type == "cuda" else slice(2)  # see above
    assert beyond[counted] == (of_forward, of_backward + needs_dx)[counted], launched.names


def test_windows_share_what_is_made_of_unchanged_weights(engine, cell, device):
    case = make_case(cell, 1, T, 4, 0.3, device=device)
    rnn: Any = case[0]
    seen = []
    with unchanged_weights(), torch.no_grad():
        for _ in range(2):
            with Launches() as launched:
                seen.append((recurrent_scan(*case, engine), launched.names))
        rnn.weight_ih_l0.mul_(2.0)
    of_weights = {"LSTM": ["add"], "GRU": ["new_zeros", "cat", "add", "cat"]}
    of_weights["SRU"] = of_weights["GRU"][1:]
    (first, of_first), (second, of_second) = seen
    assert of_first == of_weights[cell] + of_second
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    changed, expected = (recurrent_scan(*case, name)[0] for name in (engine, "reference"))
    torch.testing.assert_close(changed, expected, **EXACT_FLOAT64)


def test_a_change_of_what_the_backward_pass_reads_is_refused(engine, cell, device):
    case = make_case(cell, 1, 4, 3, 0.3, device=device)
    rnn: Any = case[0]
    outputs, _ = recurrent_scan(*case, engine)
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        outputs.mul_(2.0)
    with torch.no_grad():
        rnn.weight_hh_l0.mul_(2.0)
    total = outputs.sum()
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        total.backward()


def test_no_program_reads_what_another_writes(engine, cell, device, monkeypatch):
    """The interpreter runs one after the other, so a program would see the writes of those before.

    Programs of 8 units do not fill the last one; programs of 2 divide environments.
    """
    case = make_case(cell, 1, 4, 5, 0.3, device=device)
    monkeypatch.setattr(triton, "_BLOCK", 32)
    one_program = values_and_gradients(*case, engine)
    for size in (8, 2):
        monkeypatch.setattr(triton, "_BLOCK", size)
        assert_all_close(values_and_gradients(*case, engine), one_program, rtol=0, atol=0)


@pytest.mark.engines("triton")
@pytest.mark.parametrize("tile", [*triton.TILES, triton.Tile(16, 16, 4)])
def test_tiles_that_are_not_full(engine, cell, device, monkeypatch, tile):
    torch.manual_seed(0)
    dtype = torch.float32 if device.type == "cuda" else torch.float64  # no GPU's kernels have that
    rnn = CELLS[cell](3, 20, device=device).to(dtype)
    inputs = torch.randn(4, 21, 3, dtype=dtype, device=device)
    state = from_tensors([torch.randn(1, 21, 20).to(inputs) for _ in range(num_states(cell))])
    case = rnn, inputs, state, torch.rand(4, 21, device=device) < 0.3
    monkeypatch.setattr(triton, "TILES", (tile,) * 3)
    got, want = (values_and_gradients(*case, name, (2,)) for name in (engine, "reference"))
    assert_all_close(got, want, **EXACT_FLOAT64 if dtype == torch.float64 else WINDOW_FLOAT32)


def test_without_triton_the_engine_says_so(device, monkeypatch):
    monkeypatch.delattr(scan, "kernels", raising=False)
    monkeypatch.setitem(sys.modules, "rsl_tbptt.core.scan.kernels", None)
    with pytest.raises(NotImplementedError, match="scan_engine 'triton' needs the package triton"):
        scan.ENGINES["triton"].scan(*make_case("LSTM", 1, 4, 3, 0.3, device=device), ())


def tanh_of(x):
    """Return what a GRU makes of its candidate's input where nothing else is in its way."""
    num_envs = len(x)
    gates = x.new_zeros(1, num_envs, 4)
    gates[0, :, 0], gates[0, :, 2] = x, -math.inf
    states, operands = x.new_zeros(1, 2, num_envs, 1), x.new_zeros(1, num_envs, 1)
    starts = torch.zeros(1, num_envs, dtype=torch.bool, device=x.device)
    run = triton._of_units(OF_TORCH["GRU"], "forward", num_envs)
    run(gates, states, operands, starts, 0, 1, num_envs, 1)
    return states[0, 1].flatten()


def test_tanh_is_right_to_the_last_digits_over_all_sizes(engine, dtype, device):
    check_tanh(tanh_of, 8 * torch.finfo(dtype).eps, num=50_001, device=device, dtype=dtype)


@pytest.mark.long
def test_kernels_compile_for_gpus_without_spills_and_load_16_bytes_at_once(tmp_path):
    """A process of its own compiles them: in this one, they run in the interpreter."""
    pytest.importorskip("triton", reason="this torch came without Triton")
    variables = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    result = subprocess.run(
        [sys.executable, Path(__file__).parents[2] / "support" / "compile_kernels.py"],
        env={**variables, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    compiled = json.loads(result.stdout)
    assemblies, resources = compiled["assemblies"], compiled["resources"]
    assert len(assemblies) == 3 * 3 * len(CELLS) * 3  # targets, kernels, dtypes
    for name, assembly in assemblies.items():
        if re.match("(80|90) .* fp32 fp32", name):
            assert re.search(r"ld\.global\S*\.v4", assembly), name
    # Targets (AMD's have no TF32), kernels, sizes; inputs of cells, and the kernels of a step.
    assert len(resources) == (2 * 3 + 2) * 2 * len(CELLS) * 3 + 3 * (len(CELLS) + 5)
    # The assembler may put a few numbers aside to run one more program at the same time.
    assert {name: each for name, each in resources.items() if each[1] > 16} == {}
    assert max(shared for _, _, shared in resources.values()) <= 96 * 2**10

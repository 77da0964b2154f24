"""Every scan engine equals the reference, and the reference is right."""

import gc
import itertools
import weakref
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.scan_cases import (
    IN_MEMORY,
    LAYOUTS,
    assert_all_close,
    make_case,
    run_in_memory,
    values_and_gradients,
)
from support.tolerances import BFLOAT16, EXACT_FLOAT64, TORCH_ON_A_GPU_FLOAT32, WINDOW_FLOAT32

from rsl_tbptt.core.hidden_state import apply, as_tensors, from_tensors
from rsl_tbptt.core.scan import num_states, recurrent_scan

SAME: dict[str, Any] = {"rtol": 0, "atol": 0}
TOLERANCES = {torch.float64: EXACT_FLOAT64, torch.float32: WINDOW_FLOAT32}

hand_written = pytest.mark.engines("compiled", "triton", "triton_mm")


def tolerance_of(engine, dtype, device):
    """Return the tolerance of an engine compared with the reference in float64 on a CPU."""
    of_torch = engine == "reference" and device.type == "cuda" and dtype == torch.float32
    return TORCH_ON_A_GPU_FLOAT32 if of_torch else TOLERANCES[dtype]


def examples_for(engine, device):
    """Return the settings of a property: in the interpreter an example takes half a second."""
    if engine.startswith("triton") and device.type == "cpu":
        return settings(max_examples=6, phases=set(Phase) - {Phase.shrink})
    return settings()


def test_engine_equals_reference(engine, cell, dtype, device):
    @examples_for(engine, device)
    @given(
        num_layers=st.integers(1, 3),
        num_steps=st.integers(1, 9),
        num_envs=st.integers(1, 5),
        done_rate=st.sampled_from([0.0, 0.3, 1.0]),
        bias=st.booleans(),
        seed=st.integers(0, 100),
    )
    def equals_reference(bias, seed, **sizes):
        given_case = make_case(cell, **sizes, seed=seed, bias=bias, dtype=dtype, device=device)
        on_cpu = make_case(cell, **sizes, seed=seed, bias=bias)
        got = values_and_gradients(*given_case, engine)
        want = values_and_gradients(*on_cpu, "reference")
        assert_all_close(got, want, **tolerance_of(engine, dtype, device))

    equals_reference()


def test_cuts_are_windows_one_after_the_other(engine, cell, dtype, device):
    @examples_for(engine, device)
    @given(
        bounds=st.sets(st.integers(1, 6)).map(sorted),
        done_rate=st.sampled_from([0.0, 0.3]),
        seed=st.integers(0, 100),
    )
    def equals_windows(bounds, **sizes):
        case = make_case(cell, 2, 7, 3, **sizes, dtype=dtype, device=device)
        got = values_and_gradients(*case, engine, tuple(bounds))
        on_cpu = make_case(cell, 2, 7, 3, **sizes)
        want = values_and_gradients(*on_cpu, one_after_the_other(bounds))
        assert_all_close(got, want, **tolerance_of(engine, dtype, device))

    equals_windows()


def one_after_the_other(bounds):
    """Return a scan of windows by the reference, each from the detached state of the last."""

    def scan(rnn, inputs, state, starts):
        outputs = []
        for first, stop in itertools.pairwise([0, *bounds, len(inputs)]):
            state = state if first == 0 else apply(torch.Tensor.detach, state)
            window = slice(first, stop)
            output, state = recurrent_scan(rnn, inputs[window], state, starts[window], "reference")
            outputs.append(output)
        return torch.cat(outputs), state

    return scan


def test_the_reference_gradient_is_the_derivative(cell):
    rnn, inputs, state, starts = make_case(cell, 2, 3, 2, 0.3)

    def outputs_of(inputs, *rest):  # gradcheck perturbs the parameters in place
        given_state = from_tensors(rest[: num_states(cell)])
        outputs, last = recurrent_scan(rnn, inputs, given_state, starts, "reference")
        return outputs, *as_tensors(last)

    leaves = [t.clone().requires_grad_() for t in (inputs, *as_tensors(state))]
    assert torch.autograd.gradcheck(outputs_of, [*leaves, *rnn.parameters()])


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e6])
def test_poison_stays_in_its_episode(engine, cell, device, poison):
    rnn, inputs, state, starts = make_case(cell, 2, 8, 3, 0.0, device=device)
    starts[4, 1] = True
    healthy = torch.ones(8, 3, 1, dtype=torch.bool, device=device)
    healthy[:4, 1] = False

    def run():
        given_inputs = inputs.clone().requires_grad_()
        outputs, last = recurrent_scan(rnn, given_inputs, state, starts, engine)
        kept = outputs.masked_fill(~healthy, 0.0)
        (gradient,) = torch.autograd.grad(kept.sum(), given_inputs)
        return kept, gradient[healthy[..., 0]], *as_tensors(last)

    expected = run()
    inputs[:4, 1] = poison
    for tensor in as_tensors(state):
        tensor[:, 1] = poison
    assert_all_close(run(), expected, **SAME)


def test_tensors_are_read_by_their_strides(engine, cell, device):
    @examples_for(engine, device)
    @given(**IN_MEMORY)
    def equals_dense(num_layers, layouts, layouts_of_grads):
        rnn, inputs, state, starts = make_case(cell, num_layers, 4, 3, 0.3, device=device)
        case = (
            rnn,
            LAYOUTS[layouts["inputs"]](inputs),
            apply(LAYOUTS[layouts["state"]], state),
            LAYOUTS[layouts["starts"]](starts),
        )
        got = run_in_memory(case, lambda tensor: tensor, layouts_of_grads, engine)
        want = run_in_memory(case, torch.Tensor.contiguous, layouts_of_grads, "reference")
        assert_all_close(got, want, **EXACT_FLOAT64)

    equals_dense()


@pytest.mark.parametrize(
    "needed", ["inputs", "state", "weight_ih_l0", "weight_hh_l0", "bias_hh_l0"]
)
def test_one_gradient_alone(engine, cell, device, needed):
    rnn, inputs, state, starts = make_case(cell, 1, 5, 3, 0.3, device=device)
    leaves = {"inputs": inputs, "state": as_tensors(state)[-1], **dict(rnn.named_parameters())}
    for name, leaf in leaves.items():
        leaf.requires_grad_(name == needed)

    def gradient(engine):
        outputs, _ = recurrent_scan(rnn, inputs, state, starts, engine)
        return torch.autograd.grad(outputs.square().sum(), leaves[needed])

    assert_all_close(gradient(engine), gradient("reference"), **EXACT_FLOAT64)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(engine, cell, device, mode):
    rnn, inputs, state, starts = make_case(cell, 2, 4, 3, 0.3, device=device)
    expected, expected_last = recurrent_scan(rnn, inputs, state, starts, "reference")
    with mode():
        outputs, last = recurrent_scan(rnn, inputs, state, starts, engine)
    assert not outputs.requires_grad
    expected = [expected, *as_tensors(expected_last)]
    assert_all_close([outputs, *as_tensors(last)], expected, **EXACT_FLOAT64)


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_scans_alive_at_once_share_nothing(engine, cell, device, order):
    cases = [make_case(cell, 2, 4, 3, 0.3, seed, device=device) for seed in range(3)]
    results = [recurrent_scan(*case, engine=engine) for case in cases]

    def handed_out(index, outputs, last):
        weights = list(cases[index][0].parameters())
        return [outputs, *as_tensors(last), *torch.autograd.grad(outputs.square().sum(), weights)]

    found = {index: handed_out(index, *results[index]) for index in order}
    for index, got in found.items():  # after all backward passes
        want = handed_out(index, *recurrent_scan(*cases[index], engine="reference"))
        assert_all_close(got, want, **EXACT_FLOAT64)


@hand_written
def test_bfloat16_operands_keep_a_float32_state(engine, cell, device):
    case = make_case(cell, 2, 6, 4, 0.3, dtype=torch.float32, device=device)
    expected = values_and_gradients(*case, "reference")
    with torch.autocast(device.type, dtype=torch.bfloat16):
        results = values_and_gradients(*case, engine)
    assert all(result.dtype == torch.float32 for result in results)
    assert not torch.allclose(results[0], expected[0], **WINDOW_FLOAT32)
    assert_all_close(results, expected, **BFLOAT16)


@hand_written
def test_autocast_around_the_backward_pass_alone_has_no_effect(engine, cell, device):
    rnn, inputs, _, starts = make_case(cell, 1, 4, 3, 0.3, dtype=torch.float32, device=device)
    inputs.requires_grad_()

    def gradient(enabled):
        outputs, _ = recurrent_scan(rnn, inputs, None, starts, engine)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled):
            return torch.autograd.grad(outputs.sum(), [inputs, *rnn.parameters()])

    assert_all_close(gradient(True), gradient(False), rtol=0, atol=0)


@hand_written
def test_a_second_and_a_double_backward_pass_are_refused(engine, cell, device):
    rnn, inputs, state, starts = make_case(cell, 1, 3, 2, 0.0, device=device)
    outputs, _ = recurrent_scan(rnn, inputs.requires_grad_(), state, starts, engine)
    for leaf in (inputs, rnn.get_parameter("weight_hh_l0")):
        with pytest.raises(RuntimeError, match="create_graph=True"):
            torch.autograd.grad(outputs.sum(), leaf, create_graph=True)
    outputs, _ = recurrent_scan(rnn, inputs, state, starts, engine)
    outputs.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        outputs.sum().backward()


@hand_written
def test_a_scan_that_is_forgotten_is_freed_at_once(engine, cell, device):
    outputs, last = recurrent_scan(*make_case(cell, 1, 3, 2, 0.3, device=device), engine)
    scan_node = weakref.ref(outputs.grad_fn)
    gc.disable()
    try:
        del outputs, last
        assert scan_node() is None
    finally:
        gc.enable()

"""Passes written out by hand: their precision, what they refuse and what they leave behind."""

import gc
import warnings
import weakref

import pytest
import torch
from support.scan_cases import assert_all_close, make_case, values_and_gradients
from support.tolerances import BFLOAT16, WINDOW_FLOAT32

from rsl_tbptt.core.scan import recurrent_scan, selection

pytestmark = pytest.mark.engines(hand_written=True)


def test_bfloat16_operands_keep_a_float32_state(engine, cell, device):
    case = make_case(cell, 2, 6, 4, 0.3, dtype=torch.float32, device=device)
    expected = values_and_gradients(*case, "reference")
    with torch.autocast(device.type, dtype=torch.bfloat16):
        results = values_and_gradients(*case, engine.name)
    assert all(result.dtype == torch.float32 for result in results)
    assert not torch.allclose(results[0], expected[0], **WINDOW_FLOAT32)
    assert_all_close(results, expected, **BFLOAT16)


def test_autocast_around_the_backward_pass_alone_has_no_effect(engine, cell, device):
    rnn, inputs, _, starts = make_case(cell, 1, 4, 3, 0.3, dtype=torch.float32, device=device)
    inputs.requires_grad_()

    def gradient(enabled):
        outputs, _ = recurrent_scan(rnn, inputs, None, starts, engine.name)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled):
            return torch.autograd.grad(outputs.sum(), [inputs, *rnn.parameters()])

    assert_all_close(gradient(True), gradient(False), rtol=0, atol=0)


def test_a_second_backward_pass_is_refused(engine, cell, device):
    outputs, _ = recurrent_scan(*make_case(cell, 1, 3, 2, 0.0, device=device), engine.name)
    outputs.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        outputs.sum().backward()


@pytest.mark.parametrize("leaf", ["inputs", "weight_hh_l0"])
def test_double_backward_is_refused(engine, cell, device, leaf):
    rnn, inputs, state, starts = make_case(cell, 1, 3, 2, 0.0, device=device)
    leaves = {"inputs": inputs.requires_grad_(), **dict(rnn.named_parameters())}
    outputs, _ = recurrent_scan(rnn, inputs, state, starts, engine.name)
    with pytest.raises(RuntimeError, match="create_graph=True"):
        torch.autograd.grad(outputs.sum(), leaves[leaf], create_graph=True)


@pytest.mark.parametrize("autocast", [False, True])
def test_the_check_of_auto_passes(engine, cell, dtype, device, autocast):
    with warnings.catch_warnings(), torch.autocast(device.type, torch.bfloat16, enabled=autocast):
        warnings.simplefilter("error")
        assert selection.first_that_works(cell, device, dtype, [engine]) is engine


def test_a_scan_that_is_forgotten_is_freed_at_once(engine, cell, device):
    outputs, last = recurrent_scan(*make_case(cell, 1, 3, 2, 0.3, device=device), engine.name)
    scan_node = weakref.ref(outputs.grad_fn)
    gc.disable()
    try:
        del outputs, last
        assert scan_node() is None
    finally:
        gc.enable()

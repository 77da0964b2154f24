"""``auto`` takes what was seen to work."""

import warnings

import pytest
import torch

from rsl_tbptt.core.hidden_state import as_tensors
from rsl_tbptt.core.scan import CELLS, ENGINES, Engine, Held, HeldInputs, reference, selection
from rsl_tbptt.core.scan.layers import Scan

CPU = torch.device("cpu")
FUSED = ENGINES["fused"]


def raises(*arguments):
    raise NotImplementedError("no such kernel here")


def wrong_values(*arguments):
    outputs, state = reference.scan(*arguments)
    return 1.01 * outputs, state


def wrong_last_state(*arguments):
    outputs, state = reference.scan(*arguments)
    hidden, cell = as_tensors(state)
    return outputs, (hidden, 1.01 * cell)


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


def choose(scans: dict[str, Scan], dtype=torch.float32, cell="lstm"):
    """Return the name of what is chosen among engines with these scans."""
    engines = (Engine(name, dict.fromkeys(CELLS, scan)) for name, scan in scans.items())
    return selection.first_that_works(CELLS[cell], CPU, dtype, engines).name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "wrong",
    [wrong_values, wrong_last_state, wrong_gradient, ignores_episode_starts, RightOnce()],
)
def test_the_first_engine_that_agrees_is_taken(wrong, dtype):
    if isinstance(wrong, RightOnce):
        wrong.first = True
    candidates = {"raises": raises, "wrong": wrong, "right": FUSED.cells["lstm"], "never": raises}
    with pytest.warns(UserWarning, match="takes 'right' for a LSTM") as caught:
        assert choose(candidates, dtype) == "right"
    (warning,) = caught
    message = str(warning.message)
    assert "'raises' (NotImplementedError: no such kernel here)" in message
    assert "'wrong' (AssertionError: Tensor-likes are not close" in message
    assert "'never'" not in message


def ignores_held_inputs(rnn, inputs, state, episode_starts):
    if isinstance(inputs, HeldInputs):
        zeros = tuple(Held(0 * held.rows, held.places) for held in inputs.held)
        inputs = HeldInputs(inputs.own, zeros).joined()
    return reference.scan(rnn, inputs, state, episode_starts)


@pytest.mark.parametrize("knows_held_inputs", [False, True])
def test_held_inputs_are_checked_where_they_are_taken(knows_held_inputs):
    engine = Engine(
        "wrong",
        dict.fromkeys(CELLS, ignores_held_inputs),
        knows_held_inputs=knows_held_inputs,
    )
    tolerance = selection._TOLERANCES[torch.float32]
    failure = selection._failure(engine, CELLS["lstm"], CPU, torch.float32, tolerance)
    assert (failure is not None) == knows_held_inputs


@pytest.mark.engines(name="fused")
@pytest.mark.parametrize("operand_dtype", [None, torch.bfloat16])
def test_the_tolerance_lets_rounding_pass(engine, cell, dtype, operand_dtype):
    for seed in range(20):
        with torch.autocast("cpu", dtype=operand_dtype, enabled=operand_dtype is not None):
            effective = operand_dtype or dtype
            tolerance = selection._TOLERANCES[effective] / 2
            selection._check(engine, cell, CPU, dtype, tolerance, seed)


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
        choose({"counting": engine}, cell="gru")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            choose({"counting": engine})
            choose({"counting": engine}, torch.float64)
        assert engine.count == 10


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_check_leaves_no_trace(mode):
    state = torch.get_rng_state()
    with mode():
        assert choose({"fused": FUSED.cells["lstm"]}) == "fused"
        assert not torch.is_grad_enabled()
    torch.testing.assert_close(torch.get_rng_state(), state, rtol=0, atol=0)

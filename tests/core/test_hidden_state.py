"""States of GRU (tensor), LSTM (pair) and feed-forward models (None) alike."""

import pytest
import torch
from support.inside import assert_same

from rsl_tbptt.core import hidden_state

TENSOR = torch.arange(12.0).view(2, 3, 2)
STATES = [TENSOR, (TENSOR, TENSOR + 1), None]


@pytest.mark.parametrize("state", STATES)
def test_select_and_concatenate_are_inverse(state):
    pieces = [hidden_state.select_envs(state, slice(i, i + 1)) for i in range(3)]
    joined = hidden_state.concatenate_envs(pieces)
    assert_same(joined, state)


@pytest.mark.parametrize("state", STATES[:2])
def test_clear_zeroes_the_named_environments_only(state):
    cleared = hidden_state.clear(state, torch.tensor([False, True, False]))
    expected = hidden_state.apply(torch.clone, state)
    for tensor in hidden_state.as_tensors(expected):
        tensor[:, 1] = 0
    assert_same(cleared, expected)


def test_clear_selects_so_that_nan_survives_neither_in_value_nor_gradient():
    state = torch.full((1, 2, 2), float("nan"), requires_grad=True)
    (cleared,) = hidden_state.as_tensors(hidden_state.clear(state, torch.tensor([True, True])))
    (cleared * float("inf")).nan_to_num().sum().backward()
    assert (cleared == 0).all()
    assert (state.grad == 0).all()


def test_clear_non_finite_clears_an_environment_whole_and_in_both_tensors():
    hidden, cell = torch.ones(1, 3, 2), torch.ones(1, 3, 2)
    cell[0, 1, 0] = float("inf")
    cleared = hidden_state.clear_non_finite((hidden, cell))
    hidden, cell = hidden_state.as_tensors(cleared)
    assert hidden[0].tolist() == cell[0].tolist() == [[1, 1], [0, 0], [1, 1]]
    assert hidden_state.clear_non_finite(None) is None


def test_clone_leaves_the_graph_and_inference_mode():
    with torch.inference_mode():
        state = torch.ones(1, 2, 3)
    (cloned,) = hidden_state.as_tensors(hidden_state.clone(state))
    weight = torch.ones(3, requires_grad=True)
    (cloned * weight).sum().backward()
    assert weight.grad is not None

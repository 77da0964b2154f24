"""The state of recurrent layers: a tensor (GRU), a pair (LSTM, SRU), or None before the first step.

No state has more than two tensors. No other module handles the difference. Tensors have shape
(L, N, H): layers, environments, hidden size.
"""

from collections.abc import Callable, Sequence

import torch

HiddenState = torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None
"""GRU: a tensor of shape (L, N, H). LSTM: hidden and cell state, of that shape each. None: zeros"""


def as_tensors(state: HiddenState) -> tuple[torch.Tensor, ...]:
    """Return the tensors of ``state``, of any shape, as a tuple; an empty one for None."""
    if state is None:
        return ()
    return state if isinstance(state, tuple) else (state,)


def from_tensors(tensors: Sequence[torch.Tensor]) -> HiddenState:
    """Return the state made of these tensors, of any shape: the inverse of ``as_tensors``."""
    if not tensors:
        return None
    return tensors[0] if len(tensors) == 1 else (tensors[0], tensors[1])


def apply(function: Callable[..., torch.Tensor], state: HiddenState) -> HiddenState:
    """Apply ``function`` to each tensor of ``state``, of any shape, and keep its structure."""
    return from_tensors([function(tensor) for tensor in as_tensors(state)])


def detach(state: HiddenState) -> HiddenState:
    """Cut ``state`` from the graph: the truncation of truncated BPTT."""
    return apply(torch.Tensor.detach, state)


def clone(state: HiddenState) -> HiddenState:
    """Copy ``state`` out of the graph and out of inference mode, so that autograd can save it."""
    return apply(lambda tensor: tensor.detach().clone(), state)


def clear(state: HiddenState, where: torch.Tensor) -> HiddenState:
    """Zero the state of the environments where ``where`` is True, in value and gradient.

    The values are replaced, not multiplied: a NaN or inf of a cleared environment does not survive.

    Args:
        state: State of N environments.
        where: Environments to clear. Shape: (N,), bool.

    Returns:
        A new state.
    """
    mask = where.unsqueeze(-1)
    return apply(lambda tensor: tensor.masked_fill(mask, 0.0), state)


def select_envs(state: HiddenState, envs: slice | torch.Tensor) -> HiddenState:
    """Return the state of some environments, shape (L, n, H).

    A slice gives a view; indices of shape (n,) give a copy.
    """
    return apply(lambda tensor: tensor[:, envs], state)


def concatenate_envs(states: Sequence[HiddenState]) -> HiddenState:
    """Join the states of consecutive environments: the inverse of ``select_envs``.

    If only some states are None, they become zeros of the others' size.
    """
    first = next((state for state in states if state is not None), None)
    if len(states) == 1 or first is None:
        return first
    zeros = apply(torch.zeros_like, first)
    known = [as_tensors(zeros if state is None else state) for state in states]
    return from_tensors([torch.cat(parts, dim=1) for parts in zip(*known, strict=True)])


def clear_non_finite(state: HiddenState) -> HiddenState:
    """Zero the state of each environment that has a NaN or inf in it."""
    if state is None:
        return None
    finite = [torch.isfinite(tensor).all(dim=-1).all(dim=0) for tensor in as_tensors(state)]
    return clear(state, ~torch.stack(finite).all(dim=0))

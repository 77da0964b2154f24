"""Normalised gradient accumulation: backward per window and environment chunk, exact weights.

An optimiser step minimises ``(1 / divisor) * sum of per-sample losses`` over the windows of its
group and all environments. Each window of each chunk of environments is run forward and backward on
its own and its graph is freed, so memory does not depend on the length of the rollout, and the
gradient does not depend on how the work was cut: sums add up, and the divisor is known beforehand.
"""

import itertools
from collections.abc import Callable
from typing import Any

import torch

from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.losses import LossSum
from rsl_tbptt.core.rollout import Rollout, Stretches
from rsl_tbptt.core.windows import Group, Window

Replay = Callable[[Any, HiddenState, torch.Tensor], tuple[tuple[torch.Tensor, ...], HiddenState]]
"""Runs a model over observations (K, n) from a state with ``episode_starts`` (K, n); returns its
outputs, each of leading shape (K, n), and the state after the last step. Gradients reach both."""

Loss = Callable[..., LossSum]
"""Maps outputs and labels to (sum, count)."""


def accumulate_group(
    group: Group,
    rollout: Rollout | Stretches,
    state: HiddenState,
    replay: Replay,
    loss: Loss,
    divisor: float | torch.Tensor,
    num_env_chunks: int = 1,
) -> tuple[HiddenState, torch.Tensor]:
    """Add the gradient of one optimiser step's loss to the parameters' ``.grad``.

    Args:
        group: Windows of the optimiser step, in time order.
        rollout: The rollout, or stretches of one.
        state: State before the first window, shape (L, N, H) or a pair.
        replay: Runs the model over a window.
        loss: The loss.
        divisor: M, what the sum of per-sample losses is divided by.
        num_env_chunks: Number of environment chunks run one after the other.

    Returns:
        The detached state before the next group's first window, and the sum of the per-sample
        losses (scalar, detached, on the device).
    """
    chunks = env_chunks(rollout.num_envs, num_env_chunks)
    losses = []
    for window in group:
        carried = []
        for envs in chunks:
            piece = rollout.envs(envs).steps(window.start, window.stop)
            with torch.set_grad_enabled(window.num_loss_steps > 0):
                chunk_state = hidden_state.select_envs(state, envs)
                outputs, next_state = _forward(window, piece, chunk_state, replay)
            if window.num_loss_steps > 0:
                losses.append(_backward(window, piece, outputs, loss, divisor))
            carried.append(next_state)
        state = hidden_state.concatenate_envs(carried)
    return state, torch.stack(losses).sum() if losses else torch.zeros(())


def env_chunks(num_envs: int, num_chunks: int) -> list[slice]:
    """Cut environments into at most ``num_chunks`` slices whose sizes differ by at most one."""
    num_chunks = min(num_chunks, num_envs)
    bounds = [num_envs * i // num_chunks for i in range(num_chunks + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(bounds)]


def _forward(
    window: Window, piece: Rollout, state: HiddenState, replay: Replay
) -> tuple[tuple[torch.Tensor, ...], HiddenState]:
    """Run a window's steps; return its outputs and the detached state before ``window.carry``."""
    carry, stop = window.carry - window.start, window.stop - window.start
    outputs_of_parts, carried = [], state
    for first, last in ((0, carry), (carry, stop)):
        if first < last:
            part = piece.steps(first, last)
            outputs, state = replay(part.obs, state, part.episode_starts)
            outputs_of_parts.append(outputs)
        if last == carry:
            carried = hidden_state.detach(state)
    return tuple(torch.cat(parts) for parts in zip(*outputs_of_parts, strict=True)), carried


def _backward(
    window: Window,
    piece: Rollout,
    outputs: tuple[torch.Tensor, ...],
    loss: Loss,
    divisor: float | torch.Tensor,
) -> torch.Tensor:
    """Backpropagate the loss of the window's newest steps; return its detached sum."""
    first = window.loss_start - window.start
    newest = tuple(output[first:] for output in outputs)
    loss_sum, _ = loss(*newest, *(label[first:] for label in piece.labels))
    (loss_sum / divisor).backward()
    return loss_sum.detach()

"""Normalised gradient accumulation: backward per window and micro-batch, exact weights.

An optimiser step minimises ``(coef / divisor) * sum of per-sample losses`` over the windows
of its group and all environments. Each window of each micro-batch is run forward and backward by
itself and its graph is freed, so memory stays bounded. The gradient does not depend on how the work
is split: sums add up and the divisor is known beforehand.

On a CPU, micro-batches are small enough for the caches. On accelerators the whole mini-batch is one
micro-batch. Short windows of few environments run several at once.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.rollout import Batch, Rollout, Samples
from rsl_tbptt.core.windows import Group, Window, joined

Outputs = tuple[torch.Tensor, ...]
"""Outputs of a model for K steps of n environments. Leading shape of each: (K, n)."""

Replay = Callable[..., tuple[Outputs, HiddenState]]
"""Runs a model over observations (K, n) from a state with ``episode_starts`` (K, n). Returns its
outputs and the state after the last step; gradients reach both. For joined windows it also gets
``cuts``: steps, counted from the first, before which the gradient of the state stops."""


@dataclass(frozen=True)
class SampleLosses:
    """The losses of K steps of n environments."""

    trained: torch.Tensor
    """Losses to minimise, one per sample. Shape: (K, n)."""

    reported: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Values by name that are only summed up. Shape: (K, n) each."""


Loss = Callable[[Outputs, Samples], SampleLosses]
"""Compares the outputs of K steps of n environments with their labels."""


def accumulate_group(
    group: Group,
    rollout: Rollout | Batch,
    state: HiddenState,
    replay: Replay,
    loss: Loss,
    divisor: float | torch.Tensor,
    num_micro_batches: int = 1,
    coef: float = 1.0,
    windows_at_once: int = 1,
) -> tuple[HiddenState, dict[str, torch.Tensor]]:
    """Add the gradient of one optimiser step's loss to the parameters' ``.grad``.

    Under ``torch.no_grad`` only sums and state are computed.

    Args:
        group: Windows of the optimiser step, in time order.
        rollout: The rollout, or a batch of one.
        state: State before the first window, shape (L, N, H) or a pair.
        replay: Runs the model over a window.
        loss: The loss.
        divisor: M, the divisor of the sum of per-sample losses.
        num_micro_batches: Number of micro-batches that the environments are split into.
        coef: Weight of the loss compared with others.
        windows_at_once: Windows that are run as one, with the same gradient; see ``joined``.

    Returns:
        The detached state before the next group's first window, and the loss's reported values
        summed over samples (scalars, detached, on the device); empty if no step enters the loss.
    """
    micro_batches = split_envs(rollout.num_envs, num_micro_batches)
    sums: list[dict[str, torch.Tensor]] = []
    for window in joined(group, windows_at_once):
        carried = []
        for envs in micro_batches:
            piece = rollout.envs(envs).steps(window.start, window.stop)
            # The state before step ``carry`` begins the next window, so a pass ends there.
            carry, stop = window.carry - window.start, window.stop - window.start
            cuts = tuple(cut - window.start for cut in window.cuts)
            joined_windows: Any = {"cuts": cuts} if cuts else {}
            outputs_of_parts, state_of_envs = [], hidden_state.select_envs(state, envs)
            next_state = state_of_envs
            with torch.set_grad_enabled(torch.is_grad_enabled() and window.num_loss_steps > 0):
                for first, last in ((0, carry), (carry, stop)):
                    if first < last:
                        part = piece.steps(first, last)
                        outputs, state_of_envs = replay(
                            part.obs, state_of_envs, part.episode_starts, **joined_windows
                        )
                        outputs_of_parts.append(outputs)
                    if last == carry:
                        next_state = hidden_state.detach(state_of_envs)
            carried.append(next_state)
            if window.num_loss_steps > 0:
                sums.append(_backward(window, piece, outputs_of_parts, loss, divisor, coef))
        state = hidden_state.concatenate_envs(carried)
    if len(sums) == 1:
        return state, sums[0]
    names = sums[0] if sums else ()
    return state, {name: torch.stack([part[name] for part in sums]).sum() for name in names}


def _backward(
    window: Window,
    piece: Rollout,
    outputs_of_parts: Sequence[Outputs],
    loss: Loss,
    divisor: float | torch.Tensor,
    coef: float,
) -> dict[str, torch.Tensor]:
    """Backpropagate the loss of the window's newest steps; return its reported sums."""
    (outputs, *others), first = outputs_of_parts, window.loss_start - window.start
    if others:
        outputs = tuple(torch.cat(parts) for parts in zip(outputs, *others, strict=True))
    if first:  # a slice from 0 on is a copy in the backward pass
        outputs = tuple(output[first:] for output in outputs)
    cuts = tuple(cut - window.loss_start for cut in window.cuts)
    losses = loss(outputs, Samples(piece.steps(first, piece.num_steps), cuts))
    trained = losses.trained
    if torch.is_grad_enabled() and trained.requires_grad:  # a model may be frozen
        gradient = 1.0 / divisor * coef  # of each loss in their scaled sum
        if not isinstance(gradient, torch.Tensor):
            gradient = trained.new_full((), gradient)
        trained.backward(gradient.expand_as(trained))
    with torch.no_grad():
        return {name: values.sum() for name, values in losses.reported.items()}


_MIN_ENVS = 512
"""In smaller micro-batches, packing the weights takes too much of each step."""

_MIN_SAMPLES = 2048
"""Shorter windows need more environments to amortise the fixed cost of a micro-batch."""

_SAMPLES_AT_ONCE = 4096
"""Limit of samples for running several windows at once, which amortises that cost: more samples
would take memory and hardly be faster."""

_SAMPLES_AT_ONCE_ON_A_GPU = 2**15
"""The same on an accelerator. There the host is the limit: on an H200 an update of small
mini-batches took nearly twice as long in two windows as in one."""

_ENVS_THAT_SEE = 64
"""Environments of a micro-batch for models with images. Their encoders take most of the time and
split their work themselves, so more environments would take memory without being faster."""

_UNKNOWN_CACHE = 2**20
_CACHE_SIZE = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")
"""Linux states the size here, for example "2048K"."""


def split_envs(num_envs: int, num_parts: int) -> list[slice]:
    """Split environments into at most ``num_parts`` slices whose sizes differ by at most one."""
    num_parts = min(num_parts, num_envs)
    bounds = [num_envs * i // num_parts for i in range(num_parts + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(bounds)]


def best_num_micro_batches(
    num_envs: int,
    num_steps: int,
    sample_bytes: int,
    device: torch.device,
    *,
    sees_frames: bool = False,
) -> int:
    """Return the best number of micro-batches for N environments and windows of K steps.

    The values of one step of a micro-batch should fit the second-level caches of the threads in
    use, and a micro-batch should be large enough to be worth its overhead.

    Args:
        num_envs: Number of environments N.
        num_steps: Steps of a window K.
        sample_bytes: Bytes that one step of one environment computes: ``bytes_per_sample``.
        device: Device of the update.
        sees_frames: Whether the model has frame encoders.

    Returns:
        The number of balanced micro-batches; 1 on accelerators.
    """
    if device.type != "cpu":
        return 1
    if sees_frames:
        return max(1, round(num_envs / _ENVS_THAT_SEE))
    fitting = torch.get_num_threads() * _second_level_cache(_CACHE_SIZE) // sample_bytes
    return max(1, round(num_envs / max(_MIN_ENVS, _MIN_SAMPLES // num_steps, fitting)))


def best_num_windows(num_envs: int, num_steps: int, device: torch.device) -> int:
    """Return how many windows of K steps of a micro-batch to run at once.

    Args:
        num_envs: Number of environments of the micro-batch.
        num_steps: Steps of a window K.
        device: Device of the update.

    Returns:
        The number of windows.
    """
    most = _SAMPLES_AT_ONCE if device.type == "cpu" else _SAMPLES_AT_ONCE_ON_A_GPU
    return max(1, most // (num_steps * num_envs))


def bytes_per_sample(model: nn.Module) -> int:
    """Estimate the bytes that a step of one environment computes: a value per row of a matrix."""
    matrices = (weight for weight in model.parameters() if weight.dim() > 1)
    return max(1, sum(len(weight) * weight.element_size() for weight in matrices))


@functools.cache
def _second_level_cache(described: Path) -> int:
    """Return the size of one core's second-level cache in bytes, 1 MiB if it is unknown."""
    text = described.read_text().strip() if described.exists() else ""
    return int(text[:-1]) * 2**10 if text.endswith("K") else _UNKNOWN_CACHE

"""How many sequences a memory of rollouts can hold, and how many frames of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rsl_tbptt.algorithms.distillation.rollout_memory import bytes_per_sequence
from rsl_tbptt.algorithms.update.frames import frames_of, shown_once, steps_of
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.rollout import Rollout


@dataclass(frozen=True)
class MemorySize:
    """What a memory of rollouts is allocated for."""

    capacity: int
    """Sequences of the past."""

    num_frames: Mapping[str, int]
    """Frames of the past and of the newest rollout, by group."""

    num_bytes: float
    """Of all, the newest rollout's included."""


def memory_size(
    newest: Rollout,
    state: HiddenState,
    *,
    max_sequences: int,
    max_gb: float | None,
    frames_per_sequence: Mapping[str, float],
) -> MemorySize:
    """Fit a memory into the bytes there are.

    Args:
        newest: The newest rollout. T steps of N environments.
        state: The state before it. Shape: (L, N, H), or a pair of them; None without memory.
        max_sequences: Sequences of the past that are to be kept, at least 1.
        max_gb: Gigabytes of 10^9 bytes that may be taken. None does not limit them.
        frames_per_sequence: How many frames of each group a sequence is expected to have, of T at
            most. A memory holds any, but fewer sequences where there are more.

    Returns:
        The size. There is always room for a newest rollout of nothing but new frames.

    Raises:
        ValueError: If there is no room for a sequence of the past.
    """
    num_steps, num_envs = newest.num_steps, newest.num_envs
    frames = {group: each.nbytes / len(each) for group, each in frames_of(newest.obs).items()}
    own = bytes_per_sequence(newest, state)
    at_most = num_steps * sum(frames.values())
    expected = sum(frames_per_sequence[group] * size for group, size in frames.items())
    capacity, spare = max_sequences, float("inf")
    if max_gb is not None:
        fitting = min(max_gb * 1e9 / (own + expected), (max_gb * 1e9 - num_envs * at_most) / own)
        capacity = min(capacity, int(fitting) - num_envs)
        spare = max_gb * 1e9 - (capacity + num_envs) * own - num_envs * at_most
    if capacity < 1:
        least = (num_envs + 1) * (own + at_most) / 1e9
        raise ValueError(
            f"memory_gb is {max_gb:g}, expected at least {least:.3g}, for the newest rollout and"
            " one sequence of the past: None does not limit it, and memory_rollouts=0 keeps"
            " nothing."
        )
    num_frames = {
        group: num_steps * num_envs
        + int(min(num_steps * capacity, spare * frames_per_sequence[group] / expected))
        for group in frames
    }
    taken = sum(num_frames[group] * size for group, size in frames.items())
    return MemorySize(capacity, num_frames, (capacity + num_envs) * own + taken)


def new_frames(rollout: Rollout) -> dict[str, float]:
    """Return how many frames each group has in a sequence, on average (waits for the device)."""
    steps = steps_of(rollout.obs)
    return {
        group: len(shown_once(steps[group])[0]) / rollout.num_envs
        for group in frames_of(rollout.obs)
    }

"""Observations whose frames stand apart, each once: steps only say which frame they show.

A camera that is slower than control shows the same frame for several steps. Which frames are new is
found by comparing each with the one before, so no one has to say how slow it is, and environments
need not see new ones at the same step::

    step               0  1  2  3  4  5
    shown, env 0       0  0  0  6  6  6      rows of the frames, which are a rollout's storage
    shown, env 1       1  1  5  5  5 11      (T * N rows) or a memory's, where none is twice

Windows and mini-batches are cut of these rows alone, so that frames are read where they lie.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from tensordict import TensorDict


@dataclass(frozen=True)
class FrameObs:
    """Observations of leading shape (T, N), frames apart."""

    steps: TensorDict
    """The groups. Those of frames hold rows of ``frames``. Shape: (T, N), int64."""

    frames: Mapping[str, torch.Tensor]
    """Frames by group. Shape: (F, ...)."""

    def __getitem__(self, index: Any) -> FrameObs:
        """Return some steps of some environments; the frames stay as they are."""
        return replace(self, steps=self.steps[index])

    def flatten(self, first: int, last: int) -> FrameObs:
        """Return the observations with some of their leading dimensions as one."""
        return replace(self, steps=self.steps.flatten(first, last))

    def unsqueeze(self, dim: int) -> FrameObs:
        """Return the observations with one more leading dimension."""
        return replace(self, steps=self.steps.unsqueeze(dim))


def frames_apart(obs: TensorDict | FrameObs, groups: Iterable[str]) -> FrameObs:
    """Take frames out of observations, without copies where memory is in one piece.

    Args:
        obs: Observations of leading shape (T, N); returned as they are if frames stand apart.
        groups: The groups that are frames.

    Returns:
        The observations, in which all frames are new.
    """
    if isinstance(obs, FrameObs):
        return obs
    steps, frames = obs.copy(), {group: obs[group].flatten(0, 1) for group in groups}
    for group, rows in frames.items():
        steps[group] = torch.arange(len(rows), device=rows.device).view(obs.batch_size)
    return FrameObs(steps, frames)


def find_held_frames(*seen: TensorDict | FrameObs) -> None:
    """Let steps whose frame equals the one before show that one.

    Args:
        *seen: What :func:`frames_apart` made of one rollout for each of its models, of leading
            shape (T, N). A group that several of them see is compared once.
    """
    found: dict[str, torch.Tensor] = {}
    for obs in seen:
        for group, frames in frames_of(obs).items():
            shown = steps_of(obs)[group]
            if group not in found:
                frames = frames.view(*shown.shape, -1)
                for step in range(1, len(shown)):  # all at once would take memory like the frames
                    new = (frames[step] != frames[step - 1]).any(-1)
                    shown[step] = torch.where(new, shown[step], shown[step - 1])
                found[group] = shown
            shown.copy_(found[group])


def shown_once(shown: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the frames that a window shows, each once for as long as an environment shows it.

    The host waits for their number.

    Args:
        shown: Rows of frames. Shape: (K, n).

    Returns:
        Rows of frames, shape (R,), and for each step its place among them, shape (K, n).
    """
    new = torch.ones_like(shown, dtype=torch.bool)
    torch.ne(shown[1:], shown[:-1], out=new[1:])
    numbers = (new.flatten().cumsum(0) - 1).view(shown.shape)
    # The last new one of an environment has the highest number so far.
    places = torch.where(new, numbers, 0).cummax(0).values
    return shown[new], places


def frames_of(obs: TensorDict | FrameObs) -> Mapping[str, torch.Tensor]:
    """Return the frames that stand apart, by group, (F, ...) each; none of a TensorDict."""
    return obs.frames if isinstance(obs, FrameObs) else {}


def steps_of(obs: TensorDict | FrameObs) -> TensorDict:
    """Return all else: the groups, of leading shape (T, N), those of frames as their rows."""
    return obs.steps if isinstance(obs, FrameObs) else obs

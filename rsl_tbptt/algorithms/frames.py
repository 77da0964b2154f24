"""Frames of a rollout, such as images, stored once for all steps that show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from tensordict import TensorDict


@dataclass(frozen=True)
class FrameObs:
    """Observations of leading shape (T, N), with frames stored separately."""

    steps: TensorDict
    """All groups; groups of frames hold row numbers of ``frames``. Shape: (T, N), int64."""

    frames: Mapping[str, torch.Tensor]
    """Frames by group. Shape: (F, ...)."""

    def __getitem__(self, index: Any) -> FrameObs:
        """Return some steps of some environments; the frames do not change."""
        return replace(self, steps=self.steps[index])

    def flatten(self, first: int, last: int) -> FrameObs:
        """Return the observations with some of their leading dimensions joined into one."""
        return replace(self, steps=self.steps.flatten(first, last))


def separate_frames(obs: TensorDict | FrameObs, groups: Iterable[str]) -> FrameObs:
    """Separate frames from observations, without copies if their memory is in one piece.

    Args:
        obs: Observations of leading shape (T, N); returned unchanged if frames are separate.
        groups: The groups of frames.

    Returns:
        The observations; every frame counts as new.
    """
    if isinstance(obs, FrameObs):
        return obs
    steps, frames = obs.copy(), {group: obs[group].flatten(0, 1) for group in groups}
    for group, rows in frames.items():
        steps[group] = torch.arange(len(rows), device=rows.device).view(obs.batch_size)
    return FrameObs(steps, frames)


def deduplicate_frames(*observed: TensorDict | FrameObs) -> None:
    """Deduplicate frames: a step whose frame equals the previous one refers to that one.

    Args:
        *observed: Results of :func:`separate_frames` for one rollout, one per model, of leading
            shape (T, N). A group that several models see is compared once.
    """
    shown_of: dict[str, torch.Tensor] = {}
    for obs in observed:
        for group, frames in frames_of(obs).items():
            shown = steps_of(obs)[group]
            if group not in shown_of:
                frames = frames.view(*shown.shape, -1)
                for step in range(1, len(shown)):  # all at once would double the frames' memory
                    new = (frames[step] != frames[step - 1]).any(-1)
                    shown[step] = torch.where(new, shown[step], shown[step - 1])
                shown_of[group] = shown
            shown.copy_(shown_of[group])


def unique_frames(shown: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the distinct frames of a window: each once per run of steps that show it.

    The host waits for their number.

    Args:
        shown: Rows of frames. Shape: (K, n).

    Returns:
        Rows of frames, shape (R,), and for each step its index among them, shape (K, n).
    """
    new = torch.ones_like(shown, dtype=torch.bool)
    torch.ne(shown[1:], shown[:-1], out=new[1:])
    numbers = (new.flatten().cumsum(0) - 1).view(shown.shape)
    # The newest frame of an environment has the highest number so far.
    places = torch.where(new, numbers, 0).cummax(0).values
    return shown[new], places


def frames_of(obs: TensorDict | FrameObs) -> Mapping[str, torch.Tensor]:
    """Return the separate frames by group, (F, ...) each; none for a TensorDict."""
    return obs.frames if isinstance(obs, FrameObs) else {}


def steps_of(obs: TensorDict | FrameObs) -> TensorDict:
    """Return the groups, of leading shape (T, N); for groups of frames their row numbers."""
    return obs.steps if isinstance(obs, FrameObs) else obs


def in_convolution_layout(frames: torch.Tensor) -> torch.Tensor:
    """Return images, (rows, C, H, W), with channels last on a CPU: its convolutions are faster so.

    They are copied even with one channel: both orders are the same then, but not the strides.
    """
    if frames.dim() != 4 or frames.device.type != "cpu":
        return frames
    return torch.empty_like(frames, memory_format=torch.channels_last).copy_(frames)

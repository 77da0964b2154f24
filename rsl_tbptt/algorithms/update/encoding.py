"""The rows of a window through a model's encoders, every frame once.

A camera that is slower than control shows the same frame for several steps. Which frames are new is
found by comparing each with the one before, so no one has to say how slow it is, and environments
need not see new ones at the same step.
"""

from __future__ import annotations

import torch
from tensordict import TensorDict

from rsl_tbptt.core.recompute import graph_bytes_per_row, in_parts
from rsl_tbptt.models.protocol import FrameEncoder, Parts

NEW = "new: "
"""Before the name of a group: where its frames are new. Shape: (T, N), bool."""


def with_new_frames(obs: TensorDict, parts: Parts | None) -> TensorDict:
    """Mark all frames as new.

    Args:
        obs: Observations of a rollout, batch size (T, N).
        parts: The model that sees them, None if it is run step by step.

    Returns:
        The same, and marks for each group with a frame encoder.
    """
    encoders = {} if parts is None else parts.encoders
    marked = obs.copy() if encoders else obs
    for group in encoders:
        marked[NEW + group] = torch.ones(obs.batch_size, dtype=torch.bool, device=obs.device)
    return marked


def find_held_frames(obs: TensorDict) -> None:
    """Mark frames that equal the ones before as not new.

    Args:
        obs: What :func:`with_new_frames` returned for a rollout, batch size (T, N).
    """
    for name, new in obs.items():
        if name.startswith(NEW):
            frames = obs[name.removeprefix(NEW)].flatten(2)
            for step in range(1, len(new)):  # all at once would take memory like the frames
                new[step] = (frames[step] != frames[step - 1]).any(-1)


class Encoding:
    """Runs what of a model comes before its memory, frames in parts; see ``core.recompute``."""

    def __init__(self, parts: Parts) -> None:
        """Take a model by its parts."""
        self.parts = parts
        self._bytes_per_frame: dict[str, int] = {}

    def __call__(self, obs: TensorDict) -> torch.Tensor:
        """Return features of observations.

        Args:
            obs: Observations of K steps of n environments, batch size (K, n).

        Returns:
            Features. Shape: (K * n, F).
        """
        rows = obs.flatten(0, 1)
        if not self.parts.encoders:
            return self.parts.encode(rows)
        seen = dict(rows.items())
        for group, encoder in self.parts.encoders.items():
            new = seen.pop(NEW + group, None)
            if new is None:
                seen[group] = self._encode(group, encoder, rows[group])
            else:
                taken, shown = _frames_of(new.view(obs.batch_size))
                seen[group] = self._encode(group, encoder, rows[group][taken])[shown]
        return self.parts.encode(seen)

    def _encode(self, group: str, encoder: FrameEncoder, frames: torch.Tensor) -> torch.Tensor:
        """Return the features of frames, (rows, F)."""

        def encode(frames: torch.Tensor) -> torch.Tensor:
            return encoder(_as_convolved(frames))

        if group not in self._bytes_per_frame:
            some = frames[:1].repeat(2, *([1] * (frames.dim() - 1)))
            self._bytes_per_frame[group] = graph_bytes_per_row(encode, some)
        return in_parts(encode, frames, self._bytes_per_frame[group])


def _frames_of(new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which rows of a window are encoded, and which of these each row shows.

    Args:
        new: Where a frame is new. Shape: (K, n), bool. Those of the first step are encoded anyway.

    Returns:
        Rows, in order, shape (R,), and for each row its place among them, shape (K * n,).
    """
    new = new.clone()
    new[0] = True
    steps = torch.arange(len(new), device=new.device).unsqueeze(1)
    last_new = torch.where(new, steps, 0).cummax(0).values
    rows_shown = (last_new * new.shape[1] + torch.arange(new.shape[1], device=new.device)).flatten()
    places = new.flatten().cumsum(0) - 1
    return new.flatten().nonzero().squeeze(1), places[rows_shown]


def _as_convolved(frames: torch.Tensor) -> torch.Tensor:
    """Return images, (rows, C, H, W), with channels last on a CPU: its convolutions run faster so.

    Copied even if one channel makes both orders one: convolutions go by the strides.
    """
    if frames.dim() != 4 or frames.device.type != "cpu":
        return frames
    return torch.empty_like(frames, memory_format=torch.channels_last).copy_(frames)

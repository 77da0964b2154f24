"""The rows of a window through a model's encoders, every frame once."""

from __future__ import annotations

import torch
from tensordict import TensorDict

from rsl_tbptt.algorithms.update.frames import FrameObs, frames_apart, shown_once
from rsl_tbptt.core.recompute import graph_bytes_per_row, in_parts
from rsl_tbptt.models.protocol import FrameEncoder, Parts


class Encoding:
    """Runs what of a model comes before its memory, frames in parts; see ``core.recompute``."""

    def __init__(self, parts: Parts, *, sparing: bool = False) -> None:
        """Take a model by its parts, and whether memory is spared at the expense of time."""
        self.parts = parts
        self._sparing = sparing
        self._bytes_per_frame: dict[str, int] = {}

    def __call__(self, obs: TensorDict | FrameObs) -> torch.Tensor:
        """Return features of observations.

        Args:
            obs: Observations of K steps of n environments, of leading shape (K, n).

        Returns:
            Features. Shape: (K * n, F).
        """
        if not self.parts.encoders:
            return self.parts.encode(obs.flatten(0, 1))
        obs = frames_apart(obs, self.parts.encoders)
        seen = dict(obs.steps.flatten(0, 1).items())
        for group, encoder in self.parts.encoders.items():
            seen[group] = self._features(group, encoder, obs.frames[group], obs.steps[group])
        return self.parts.encode(seen)

    def _features(
        self, group: str, encoder: FrameEncoder, frames: torch.Tensor, shown: torch.Tensor
    ) -> torch.Tensor:
        """Return features, (K * n, F), of the frames (F, ...) that steps show, (K, n)."""

        def encode(rows: torch.Tensor) -> torch.Tensor:
            return encoder(_as_convolved(frames.index_select(0, rows)))

        rows, places = shown_once(shown)
        if group not in self._bytes_per_frame:
            self._bytes_per_frame[group] = graph_bytes_per_row(encode, rows[:1].repeat(2))
        features = in_parts(encode, rows, self._bytes_per_frame[group], sparing=self._sparing)
        return (
            features if len(rows) == shown.numel() else features.index_select(0, places.flatten())
        )


def _as_convolved(frames: torch.Tensor) -> torch.Tensor:
    """Return images, (rows, C, H, W), with channels last on a CPU: its convolutions run faster so.

    Copied even if one channel makes both orders one: convolutions go by the strides.
    """
    if frames.dim() != 4 or frames.device.type != "cpu":
        return frames
    return torch.empty_like(frames, memory_format=torch.channels_last).copy_(frames)

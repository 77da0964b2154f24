"""The rows of a window through a model's encoders, every frame once."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from tensordict import TensorDict

from rsl_tbptt.algorithms.update.frames import FrameObs, frames_apart, shown_once, steps_of
from rsl_tbptt.core.recompute import (
    graph_bytes_per_row,
    graphs_seen,
    in_parts,
    most_graph_bytes,
)
from rsl_tbptt.core.scan import Held, HeldInputs
from rsl_tbptt.models.protocol import FrameEncoder, Parts


class Encoding:
    """Runs what of a model comes before its memory, frames in parts; see ``core.recompute``."""

    def __init__(self, parts: Parts, *, sparing: bool = False) -> None:
        """Take a model by its parts, and whether memory is spared at the expense of time."""
        self.parts = parts
        self._sparing = sparing
        self._bytes_per_frame: dict[str, int] = {}

    def __call__(self, obs: TensorDict | FrameObs) -> torch.Tensor | HeldInputs:
        """Return features of observations.

        Args:
            obs: Observations of K steps of n environments, of leading shape (K, n).

        Returns:
            Features, shape (K, n, F): those of frames held, if the memory takes them so.
        """
        shape = steps_of(obs).batch_size
        if not self.parts.encoders:
            return self.parts.encode(obs.flatten(0, 1)).unflatten(0, shape)
        obs = frames_apart(obs, self.parts.encoders)
        features = {
            group: self._features(group, encoder, obs.frames[group], obs.steps[group])
            for group, encoder in self.parts.encoders.items()
        }
        self._tell_graphs(features)
        seen = dict(obs.steps.flatten(0, 1).items())
        if self.parts.encode_vectors and not all(map(_is_new_at_every_step, features.values())):
            vectors = self.parts.encode_vectors(seen).unflatten(0, shape)
            return HeldInputs(vectors, tuple(features.values()))
        for group, held in features.items():
            new = _is_new_at_every_step(held)
            seen[group] = held.rows if new else held.at_steps(held.rows).flatten(0, 1)
        return self.parts.encode(seen).unflatten(0, shape)

    def _features(
        self, group: str, encoder: FrameEncoder, frames: torch.Tensor, shown: torch.Tensor
    ) -> Held:
        """Return features of the frames (F, ...) that steps show, (K, n)."""

        def encode(rows: torch.Tensor) -> torch.Tensor:
            return encoder(_as_convolved(frames.index_select(0, rows)))

        rows, places = shown_once(shown)
        if group not in self._bytes_per_frame:
            self._bytes_per_frame[group] = graph_bytes_per_row(encode, rows[:1].repeat(2))
        features = in_parts(encode, rows, self._bytes_per_frame[group], sparing=self._sparing)
        return Held(features, places)

    def _tell_graphs(self, features: Mapping[str, Held]) -> None:
        """Tell a plan of memory what the graphs of a window's frames take."""
        graphs_seen(
            sum(len(held.rows) * self._bytes_per_frame[g] for g, held in features.items()),
            sum(most_graph_bytes(f.rows.device, sparing=self._sparing) for f in features.values()),
        )


def _is_new_at_every_step(held: Held) -> bool:
    """Return whether each step of each environment shows a frame of its own; rows are in order."""
    return len(held.rows) == held.places.numel()


def _as_convolved(frames: torch.Tensor) -> torch.Tensor:
    """Return images, (rows, C, H, W), with channels last on a CPU: its convolutions run faster so.

    Copied even if one channel makes both orders one: convolutions go by the strides.
    """
    if frames.dim() != 4 or frames.device.type != "cpu":
        return frames
    return torch.empty_like(frames, memory_format=torch.channels_last).copy_(frames)

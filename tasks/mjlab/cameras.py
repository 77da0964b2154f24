"""mjlab's cameras as observations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rsl_tbptt_tasks import depth_frames

if TYPE_CHECKING:
    import torch


class DepthFrames(depth_frames.DepthFrames):
    """Depth frames of a camera sensor. mjlab renders in every step, even if no frame is taken."""

    def depth(self, env: Any, camera: str) -> torch.Tensor:
        """Return a camera's picture. Shape: (N, height, width, 1), float32, in m."""
        return env.scene.sensors[camera].data.depth

"""Isaac Lab's cameras as observations."""

from __future__ import annotations

from typing import Any

import torch
from isaaclab.managers import ManagerTermBase, ObservationTermCfg

from rsl_tbptt_tasks import depth_frames


class DepthFrames(depth_frames.DepthFrames, ManagerTermBase):
    """Depth frames of a camera sensor, which renders the scene when its picture is read."""

    def __init__(self, cfg: ObservationTermCfg, env: Any) -> None:
        """See :class:`rsl_tbptt_tasks.depth_frames.DepthFrames`."""
        ManagerTermBase.__init__(self, cfg, env)
        depth_frames.DepthFrames.__init__(self, cfg, env)

    def depth(self, env: Any, camera: str) -> torch.Tensor:
        """Return a camera's picture. Shape: (N, height, width, 1), float32, in m."""
        return env.scene.sensors[camera].data.output["depth"].torch

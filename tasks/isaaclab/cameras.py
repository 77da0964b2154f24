"""Depth frames with a real camera's faults: slower than control, late, noisy, sometimes lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from isaaclab.managers import ManagerTermBase, ObservationTermCfg, SceneEntityCfg

NEVER = -1


class DepthFrames(ManagerTermBase):
    """The newest depth frame that has arrived, held until the next one.

    The camera runs freely, so an episode starts anywhere between two frames and sees zeros until
    its first one arrives. The latency is drawn for every episode. The sensor renders when its
    picture is read, which is only when a frame is taken.
    """

    def __init__(self, cfg: ObservationTermCfg, env: Any) -> None:
        """Prepare buffers for the camera's frames.

        Args:
            cfg: The term's config, with the parameters of :meth:`__call__`.
            env: The environment.

        Raises:
            ValueError: If a frame could arrive after the next one is taken.
        """
        super().__init__(cfg, env)
        params: dict[str, Any] = cfg.params
        period, max_latency = params["period"], params["max_latency"]
        if not 0 <= max_latency < period:
            raise ValueError(
                f"max_latency is {max_latency}, expected 0 to {period - 1}: a frame arrives before"
                " the next one is taken, period steps later."
            )
        camera: Any = env.scene.sensors[params["sensor_cfg"].name].cfg
        shape = (env.num_envs, 1, camera.height, camera.width)
        self._held = torch.zeros(shape, device=env.device)
        self._coming = torch.zeros(shape, device=env.device)
        self._arrival = torch.full((env.num_envs,), NEVER, device=env.device)
        self._latency = torch.zeros_like(self._arrival)
        self._last_step = NEVER
        self._num_latencies = max_latency + 1

    def reset(self, env_ids: Sequence[int] | torch.Tensor | slice | None = None) -> None:
        """Clear the frames of environments that start an episode, and draw their latency."""
        rows = slice(None) if env_ids is None else env_ids
        # Copies can be changed here; tensors that a rollout made in inference mode cannot.
        self._held, self._arrival = self._held.clone(), self._arrival.clone()
        self._held[rows] = 0.0
        self._arrival[rows] = NEVER
        drawn = torch.randint_like(self._latency, self._num_latencies)
        self._latency[rows] = drawn[rows]

    def __call__(
        self,
        env: Any,
        sensor_cfg: SceneEntityCfg,
        *,
        period: int,
        max_latency: int,
        distances: tuple[float, float],
        noise: float,
        missing_pixels: float,
        lost_frames: float,
    ) -> torch.Tensor:
        """Return the frame that each environment sees in this step.

        Args:
            env: The environment.
            sensor_cfg: The camera, with data type ``depth``.
            period: Steps between two frames.
            max_latency: Most steps from taking a frame to seeing it, less than ``period``.
            distances: Distances in m that are mapped to 1 and to 0; pixels without a hit are 0.
                A narrow range makes thin objects stand out.
            noise: Standard deviation of a pixel's error, as a share of its distance.
            missing_pixels: Share of the pixels that are 0.
            lost_frames: Share of the frames that never arrive.

        Returns:
            Nearness of each pixel. Shape: (N, 1, height, width), float32, 0 to 1.
        """
        now = env.common_step_counter
        if now == self._last_step:  # called twice: final observations, then those after the reset
            return self._held
        self._last_step = now
        if now % period == 0:
            # In the step of a reset Isaac Lab has not yet moved the bodies to their start.
            taken = env.episode_length_buf > 0
            taken &= torch.rand(env.num_envs, device=env.device) >= lost_frames
            frames = self._take(env, sensor_cfg.name, distances, noise, missing_pixels)
            self._coming = torch.where(taken[:, None, None, None], frames, self._coming)
            self._arrival = torch.where(taken, now + self._latency, self._arrival)
        arrived = self._arrival == now
        self._held = torch.where(arrived[:, None, None, None], self._coming, self._held)
        return self._held

    def _take(
        self,
        env: Any,
        camera: str,
        distances: tuple[float, float],
        noise: float,
        missing_pixels: float,
    ) -> torch.Tensor:
        """Take a picture and apply the camera's faults."""
        depth = env.scene.sensors[camera].data.output["depth"].torch.permute(0, 3, 1, 2)
        # Renderers differ for rays that hit nothing: 0 or infinity.
        depth = torch.where(depth > 0.0, depth, torch.inf)
        depth = depth * (1.0 + noise * torch.randn_like(depth))
        nearest, farthest = distances
        nearness = ((farthest - depth) / (farthest - nearest)).clamp(0.0, 1.0)
        return torch.where(torch.rand_like(depth) < missing_pixels, 0.0, nearness)

"""Cartpole from pixels: the occluded cartpole with a student that sees only depth frames.

A camera looks at the cart's track from the side, ten times a second, while control runs at 30 Hz.
Frames are late, noisy and sometimes lost, and no frame shows a velocity: the student has to see
where cart and pole are and remember where they were. The teacher is that of the occluded cartpole.
"""

from __future__ import annotations

import isaaclab.sim as sim_utils
from isaaclab.managers import ObservationGroupCfg as ObsGroupCfg
from isaaclab.managers import ObservationTermCfg as ObsTermCfg
from isaaclab.managers import SceneEntityCfg
from isaaclab.sensors import CameraCfg
from isaaclab.utils import configclass
from isaaclab_tasks.utils.presets import MultiBackendRendererCfg

from rsl_tbptt_tasks.isaaclab.cameras import DepthFrames
from rsl_tbptt_tasks.isaaclab.cartpole import (
    CartpoleSceneCfg,
    EventsCfg,
    ObservationsCfg,
    OccludedCartpoleEnvCfg,
)


@configclass
class CartpoleCameraSceneCfg(CartpoleSceneCfg):
    """A scene with a camera per environment, next to the track."""

    camera: CameraCfg = CameraCfg(
        prim_path="{ENV_REGEX_NS}/Camera",
        # Looks along +y, at the height of the middle of pole and cart.
        offset=CameraCfg.OffsetCfg(
            pos=(0.0, -4.6, 1.4), rot=(0.0, 0.0, 0.70710678, 0.70710678), convention="world"
        ),
        # It sees 3.5 m of the 4 m track from 4.6 m: a pixel is 3.6 cm wide, the pole 4 cm.
        spawn=sim_utils.PinholeCameraCfg(
            focal_length=20.0, horizontal_aperture=15.0, clipping_range=(0.1, 20.0)
        ),
        data_types=["depth"],
        width=96,
        height=40,
        renderer_cfg=MultiBackendRendererCfg(),  # pyright: ignore[reportArgumentType]
    )


@configclass
class CameraObservationsCfg:
    """Observations of student and teacher."""

    @configclass
    class FramesCfg(ObsGroupCfg):
        """Observations of the student."""

        depth = ObsTermCfg(
            func=DepthFrames,  # pyright: ignore[reportArgumentType]
            params={
                "sensor_cfg": SceneEntityCfg("camera"),
                "period": 3,  # 10 Hz of 30
                "max_latency": 1,  # 33 ms
                "distances": (4.0, 5.2),  # m
                "noise": 0.01,
                "missing_pixels": 0.02,
                "lost_frames": 0.02,
            },
        )

    camera: FramesCfg = FramesCfg()
    teacher: ObservationsCfg.TeacherCfg = ObservationsCfg.TeacherCfg()


@configclass
class CameraEventsCfg(EventsCfg):
    """Physics and starts that leave time to see: up to 0.13 s pass before the first frame.

    The cart starts near the middle, where a CNN soon learns which way the pole leans.
    """

    def __post_init__(self) -> None:
        self.cart_mass.params["mass_distribution_params"] = (0.9, 1.2)
        self.pole_mass.params["mass_distribution_params"] = (0.7, 1.4)
        self.cart_start.params |= {"position_range": (-0.2, 0.2), "velocity_range": (-0.1, 0.1)}
        self.pole_start.params |= {"position_range": (-0.05, 0.05), "velocity_range": (-0.1, 0.1)}


@configclass
class CameraCartpoleEnvCfg(OccludedCartpoleEnvCfg):
    """Balance for 8 s at 30 Hz by depth frames at 10 Hz."""

    # Far enough apart for renderers that show all environments to all cameras.
    scene: CartpoleCameraSceneCfg = CartpoleCameraSceneCfg(num_envs=128, env_spacing=20.0)
    observations: CameraObservationsCfg = CameraObservationsCfg()
    events: CameraEventsCfg = CameraEventsCfg()

    def play_mode(self) -> None:
        """Keep Isaac Lab's settings for play; the camera's faults do not count as corruption."""
        super(OccludedCartpoleEnvCfg, self).play_mode()

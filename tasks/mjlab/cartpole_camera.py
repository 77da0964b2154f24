"""Cartpole from pixels: the occluded cartpole with a student that sees only depth frames.

A camera looks at the cart's rail from the side, ten times a second, while control runs at 20 Hz.
Frames are late, noisy and sometimes lost, and no frame shows a velocity: the student has to see
where cart and pole are and remember where they were.
"""

from __future__ import annotations

import math

from mjlab.envs import ManagerBasedRlEnvCfg
from mjlab.managers import ObservationGroupCfg, ObservationTermCfg, SceneEntityCfg
from mjlab.sensor import CameraSensorCfg

from rsl_tbptt_tasks.mjlab.cameras import DepthFrames
from rsl_tbptt_tasks.mjlab.cartpole import CART, POLE, mass_event, occluded_cartpole_env_cfg

CAMERA = "camera"
"""Name of the sensor and of the student's observation group."""


def camera_cartpole_env_cfg(frames: bool = True) -> ManagerBasedRlEnvCfg:
    """Return the environment: balance for 8 s at 20 Hz by depth frames at 10 Hz.

    Args:
        frames: Whether there is a camera. The teacher trains without one: rendering takes longer
            than everything else.

    Returns:
        The environment's config, for training and play.
    """
    cfg = occluded_cartpole_env_cfg()
    cfg.scene.num_envs = 128
    del cfg.observations["actor"]
    if frames:
        cfg.scene.sensors = (_camera(),)
        cfg.observations[CAMERA] = ObservationGroupCfg({"depth": _frames()})
    # Starts close to upright, with less to find out: a pole falls for up to 0.15 s before an
    # episode's first frame.
    cfg.events["cart_start"].params |= {
        "position_range": (-0.2, 0.2),
        "velocity_range": (-0.1, 0.1),
    }
    cfg.events["pole_start"].params |= {
        "position_range": (-0.05, 0.05),
        "velocity_range": (-0.1, 0.1),
    }
    cfg.events["cart_mass"] = mass_event(CART, 0.9, 1.2)
    cfg.events["pole_mass"] = mass_event(POLE, 0.7, 1.4)
    return cfg


def _camera() -> CameraSensorCfg:
    """Return a camera next to the rail, at the height of the middle of pole and cart."""
    return CameraSensorCfg(
        name=CAMERA,
        pos=(0.0, -4.6, 1.4),
        quat=(math.sqrt(0.5), math.sqrt(0.5), 0.0, 0.0),  # along +y
        # It sees 3.5 m of the rail from 4.6 m: a pixel is 3.6 cm wide, the pole 9 cm.
        fovy=math.degrees(2.0 * math.atan(0.375 * 40 / 96)),
        width=96,
        height=40,
        data_types=("depth",),
    )


def _frames() -> ObservationTermCfg:
    """Return the term with the camera's depth frames."""
    return ObservationTermCfg(
        func=DepthFrames,
        params={
            "sensor_cfg": SceneEntityCfg(CAMERA),
            "period": 2,  # 10 Hz of 20
            "max_latency": 1,  # 50 ms
            "distances": (4.0, 5.2),  # m
            "noise": 0.01,
            "missing_pixels": 0.02,
            "lost_frames": 0.02,
        },
    )

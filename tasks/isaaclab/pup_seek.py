"""Pup looks for a pillar: it walks around a wall that hides it, and remembers what it saw.

Pillar and wall have new places in every episode. From its start Pup sees the pillar above the wall.
Closer to the wall it does not, and next to the wall the pillar is outside the picture. Neither can
be felt; an episode fails when Pup walks into the wall.

The teacher knows the direction and the length of the shortest way. The student has Pup's sensors
and the gait's clock, no command, and a depth camera on the trunk.
"""

from __future__ import annotations

import isaaclab.envs.mdp as base_mdp
import isaaclab.sim as sim_utils
from isaaclab.assets import ArticulationCfg
from isaaclab.managers import EventTermCfg, RewardTermCfg, SceneEntityCfg, TerminationTermCfg
from isaaclab.managers import ObservationGroupCfg as ObsGroupCfg
from isaaclab.managers import ObservationTermCfg as ObsTermCfg
from isaaclab.sensors import CameraCfg
from isaaclab.utils import configclass
from isaaclab_tasks.utils.presets import MultiBackendRendererCfg

from rsl_tbptt_tasks.isaaclab import pup, seeking
from rsl_tbptt_tasks.isaaclab.cameras import DepthFrames

STEP = 0.02
"""Length of a step, in s. One-off rewards are divided by it, as rewards are per second."""


def standing(name: str, height: float) -> ArticulationCfg:
    """Return a body on the ground that is seen but not felt. ``height`` is in m."""
    return ArticulationCfg(
        prim_path=f"{{ENV_REGEX_NS}}/{name}",
        spawn=sim_utils.UsdFileCfg(usd_path=str(pup.ASSETS / f"{name.lower()}.usda")),
        init_state=ArticulationCfg.InitialStateCfg(
            pos=(2.0, 0.0, height / 2), joint_pos={}, joint_vel={}
        ),
        actuators={},
    )


@configclass
class PupSeekSceneCfg(pup.PupSceneCfg):
    """Pup with a camera, a pillar and a wall."""

    pillar: ArticulationCfg = standing("Pillar", height=1.0)
    wall: ArticulationCfg = standing("Wall", height=0.35)
    camera: CameraCfg = CameraCfg(
        prim_path="{ENV_REGEX_NS}/Robot/trunk/camera",
        offset=CameraCfg.OffsetCfg(pos=(0.14, 0.0, 0.02), convention="world"),
        update_latest_camera_pose=True,
        # The field of view is 62 degrees wide and 48 degrees high.
        spawn=sim_utils.PinholeCameraCfg(
            focal_length=1.0, horizontal_aperture=1.2, clipping_range=(0.01, 5.0)
        ),
        data_types=["depth"],
        width=32,
        height=24,
        renderer_cfg=MultiBackendRendererCfg(),  # pyright: ignore[reportArgumentType]
    )


@configclass
class ObservationsCfg:
    """Observations of student and teacher."""

    @configclass
    class PolicyCfg(pup.ObservationsCfg.PolicyCfg):
        """Observations of the student except for the camera."""

        command = None

    @configclass
    class FramesCfg(ObsGroupCfg):
        """Observations of the student from the camera."""

        depth = ObsTermCfg(
            func=DepthFrames,  # pyright: ignore[reportArgumentType]
            params={
                "sensor_cfg": SceneEntityCfg("camera"),
                "period": 5,  # 10 Hz of 50
                "max_latency": 3,  # 60 ms
                "distances": (0.2, 4.0),  # m
                "noise": 0.02,
                "missing_pixels": 0.02,
                "lost_frames": 0.05,
            },
        )

    @configclass
    class TeacherCfg(pup.ObservationsCfg.TeacherCfg):
        """Observations of the teacher."""

        command = ObsTermCfg(func=seeking.way_ahead)
        pull = None

    policy: PolicyCfg = PolicyCfg()
    camera: FramesCfg = FramesCfg()
    teacher: TeacherCfg = TeacherCfg()


@configclass
class EventsCfg(pup.EventsCfg):
    """Pup's randomisation in smaller ranges, places of pillar and wall, and smooth feet."""

    pull = None
    # No joint moves a leg sideways, so Pup turns by letting its feet slip.
    feet = EventTermCfg(
        func=base_mdp.randomize_rigid_body_material,  # pyright: ignore[reportArgumentType]
        mode="startup",
        params={
            "asset_cfg": pup.FEET,
            "static_friction_range": (0.5, 0.5),
            "dynamic_friction_range": (0.5, 0.5),
            "restitution_range": (0.0, 0.0),
            "num_buckets": 1,
        },
    )
    places = EventTermCfg(
        func=seeking.place_pillar_and_wall,
        mode="reset",
        params={
            "pillar": ((2.6, 3.2), (-0.4, 0.4)),
            "wall": (1.2, 1.6),
            "offset": (0.1, 0.35),
        },
    )

    def __post_init__(self) -> None:
        self.motor_stiffness.params["stiffness_distribution_params"] = (0.5, 1.5)
        self.base_start.params["pose_range"] = {"yaw": (-0.25, 0.25)}
        self.push.params["velocity_range"] = {"x": (-0.3, 0.3), "y": (-0.3, 0.3)}


@configclass
class RewardsCfg(pup.RewardsCfg):
    """Rewards mostly for following the way: standing still or walking blindly earns little."""

    track_linear_velocity = None
    track_yaw_rate = None
    walk = RewardTermCfg(func=seeking.walks_the_way, weight=1.0, params={"speed": 0.45})
    turn = RewardTermCfg(
        func=seeking.turns_to_the_way, weight=1.0, params={"gain": 2.0, "most": 1.0}
    )
    time = RewardTermCfg(func=base_mdp.is_alive, weight=-0.4)
    arrival = RewardTermCfg(
        func=base_mdp.is_terminated_term,  # pyright: ignore[reportArgumentType]
        weight=2.0 / STEP,
        params={"term_keys": ["arrived"]},
    )
    failure = RewardTermCfg(
        func=base_mdp.is_terminated_term,  # pyright: ignore[reportArgumentType]
        weight=-1.0 / STEP,
        params={"term_keys": ["sank", "tipped", "hit_wall"]},
    )

    def __post_init__(self) -> None:
        """Give gait and smoothness about the same share as in Pup's own task.

        With less, or a higher price for time, a teacher shakes itself forward by the noise of its
        actions: without noise it stands still, or it hurries and never learns to trot.
        """
        self.trot.weight = 0.75
        self.wobble.weight = -0.09
        for term in (self.bounce, self.tilt, self.action_rate):
            term.weight *= 2.25


@configclass
class TerminationsCfg(pup.TerminationsCfg):
    """Ends of an episode: those of Pup's own task and those of the search."""

    arrived = TerminationTermCfg(func=seeking.reached_pillar, params={"distance": 0.45})
    hit_wall = TerminationTermCfg(func=seeking.hit_wall, params={"distance": 0.12})


@configclass
class PupSeekEnvCfg(pup.PupFlatEnvCfg):
    """Reach the pillar within 10 s, at 50 Hz with a camera at 10 Hz."""

    # Far enough apart for renderers that show all environments to all cameras.
    scene: PupSeekSceneCfg = PupSeekSceneCfg(num_envs=512, env_spacing=20.0)
    episode_length_s = 10.0
    observations: ObservationsCfg = ObservationsCfg()
    commands = None  # pyright: ignore[reportAssignmentType]
    events: EventsCfg = EventsCfg()
    rewards: RewardsCfg = RewardsCfg()
    terminations: TerminationsCfg = TerminationsCfg()

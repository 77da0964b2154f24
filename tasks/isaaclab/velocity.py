"""Velocity tracking with a privileged teacher and a student that has to infer its base velocity.

Robots, terrain, rewards and events are Isaac Lab's own; only the observations change. The student
loses the base's linear velocity and, on rough terrain, the height scan; it keeps the noise. The
teacher sees everything, without noise. In the variants ``...-Scan`` the student also sees the scan,
with noise and as a picture, which a CNN reads.
"""

from __future__ import annotations

from isaaclab.managers import ObservationGroupCfg as ObsGroupCfg
from isaaclab.managers import ObservationTermCfg as ObsTermCfg
from isaaclab.managers import SceneEntityCfg
from isaaclab.utils import configclass
from isaaclab.utils.noise import UniformNoiseCfg
from isaaclab_tasks.core.velocity import mdp as velocity_mdp
from isaaclab_tasks.core.velocity.config.anymal_d.flat_env_cfg import AnymalDFlatEnvCfg
from isaaclab_tasks.core.velocity.config.anymal_d.rough_env_cfg import AnymalDRoughEnvCfg
from isaaclab_tasks.core.velocity.config.go2.flat_env_cfg import UnitreeGo2FlatEnvCfg
from isaaclab_tasks.core.velocity.config.go2.rough_env_cfg import UnitreeGo2RoughEnvCfg
from isaaclab_tasks.core.velocity.velocity_env_cfg import ObservationsCfg

from rsl_tbptt_tasks.isaaclab import mdp


@configclass
class FlatTeacherCfg(ObsGroupCfg):
    """Observations of the teacher on flat ground: exact state, commands, randomised base mass."""

    base_lin_vel = ObsTermCfg(func=velocity_mdp.base_lin_vel)
    base_ang_vel = ObsTermCfg(func=velocity_mdp.base_ang_vel)
    projected_gravity = ObsTermCfg(func=velocity_mdp.projected_gravity)
    velocity_commands = ObsTermCfg(
        func=velocity_mdp.generated_commands, params={"command_name": "base_velocity"}
    )
    joint_pos = ObsTermCfg(func=velocity_mdp.joint_pos_rel)
    joint_vel = ObsTermCfg(func=velocity_mdp.joint_vel_rel)
    actions = ObsTermCfg(func=velocity_mdp.last_action)
    base_mass = ObsTermCfg(
        func=mdp.body_mass,
        params={"asset_cfg": SceneEntityCfg("robot", body_names="base")},
        scale=0.1,  # tens of kilograms
    )

    def __post_init__(self) -> None:
        self.enable_corruption = False
        self.concatenate_terms = True


@configclass
class RoughTeacherCfg(FlatTeacherCfg):
    """Observations of the teacher on rough ground: the terrain around it as well."""

    height_scan = ObsTermCfg(
        func=velocity_mdp.height_scan,
        params={"sensor_cfg": SceneEntityCfg("height_scanner")},
        clip=(-1.0, 1.0),
    )


@configclass
class ProprioceptiveObservationsCfg(ObservationsCfg):
    """Observations of every student here: noisy sensors that a real robot has."""

    @configclass
    class PolicyCfg(ObservationsCfg.PolicyCfg):
        """Isaac Lab's policy group without values that only a simulator or a camera provides."""

        base_lin_vel: ObsTermCfg | None = None
        height_scan: ObsTermCfg | None = None

    policy: PolicyCfg = PolicyCfg()


@configclass
class FlatObservationsCfg(ProprioceptiveObservationsCfg):
    """Observation groups on flat ground."""

    teacher: FlatTeacherCfg = FlatTeacherCfg()


@configclass
class RoughObservationsCfg(ProprioceptiveObservationsCfg):
    """Observation groups on rough ground."""

    teacher: RoughTeacherCfg = RoughTeacherCfg()


@configclass
class ScanObservationsCfg(RoughObservationsCfg):
    """Observation groups on rough ground for a student that sees the terrain."""

    @configclass
    class ScanCfg(ObsGroupCfg):
        """Heights around the student, with Isaac Lab's noise."""

        heights = ObsTermCfg(
            func=mdp.height_image,
            params={"sensor_cfg": SceneEntityCfg("height_scanner")},
            noise=UniformNoiseCfg(n_min=-0.1, n_max=0.1),  # m
            clip=(-1.0, 1.0),
        )

        def __post_init__(self) -> None:
            self.enable_corruption = True

    scan: ScanCfg = ScanCfg()


@configclass
class AnymalDFlatTbpttEnvCfg(AnymalDFlatEnvCfg):
    """ANYmal-D on flat ground."""

    observations: FlatObservationsCfg = FlatObservationsCfg()


@configclass
class AnymalDRoughTbpttEnvCfg(AnymalDRoughEnvCfg):
    """ANYmal-D on rough ground with a blind student."""

    observations: RoughObservationsCfg = RoughObservationsCfg()


@configclass
class AnymalDRoughScanTbpttEnvCfg(AnymalDRoughEnvCfg):
    """ANYmal-D on rough ground with a student that sees the terrain."""

    observations: ScanObservationsCfg = ScanObservationsCfg()


@configclass
class UnitreeGo2FlatTbpttEnvCfg(UnitreeGo2FlatEnvCfg):
    """Unitree Go2 on flat ground."""

    observations: FlatObservationsCfg = FlatObservationsCfg()


@configclass
class UnitreeGo2RoughTbpttEnvCfg(UnitreeGo2RoughEnvCfg):
    """Unitree Go2 on rough ground with a blind student."""

    observations: RoughObservationsCfg = RoughObservationsCfg()


@configclass
class UnitreeGo2RoughScanTbpttEnvCfg(UnitreeGo2RoughEnvCfg):
    """Unitree Go2 on rough ground with a student that sees the terrain."""

    observations: ScanObservationsCfg = ScanObservationsCfg()

"""Occluded cartpole: a balancing task that cannot be solved without memory.

The student sees only noisy positions. Balancing needs velocities: the joints have next to no
damping, so a policy that reacts to positions alone amplifies the swing. Two observations do not
give a velocity either, since their noise amounts to 0.8 rad/s; the student has to filter over many
steps. The teacher sees the exact state and the randomised physics.
"""

from __future__ import annotations

from pathlib import Path

import isaaclab.envs.mdp as base_mdp
import isaaclab.sim as sim_utils
from isaaclab.actuators import ImplicitActuatorCfg
from isaaclab.assets import ArticulationCfg, AssetBaseCfg
from isaaclab.envs import ManagerBasedRLEnvCfg
from isaaclab.managers import EventTermCfg, RewardTermCfg, SceneEntityCfg, TerminationTermCfg
from isaaclab.managers import ObservationGroupCfg as ObsGroupCfg
from isaaclab.managers import ObservationTermCfg as ObsTermCfg
from isaaclab.physics import PhysxAutoCfg
from isaaclab.scene import InteractiveSceneCfg
from isaaclab.sim import SimulationCfg
from isaaclab.utils import configclass
from isaaclab.utils.noise import GaussianNoiseCfg
from isaaclab_newton.physics import MJWarpSolverCfg, NewtonCfg
from isaaclab_ov.physics import OvPhysxCfg
from isaaclab_physx.physics import PhysxCfg
from isaaclab_tasks.utils import PresetCfg

from rsl_tbptt_tasks.isaaclab import mdp

CART = SceneEntityCfg("robot", joint_names=["slider_to_cart"])
POLE = SceneEntityCfg("robot", joint_names=["cart_to_pole"])

CART_POSITION_SCALE = 0.5
"""Observation units per metre: the track's end, 2 m, becomes 1."""
POLE_ANGLE_SCALE = 2.0
"""Observation units per radian: the angle at which an episode ends, 0.5 rad, becomes 1."""


@configclass
class CartpolePhysicsCfg(PresetCfg):
    """Physics engines that ``physics=NAME`` selects on the command line."""

    isaacsim_physx: PhysxCfg = PhysxCfg()
    ovphysx: OvPhysxCfg = OvPhysxCfg()
    physx: PhysxAutoCfg = PhysxAutoCfg(isaacsim_physx=isaacsim_physx, ovphysx=ovphysx)
    newton_mjwarp: NewtonCfg = NewtonCfg(
        # Only joint limits can become constraints, since there are two joints and no colliders.
        solver_cfg=MJWarpSolverCfg(
            njmax=4, nconmax=1, disable_contacts=True, integrator="implicitfast"
        ),
        num_substeps=1,
    )
    default: NewtonCfg = newton_mjwarp


@configclass
class CartpoleSceneCfg(InteractiveSceneCfg):
    """One cartpole per environment and a light; without ground, since nothing collides."""

    robot: ArticulationCfg = ArticulationCfg(
        prim_path="{ENV_REGEX_NS}/Robot",
        spawn=sim_utils.UsdFileCfg(
            usd_path=str(Path(__file__).parent / "assets" / "cartpole.usda")
        ),
        init_state=ArticulationCfg.InitialStateCfg(pos=(0.0, 0.0, 1.0)),
        actuators={
            "cart": ImplicitActuatorCfg(
                joint_names_expr=["slider_to_cart"],
                joint_effort_limit=100.0,  # N
                stiffness=0.0,
                damping=0.1,  # N s/m; the event below scales it
            ),
            "pole": ImplicitActuatorCfg(
                joint_names_expr=["cart_to_pole"],
                joint_effort_limit=100.0,  # N m
                stiffness=0.0,
                damping=0.002,  # N m s/rad
            ),
        },
    )
    light = AssetBaseCfg(
        prim_path="/World/Light", spawn=sim_utils.DistantLightCfg(intensity=2000.0)
    )


@configclass
class ActionsCfg:
    """A force on the cart."""

    cart_force = base_mdp.JointEffortActionCfg(
        asset_name="robot",
        joint_names=["slider_to_cart"],
        scale=20.0,  # N per unit of action
    )


@configclass
class ObservationsCfg:
    """Observations of student and teacher."""

    @configclass
    class PolicyCfg(ObsGroupCfg):
        """Observations of the student: noisy positions, no velocity."""

        cart_position = ObsTermCfg(
            func=base_mdp.joint_pos,
            params={"asset_cfg": CART},
            noise=GaussianNoiseCfg(std=0.02),  # m
            scale=CART_POSITION_SCALE,
        )
        pole_angle = ObsTermCfg(
            func=base_mdp.joint_pos,
            params={"asset_cfg": POLE},
            noise=GaussianNoiseCfg(std=0.02),  # rad
            scale=POLE_ANGLE_SCALE,
        )

        def __post_init__(self) -> None:
            self.enable_corruption = True
            self.concatenate_terms = True

    @configclass
    class TeacherCfg(ObsGroupCfg):
        """Observations of the teacher: the exact state and the randomised physics."""

        cart_position = ObsTermCfg(
            func=base_mdp.joint_pos, params={"asset_cfg": CART}, scale=CART_POSITION_SCALE
        )
        pole_angle = ObsTermCfg(
            func=base_mdp.joint_pos, params={"asset_cfg": POLE}, scale=POLE_ANGLE_SCALE
        )
        cart_velocity = ObsTermCfg(
            func=base_mdp.joint_vel, params={"asset_cfg": CART}, scale=CART_POSITION_SCALE
        )
        pole_velocity = ObsTermCfg(
            func=base_mdp.joint_vel, params={"asset_cfg": POLE}, scale=POLE_ANGLE_SCALE
        )
        mass = ObsTermCfg(
            func=mdp.body_mass,
            params={"asset_cfg": SceneEntityCfg("robot", body_names=["cart", "pole"])},
        )
        damping = ObsTermCfg(func=mdp.joint_damping, params={"asset_cfg": SceneEntityCfg("robot")})

        def __post_init__(self) -> None:
            self.enable_corruption = False
            self.concatenate_terms = True

    policy: PolicyCfg = PolicyCfg()
    teacher: TeacherCfg = TeacherCfg()


@configclass
class EventsCfg:
    """Randomisation: physics once per environment, starts once per episode."""

    cart_mass = EventTermCfg(
        func=base_mdp.randomize_rigid_body_mass,  # pyright: ignore[reportArgumentType]
        mode="startup",
        params={
            "asset_cfg": SceneEntityCfg("robot", body_names=["cart"]),
            "mass_distribution_params": (0.7, 1.4),
            "operation": "scale",
            "distribution": "log_uniform",
        },
    )
    pole_mass = EventTermCfg(
        func=base_mdp.randomize_rigid_body_mass,  # pyright: ignore[reportArgumentType]
        mode="startup",
        params={
            "asset_cfg": SceneEntityCfg("robot", body_names=["pole"]),
            "mass_distribution_params": (0.5, 2.0),
            "operation": "scale",
            "distribution": "log_uniform",
        },
    )
    joint_damping = EventTermCfg(
        func=base_mdp.randomize_actuator_gains,  # pyright: ignore[reportArgumentType]
        mode="startup",
        params={
            "asset_cfg": SceneEntityCfg("robot"),
            "damping_distribution_params": (0.0, 2.0),
            "operation": "scale",
        },
    )
    cart_start = EventTermCfg(
        func=base_mdp.reset_joints_by_offset,
        mode="reset",
        params={"asset_cfg": CART, "position_range": (-0.5, 0.5), "velocity_range": (-0.3, 0.3)},
    )
    pole_start = EventTermCfg(
        func=base_mdp.reset_joints_by_offset,
        mode="reset",
        params={"asset_cfg": POLE, "position_range": (-0.1, 0.1), "velocity_range": (-0.3, 0.3)},
    )


@configclass
class RewardsCfg:
    """Reward per second: about 1 while the pole stands, so a return counts seconds.

    Within the limits and up to 100 N the penalties stay below 0.7, so longer episodes are better.
    """

    alive = RewardTermCfg(func=base_mdp.is_alive, weight=1.0)
    pole_upright = RewardTermCfg(
        func=base_mdp.joint_pos_target_l2, weight=-1.0, params={"asset_cfg": POLE, "target": 0.0}
    )
    cart_centred = RewardTermCfg(
        func=base_mdp.joint_pos_target_l2, weight=-0.05, params={"asset_cfg": CART, "target": 0.0}
    )
    # Keeps the teacher's gains small, so that a student which estimates velocities can follow.
    effort = RewardTermCfg(func=base_mdp.action_l2, weight=-0.01)


@configclass
class TerminationsCfg:
    """An episode ends when the pole leans too far, the cart leaves the track, or time is up."""

    time_out = TerminationTermCfg(func=base_mdp.time_out, time_out=True)
    pole_fell = TerminationTermCfg(
        func=base_mdp.joint_pos_out_of_manual_limit,
        params={"asset_cfg": POLE, "bounds": (-0.5, 0.5)},
    )
    cart_left_track = TerminationTermCfg(
        func=base_mdp.joint_pos_out_of_manual_limit,
        params={"asset_cfg": CART, "bounds": (-2.0, 2.0)},
    )


@configclass
class OccludedCartpoleEnvCfg(ManagerBasedRLEnvCfg):
    """Balance for 8 s at 30 Hz with hidden velocities, noisy positions and unknown physics."""

    scene: CartpoleSceneCfg = CartpoleSceneCfg(num_envs=256, env_spacing=5.0)
    sim: SimulationCfg = SimulationCfg(
        dt=1 / 60,
        render_interval=2,
        physics=CartpolePhysicsCfg(),  # pyright: ignore[reportArgumentType]
    )
    decimation = 2
    episode_length_s = 8.0
    observations: ObservationsCfg = ObservationsCfg()
    actions: ActionsCfg = ActionsCfg()
    events: EventsCfg = EventsCfg()
    rewards: RewardsCfg = RewardsCfg()
    terminations: TerminationsCfg = TerminationsCfg()

    def play_mode(self) -> None:
        """Keep the student's noise, which Isaac Lab disables for play, since it is the task."""
        super().play_mode()
        self.observations.policy.enable_corruption = True

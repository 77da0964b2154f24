"""Pup: a small quadruped of this package that learns to walk on a CPU.

The student's observations are those of a robot of this size. The noise is typical of cheap sensors
and was not measured on a robot:

- an inertial unit: angular velocity with 0.02 rad/s of noise, and the accelerometer's signal
  integrated over a control step with 0.002 m/s (0.1 m/s^2);
- joint angles with 0.005 rad (0.3 degrees);
- each of the three arrives on time or one control step (20 ms) late, drawn per episode.

The command and the clock of the gait come from the controller, exact and on time. The student sees
no velocity of base or joints, and nothing of payload, motors, pull, pushes and delays; it has to
infer them from earlier observations. The teacher sees the exact state, payload, motors and
pull.
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
from isaaclab.scene import InteractiveSceneCfg
from isaaclab.sim import SimulationCfg
from isaaclab.utils import configclass
from isaaclab.utils.noise import GaussianNoiseCfg
from isaaclab_newton.physics import MJWarpSolverCfg, NewtonCfg

from rsl_tbptt_tasks.isaaclab import mdp
from rsl_tbptt_tasks.isaaclab.cartpole import CartpolePhysicsCfg

ASSETS = Path(__file__).parent / "assets"
TRUNK = SceneEntityCfg("robot", body_names=["trunk"])
FEET = SceneEntityCfg(
    "robot",
    body_names=["front_left_shank", "front_right_shank", "rear_left_shank", "rear_right_shank"],
    preserve_order=True,
)
COMMAND = {"command_name": "base_velocity"}
CLOCK = {"frequency": 2.5}  # Hz

STANDING_HEIGHT = 0.15
"""Height of the trunk's frame above ground with default joint angles. In m."""


@configclass
class PupPhysicsCfg(CartpolePhysicsCfg):
    """Physics engines that ``physics=NAME`` selects on the command line."""

    newton_mjwarp: NewtonCfg = NewtonCfg(
        solver_cfg=MJWarpSolverCfg(
            njmax=24,
            nconmax=4,
            iterations=10,
            ls_iterations=50,
            tolerance=1.0e-4,
            integrator="implicitfast",
        ),
        num_substeps=1,
    )
    default: NewtonCfg = newton_mjwarp


@configclass
class PupSceneCfg(InteractiveSceneCfg):
    """A robot per environment, one ground for all and a light."""

    ground = AssetBaseCfg(
        prim_path="/World/ground",
        spawn=sim_utils.GroundPlaneCfg(usd_path=str(ASSETS / "flat_ground.usda")),
        collision_group=-1,  # with every environment
    )
    robot: ArticulationCfg = ArticulationCfg(
        prim_path="{ENV_REGEX_NS}/Robot",
        spawn=sim_utils.UsdFileCfg(usd_path=str(ASSETS / "pup.usda")),
        init_state=ArticulationCfg.InitialStateCfg(
            pos=(0.0, 0.0, STANDING_HEIGHT),
            joint_pos={".*_hip": 0.7, ".*_knee": -1.4},
        ),
        actuators={
            "legs": ImplicitActuatorCfg(
                joint_names_expr=[".*"],
                joint_effort_limit=3.0,  # N m
                stiffness=12.0,  # N m/rad
                damping=0.3,  # N m s/rad
                armature=0.002,  # kg m^2
            ),
        },
    )
    light = AssetBaseCfg(
        prim_path="/World/Light", spawn=sim_utils.DistantLightCfg(intensity=2000.0)
    )


@configclass
class CommandsCfg:
    """The velocity to follow."""

    base_velocity = base_mdp.UniformVelocityCommandCfg(
        asset_name="robot",
        resampling_time_range=(4.0, 4.0),
        ranges=base_mdp.UniformVelocityCommandCfg.Ranges(
            lin_vel_x=(0.15, 0.45), lin_vel_y=(0.0, 0.0), ang_vel_z=(-1.0, 1.0)
        ),
    )


@configclass
class ActionsCfg:
    """Target angles of the joints."""

    joint_angles = base_mdp.JointPositionActionCfg(
        asset_name="robot",
        joint_names=[".*"],
        scale=0.3,  # rad per unit of action
        use_default_offset=True,
    )


@configclass
class ObservationsCfg:
    """Observations of student and teacher."""

    @configclass
    class PolicyCfg(ObsGroupCfg):
        """Observations of the student."""

        angular_velocity = ObsTermCfg(
            func=base_mdp.base_ang_vel,
            noise=GaussianNoiseCfg(std=0.02),  # rad/s
            scale=0.25,
            delay_max_lag=1,
        )
        velocity_increment = ObsTermCfg(
            func=mdp.VelocityIncrement,  # pyright: ignore[reportArgumentType]
            noise=GaussianNoiseCfg(std=0.002),  # m/s
            delay_max_lag=1,
        )
        command = ObsTermCfg(func=base_mdp.generated_commands, params=COMMAND)
        joint_angles = ObsTermCfg(
            func=base_mdp.joint_pos_rel,
            noise=GaussianNoiseCfg(std=0.005),  # rad
            delay_max_lag=1,
        )
        clock = ObsTermCfg(func=mdp.clock, params=CLOCK)

        def __post_init__(self) -> None:
            self.enable_corruption = True
            self.concatenate_terms = True

    @configclass
    class TeacherCfg(ObsGroupCfg):
        """Observations of the teacher."""

        linear_velocity = ObsTermCfg(func=base_mdp.base_lin_vel, scale=2.0)
        angular_velocity = ObsTermCfg(func=base_mdp.base_ang_vel, scale=0.25)
        gravity = ObsTermCfg(func=base_mdp.projected_gravity)
        command = ObsTermCfg(func=base_mdp.generated_commands, params=COMMAND)
        joint_angles = ObsTermCfg(func=base_mdp.joint_pos_rel)
        joint_velocities = ObsTermCfg(func=base_mdp.joint_vel_rel, scale=0.1)
        last_action = ObsTermCfg(func=base_mdp.last_action)
        trunk_mass = ObsTermCfg(func=mdp.body_mass, params={"asset_cfg": TRUNK})
        motor_stiffness = ObsTermCfg(
            func=mdp.joint_stiffness, params={"asset_cfg": SceneEntityCfg("robot")}, scale=0.1
        )
        pull = ObsTermCfg(func=mdp.pull, params={"asset_cfg": TRUNK}, scale=0.5)
        clock = ObsTermCfg(func=mdp.clock, params=CLOCK)

        def __post_init__(self) -> None:
            self.enable_corruption = False
            self.concatenate_terms = True

    policy: PolicyCfg = PolicyCfg()
    teacher: TeacherCfg = TeacherCfg()


@configclass
class EventsCfg:
    """Randomisation: physics once per environment, starts per episode, pushes in between."""

    payload = EventTermCfg(
        func=base_mdp.randomize_rigid_body_mass,  # pyright: ignore[reportArgumentType]
        mode="startup",
        params={
            "asset_cfg": TRUNK,
            "mass_distribution_params": (0.0, 1.0),  # kg
            "operation": "add",
        },
    )
    motor_stiffness = EventTermCfg(
        func=base_mdp.randomize_actuator_gains,  # pyright: ignore[reportArgumentType]
        mode="startup",
        params={
            "asset_cfg": SceneEntityCfg("robot"),
            "stiffness_distribution_params": (0.4, 1.6),
            "operation": "scale",
        },
    )
    pull = EventTermCfg(
        func=mdp.pull_ahead,
        mode="reset",
        params={"asset_cfg": TRUNK, "force_range": (-6.0, 6.0)},  # N
    )
    base_start = EventTermCfg(
        func=base_mdp.reset_root_state_uniform,  # pyright: ignore[reportArgumentType]
        mode="reset",
        params={
            "pose_range": {"yaw": (-3.14, 3.14)},
            "velocity_range": {"x": (-0.2, 0.2), "y": (-0.2, 0.2), "yaw": (-0.5, 0.5)},
        },
    )
    joint_start = EventTermCfg(
        func=base_mdp.reset_joints_by_offset,
        mode="reset",
        params={"position_range": (-0.15, 0.15), "velocity_range": (0.0, 0.0)},
    )
    push = EventTermCfg(
        func=base_mdp.push_by_setting_velocity,
        mode="interval",
        interval_range_s=(2.0, 4.0),
        params={"velocity_range": {"x": (-0.2, 0.2), "y": (-0.2, 0.2)}},
    )


@configclass
class RewardsCfg:
    """Reward per second: at most 1, for a robot that trots to the clock and follows commands."""

    track_linear_velocity = RewardTermCfg(
        func=base_mdp.track_lin_vel_xy_exp, weight=0.5, params=COMMAND | {"std": 0.12}
    )
    track_yaw_rate = RewardTermCfg(
        func=base_mdp.track_ang_vel_z_exp, weight=0.2, params=COMMAND | {"std": 0.5}
    )
    trot = RewardTermCfg(
        func=mdp.feet_follow_clock_exp,
        weight=0.3,
        params=CLOCK
        | {
            "asset_cfg": FEET,
            "foot": (0.0, 0.0, -0.09),  # m
            "radius": 0.015,  # m
            "phases": (0.0, 0.5, 0.5, 0.0),  # diagonal legs together
            "lift": 0.03,  # m
            "std": 0.02,  # m
        },
    )
    bounce = RewardTermCfg(func=base_mdp.lin_vel_z_l2, weight=-0.4)
    wobble = RewardTermCfg(func=base_mdp.ang_vel_xy_l2, weight=-0.06)
    tilt = RewardTermCfg(func=base_mdp.flat_orientation_l2, weight=-0.4)
    action_rate = RewardTermCfg(func=base_mdp.action_rate_l2, weight=-0.04)


@configclass
class TerminationsCfg:
    """The end of an episode."""

    time_out = TerminationTermCfg(func=base_mdp.time_out, time_out=True)
    sank = TerminationTermCfg(
        func=base_mdp.root_height_below_minimum, params={"minimum_height": 0.07}
    )
    tipped = TerminationTermCfg(func=base_mdp.bad_orientation, params={"limit_angle": 0.8})


@configclass
class PupFlatEnvCfg(ManagerBasedRLEnvCfg):
    """Follow a commanded velocity for 8 s at 50 Hz."""

    scene: PupSceneCfg = PupSceneCfg(num_envs=512, env_spacing=2.0)
    sim: SimulationCfg = SimulationCfg(
        dt=0.01,
        render_interval=2,
        physics=PupPhysicsCfg(),  # pyright: ignore[reportArgumentType]
    )
    decimation = 2
    episode_length_s = 8.0
    observations: ObservationsCfg = ObservationsCfg()
    actions: ActionsCfg = ActionsCfg()
    commands: CommandsCfg = CommandsCfg()
    events: EventsCfg = EventsCfg()
    rewards: RewardsCfg = RewardsCfg()
    terminations: TerminationsCfg = TerminationsCfg()

    def play_mode(self) -> None:
        """Keep the student's noise, which Isaac Lab disables for play, since it is the task."""
        super().play_mode()
        self.observations.policy.enable_corruption = True

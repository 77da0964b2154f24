"""Isaac Lab's cartpole, whose student sees noisy positions and no velocity."""

from isaaclab.envs import mdp
from isaaclab.managers import ObservationGroupCfg, ObservationTermCfg
from isaaclab.utils import configclass
from isaaclab.utils.noise import GaussianNoiseCfg
from isaaclab_tasks.core.cartpole.cartpole_manager_env_cfg import CartpoleEnvCfg, ObservationsCfg

from rsl_tbptt_tasks.isaaclab.cartpole import CartpolePhysicsCfg, CartpoleSceneCfg


@configclass
class PositionsCfg(ObservationGroupCfg):
    positions = ObservationTermCfg(func=mdp.joint_pos_rel, noise=GaussianNoiseCfg(std=0.02))
    enable_corruption = True  # without it Isaac Lab adds no noise


@configclass
class MyObservationsCfg:
    policy: PositionsCfg = PositionsCfg()
    teacher: ObservationsCfg.PolicyCfg = ObservationsCfg.PolicyCfg()  # with velocities


@configclass
class MyEnvCfg(CartpoleEnvCfg):
    # A robot whose file ships with a package: Isaac Lab's own comes from its asset server.
    scene: CartpoleSceneCfg = CartpoleSceneCfg(num_envs=256, env_spacing=5.0)
    observations: MyObservationsCfg = MyObservationsCfg()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sim.physics = CartpolePhysicsCfg().newton_mjwarp  # so commands need no physics=

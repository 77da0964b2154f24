"""Isaac Lab's cartpole, whose student sees noisy positions and no velocity."""

from importlib.resources import files

from isaaclab.envs import mdp
from isaaclab.managers import ObservationGroupCfg, ObservationTermCfg
from isaaclab.utils import configclass
from isaaclab.utils.noise import GaussianNoiseCfg
from isaaclab_newton.physics import MJWarpSolverCfg, NewtonCfg
from isaaclab_tasks.core.cartpole.cartpole_manager_env_cfg import CartpoleEnvCfg, ObservationsCfg

USD = str(files("rsl_tbptt_tasks") / "isaaclab" / "assets" / "cartpole.usda")


@configclass
class PositionsCfg(ObservationGroupCfg):
    positions = ObservationTermCfg(func=mdp.joint_pos_rel, noise=GaussianNoiseCfg(std=0.02))


@configclass
class MyObservationsCfg:
    policy: PositionsCfg = PositionsCfg()
    teacher: ObservationsCfg.PolicyCfg = ObservationsCfg.PolicyCfg()  # with velocities


@configclass
class MyEnvCfg(CartpoleEnvCfg):
    observations: MyObservationsCfg = MyObservationsCfg()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.scene.ground, self.scene.robot.spawn.usd_path = None, USD
        self.sim.physics = NewtonCfg(solver_cfg=MJWarpSolverCfg())  # commands need no physics=

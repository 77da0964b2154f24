"""mjlab's cartpole, whose student sees noisy positions and no velocity."""

from mjlab.envs import ManagerBasedRlEnvCfg
from mjlab.tasks.cartpole.cartpole_env_cfg import cartpole_balance_env_cfg
from mjlab.utils.noise import GaussianNoiseCfg


def env_cfg() -> ManagerBasedRlEnvCfg:
    """Return the task: ``actor`` has what the robot measures, ``critic`` has everything."""
    cfg = cartpole_balance_env_cfg()
    cfg.scene.num_envs = 256
    cfg.episode_length_s = 10.0
    cfg.sim.mujoco.timestep, cfg.decimation = 0.025, 2  # twice as fast as mjlab's own five substeps
    measured = cfg.observations["actor"].terms
    for velocity in ("cart_vel", "pole_vel"):
        del measured[velocity]
    for position in measured.values():
        position.noise = GaussianNoiseCfg(std=0.02)
    return cfg

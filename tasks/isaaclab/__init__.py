"""Isaac Lab tasks, registered through the entry-point group ``isaaclab.tasks``.

Isaac Lab imports this module at every start, so it has only registrations with string entry points
and imports nothing that could be missing there.
"""

import gymnasium as gym


def _register(task: str, env_cfg: str, agents: str) -> None:
    """Register a task with its teacher, its two students, recurrent PPO and fine-tuning.

    Args:
        task: Task id.
        env_cfg: ``"module:Class"`` of the environment, relative to this package.
        agents: ``"module:Prefix"`` of the agents, relative to this package.
    """
    prefix = f"{__name__}.{agents}"
    gym.register(
        id=task,
        entry_point="isaaclab.envs:ManagerBasedRLEnv",
        disable_env_checker=True,
        kwargs={
            "env_cfg_entry_point": f"{__name__}.{env_cfg}",
            "default_agent": "rsl_rl",
            "rsl_rl_cfg_entry_point": f"{prefix}TeacherCfg",
            "rsl_rl_distillation_recurrent_cfg_entry_point": f"{prefix}StudentCfg",
            "rsl_rl_distillation_cfg_entry_point": f"{prefix}MemorylessStudentCfg",
            "rsl_rl_recurrent_cfg_entry_point": f"{prefix}RecurrentCfg",
            "rsl_rl_finetune_cfg_entry_point": f"{prefix}FinetuneCfg",
        },
    )


_register("Tbptt-Cartpole-Occluded", "cartpole:OccludedCartpoleEnvCfg", "cartpole_agents:Cartpole")
_register(
    "Tbptt-Cartpole-Camera",
    "cartpole_camera:CameraCartpoleEnvCfg",
    "cartpole_camera_agents:CartpoleCamera",
)
for _robot, _name in (("AnymalD", "Anymal-D"), ("UnitreeGo2", "Unitree-Go2")):
    for _ground, _sees in (("Flat", ""), ("Rough", ""), ("Rough", "Scan")):
        _register(
            f"Tbptt-Velocity-{_ground}-{_name}" + (_sees and f"-{_sees}"),
            f"velocity:{_robot}{_ground}{_sees}TbpttEnvCfg",
            f"velocity_agents:{_robot}{_ground}{_sees}",
        )

"""A task of your own. Isaac Lab imports this at every start, so it only registers."""

import gymnasium as gym


def register() -> None:
    """Register the task; also what ``--external_callback`` calls, after importing this."""
    if "my_task" not in gym.registry:
        gym.register(
            id="my_task",
            entry_point="isaaclab.envs:ManagerBasedRLEnv",
            disable_env_checker=True,
            kwargs={
                "env_cfg_entry_point": "my_task.env:MyEnvCfg",
                "rsl_rl_cfg_entry_point": "my_task.agents:MyTeacherCfg",
                "rsl_rl_distillation_recurrent_cfg_entry_point": "my_task.agents:MyStudentCfg",
                "rsl_rl_recurrent_cfg_entry_point": "my_task.agents:MyRecurrentCfg",
                "rsl_rl_finetune_cfg_entry_point": "my_task.agents:MyFinetuneCfg",
            },
        )


register()

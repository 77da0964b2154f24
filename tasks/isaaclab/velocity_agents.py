"""Agents of the velocity tasks, sized for one GPU with 4096 environments.

Teachers are Isaac Lab's own PPO configs on the privileged group. Students differ in their teacher
only, whose network is taken from the PPO config because its checkpoint is loaded strictly.
Recurrent PPO and fine-tuning share the student's network, so that its checkpoint fits them too; the
critic is the teacher's and sees what that sees.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from isaaclab_rl.rsl_rl import (
    RslRlBaseRunnerCfg,
    RslRlDistillationRunnerCfg,
    RslRlMLPModelCfg,
    RslRlOnPolicyRunnerCfg,
    RslRlRNNModelCfg,
)
from isaaclab_tasks.core.velocity.config.anymal_d.agents.rsl_rl_ppo_cfg import (
    AnymalDFlatPPORunnerCfg,
    AnymalDRoughPPORunnerCfg,
)
from isaaclab_tasks.core.velocity.config.go2.agents.rsl_rl_ppo_cfg import (
    UnitreeGo2FlatPPORunnerCfg,
    UnitreeGo2RoughPPORunnerCfg,
)

from rsl_tbptt.integrations.isaaclab import TbpttDistillationAlgorithmCfg, TbpttPpoAlgorithmCfg

PPO = {
    "AnymalDFlat": AnymalDFlatPPORunnerCfg,
    "AnymalDRough": AnymalDRoughPPORunnerCfg,
    "UnitreeGo2Flat": UnitreeGo2FlatPPORunnerCfg,
    "UnitreeGo2Rough": UnitreeGo2RoughPPORunnerCfg,
}
"""Isaac Lab's agent of each task, whose networks and options the teacher has."""

EXPERIMENTS = {
    "AnymalDFlat": "tbptt_anymal_d_flat",
    "AnymalDRough": "tbptt_anymal_d_rough",
    "UnitreeGo2Flat": "tbptt_unitree_go2_flat",
    "UnitreeGo2Rough": "tbptt_unitree_go2_rough",
}
"""The log folder that the agents of a task share."""

STUDENT_OBS_GROUPS = {"student": ["policy"], "teacher": ["teacher"]}
RECURRENT_OBS_GROUPS = {"actor": ["policy"], "critic": ["teacher"]}

MEMORYLESS = RslRlMLPModelCfg(
    hidden_dims=[256, 256, 128],
    activation="elu",
    distribution_cfg=RslRlMLPModelCfg.GaussianDistributionCfg(init_std=0.1),
)

FINETUNING = TbpttPpoAlgorithmCfg(
    # As chosen on the occluded cartpole; nobody has tried others on these tasks.
    schedule="fixed",
    learning_rate=1.0e-3,
    entropy_coef=0.0,
    student_action_std=0.2,
    critic_warmup_iterations=20,
)


def lstm(init_std: float) -> RslRlRNNModelCfg:
    """Return the recurrent policy; ``init_std`` is the noise of its actions at the start."""
    return RslRlRNNModelCfg(
        rnn_type="lstm",
        rnn_hidden_dim=256,
        rnn_num_layers=1,
        hidden_dims=[256, 128],
        activation="elu",
        distribution_cfg=RslRlMLPModelCfg.GaussianDistributionCfg(init_std=init_std),
    )


def teacher_cfg(task: str) -> RslRlOnPolicyRunnerCfg:
    """Return Isaac Lab's own PPO, on the privileged group; ``task`` is a key of ``PPO``."""
    cfg = PPO[task]()
    cfg.experiment_name = EXPERIMENTS[task]
    cfg.run_name = "teacher"
    cfg.obs_groups = {"actor": ["teacher"], "critic": ["teacher"]}
    return cfg


def student_cfg(task: str) -> RslRlDistillationRunnerCfg:
    """Return the distillation of an LSTM on proprioception."""
    return RslRlDistillationRunnerCfg(
        experiment_name=EXPERIMENTS[task],
        run_name="student",
        num_steps_per_env=24,
        max_iterations=1000,
        save_interval=100,
        obs_groups=STUDENT_OBS_GROUPS,
        student=lstm(init_std=0.1),
        teacher=teacher_cfg(task).actor,
        algorithm=TbpttDistillationAlgorithmCfg(gradient_length=24),
    )


def memoryless_cfg(task: str) -> RslRlDistillationRunnerCfg:
    """Return the same without memory, to compare with."""
    cfg: Any = student_cfg(task)  # `replace` is added by a decorator, which hides it
    return cfg.replace(run_name="student_memoryless", student=MEMORYLESS)


def recurrent_cfg(task: str) -> RslRlOnPolicyRunnerCfg:
    """Return PPO from scratch on what the student sees, with the teacher's critic."""
    return RslRlOnPolicyRunnerCfg(
        experiment_name=EXPERIMENTS[task],
        run_name="recurrent",
        num_steps_per_env=24,
        max_iterations=1500,
        save_interval=100,
        obs_groups=RECURRENT_OBS_GROUPS,
        actor=lstm(init_std=1.0),
        critic=teacher_cfg(task).critic,
        algorithm=TbpttPpoAlgorithmCfg(gradient_length=24),
    )


def finetune_cfg(task: str) -> RslRlOnPolicyRunnerCfg:
    """Return PPO that goes on with the LSTM student."""
    cfg: Any = recurrent_cfg(task)
    return cfg.replace(run_name="finetune", max_iterations=300, algorithm=FINETUNING)


AGENTS = {
    "TeacherCfg": teacher_cfg,
    "StudentCfg": student_cfg,
    "MemorylessStudentCfg": memoryless_cfg,
    "RecurrentCfg": recurrent_cfg,
    "FinetuneCfg": finetune_cfg,
}


def __getattr__(name: str) -> Callable[[], RslRlBaseRunnerCfg]:
    """Return an agent by its entry point: ``AnymalDFlatTeacherCfg`` is called without arguments.

    Raises:
        AttributeError: If there is no such agent.
    """
    for task in PPO:
        if name.removeprefix(task) in AGENTS:
            return partial(AGENTS[name.removeprefix(task)], task)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")

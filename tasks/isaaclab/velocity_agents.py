"""Agents of the velocity tasks, sized for one GPU with 4096 environments.

Teachers are Isaac Lab's own PPO configs with the privileged group. Students differ only in their
teacher, whose network comes from the PPO config because its checkpoint is loaded strictly.
Recurrent PPO and fine-tuning have the student's network, so that its checkpoint fits them, too. The
critic is the teacher's, with the same observations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from isaaclab_rl.rsl_rl import (
    RslRlBaseRunnerCfg,
    RslRlCNNModelCfg,
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

from rsl_tbptt.integrations.isaaclab import (
    TbpttCnnRnnModelCfg,
    TbpttDistillationAlgorithmCfg,
    TbpttPpoAlgorithmCfg,
)

PPO = {
    "AnymalDFlat": AnymalDFlatPPORunnerCfg,
    "AnymalDRough": AnymalDRoughPPORunnerCfg,
    "UnitreeGo2Flat": UnitreeGo2FlatPPORunnerCfg,
    "UnitreeGo2Rough": UnitreeGo2RoughPPORunnerCfg,
    "AnymalDRoughScan": AnymalDRoughPPORunnerCfg,
    "UnitreeGo2RoughScan": UnitreeGo2RoughPPORunnerCfg,
}
"""Isaac Lab's agent of each task; the teacher has its networks and options."""

EXPERIMENTS = {
    "AnymalDFlat": "tbptt_anymal_d_flat",
    "AnymalDRough": "tbptt_anymal_d_rough",
    "UnitreeGo2Flat": "tbptt_unitree_go2_flat",
    "UnitreeGo2Rough": "tbptt_unitree_go2_rough",
    "AnymalDRoughScan": "tbptt_anymal_d_rough_scan",
    "UnitreeGo2RoughScan": "tbptt_unitree_go2_rough_scan",
}
"""The log folder that the agents of a task share."""

CNN = RslRlCNNModelCfg.CNNCfg(
    output_channels=[16, 32], kernel_size=[3, 3], stride=[2, 2], activation="elu"
)
"""CNN for the height scan of 11 by 17 rays."""

FINETUNING = TbpttPpoAlgorithmCfg(
    # The same as for the occluded cartpole; other values have not been tried on these tasks.
    schedule="fixed",
    learning_rate=1.0e-3,
    entropy_coef=0.0,
    student_action_std=0.2,
    critic_warmup_iterations=20,
)


def sees_scan(task: str) -> bool:
    """Return whether a task's student sees the height scan."""
    return task.endswith("Scan")


def student_groups(task: str) -> list[str]:
    """Return the observation groups of a task's student."""
    return ["policy", "scan"] if sees_scan(task) else ["policy"]


def lstm(task: str, init_std: float) -> RslRlRNNModelCfg | TbpttCnnRnnModelCfg:
    """Return the recurrent policy; ``init_std`` is the initial noise of its actions."""
    options: dict[str, Any] = {
        "rnn_type": "lstm",
        "rnn_hidden_dim": 256,
        "rnn_num_layers": 1,
        "hidden_dims": [256, 128],
        "activation": "elu",
        "distribution_cfg": RslRlMLPModelCfg.GaussianDistributionCfg(init_std=init_std),
    }
    if sees_scan(task):
        return TbpttCnnRnnModelCfg(cnn_cfg=CNN, **options)
    return RslRlRNNModelCfg(**options)


def memoryless(task: str) -> RslRlMLPModelCfg:
    """Return the policy without memory."""
    options: dict[str, Any] = {
        "hidden_dims": [256, 256, 128],
        "activation": "elu",
        "distribution_cfg": RslRlMLPModelCfg.GaussianDistributionCfg(init_std=0.1),
    }
    if sees_scan(task):
        return RslRlCNNModelCfg(cnn_cfg=CNN, **options)
    return RslRlMLPModelCfg(**options)


def teacher_cfg(task: str) -> RslRlOnPolicyRunnerCfg:
    """Return Isaac Lab's own PPO with the privileged group; ``task`` is a key of ``PPO``."""
    cfg = PPO[task]()
    cfg.experiment_name = EXPERIMENTS[task]
    cfg.run_name = "teacher"
    cfg.obs_groups = {"actor": ["teacher"], "critic": ["teacher"]}
    return cfg


def student_cfg(task: str) -> RslRlDistillationRunnerCfg:
    """Return the distillation of an LSTM on proprioception and, in scan tasks, the scan."""
    return RslRlDistillationRunnerCfg(
        experiment_name=EXPERIMENTS[task],
        run_name="student",
        num_steps_per_env=24,
        max_iterations=1000,
        save_interval=100,
        obs_groups={
            "student": student_groups(task),
            "teacher": ["teacher"],
            "actor": student_groups(task),  # LEAPP exports these groups, also for a student
        },
        student=lstm(task, init_std=0.1),
        teacher=teacher_cfg(task).actor,
        algorithm=TbpttDistillationAlgorithmCfg(gradient_length=24),
    )


def memoryless_cfg(task: str) -> RslRlDistillationRunnerCfg:
    """Return the distillation without memory, for comparison."""
    cfg: Any = student_cfg(task)  # `replace` is added by a decorator, which hides it
    return cfg.replace(run_name="student_memoryless", student=memoryless(task))


def recurrent_cfg(task: str) -> RslRlOnPolicyRunnerCfg:
    """Return PPO from scratch on the student's observations, with the teacher's critic."""
    return RslRlOnPolicyRunnerCfg(
        experiment_name=EXPERIMENTS[task],
        run_name="recurrent",
        num_steps_per_env=24,
        max_iterations=1500,
        save_interval=100,
        obs_groups={"actor": student_groups(task), "critic": ["teacher"]},
        actor=lstm(task, init_std=1.0),
        critic=teacher_cfg(task).critic,
        algorithm=TbpttPpoAlgorithmCfg(gradient_length=24),
    )


def finetune_cfg(task: str) -> RslRlOnPolicyRunnerCfg:
    """Return PPO that continues with the LSTM student."""
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
    """Return an agent's config function, such as ``AnymalDFlatTeacherCfg``, by its entry point.

    Raises:
        AttributeError: If there is no such agent.
    """
    for task in PPO:
        if name.removeprefix(task) in AGENTS:
            return partial(AGENTS[name.removeprefix(task)], task)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")

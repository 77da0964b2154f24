"""Teacher by PPO, recurrent student, recurrent PPO from scratch, and fine-tuning of the student."""

from typing import Any

from mjlab.rl import RslRlModelCfg, RslRlOnPolicyRunnerCfg

from rsl_tbptt.integrations.mjlab import (
    TbpttDistillationAlgorithmCfg,
    TbpttDistillationRunnerCfg,
    TbpttPpoAlgorithmCfg,
)

RUNS: dict[str, Any] = {"experiment_name": "my_task", "logger": "tensorboard"}
"""All runs log to one folder, where a student finds its teacher."""


def teacher_cfg() -> RslRlOnPolicyRunnerCfg:
    """Return PPO on everything."""
    return RslRlOnPolicyRunnerCfg(
        **RUNS,
        run_name="teacher",
        max_iterations=100,
        obs_groups={"actor": ("critic",), "critic": ("critic",)},
        actor=mlp(gaussian(1.0)),
        critic=mlp(),
        algorithm=TbpttPpoAlgorithmCfg(),
    )


def student_cfg() -> TbpttDistillationRunnerCfg:
    """Return an LSTM that imitates the teacher from what the robot measures."""
    return TbpttDistillationRunnerCfg(
        **RUNS,
        run_name="student",
        max_iterations=100,
        student=lstm(init_std=0.1),
        teacher=teacher_cfg().actor,  # so that the teacher's checkpoint fits
        algorithm=TbpttDistillationAlgorithmCfg(gradient_length=24),
    )


def recurrent_cfg() -> RslRlOnPolicyRunnerCfg:
    """Return PPO with memory from scratch; the critic sees everything and needs no memory."""
    return RslRlOnPolicyRunnerCfg(
        **RUNS,
        run_name="recurrent",
        max_iterations=300,
        actor=lstm(init_std=1.0),
        critic=mlp(),
        algorithm=TbpttPpoAlgorithmCfg(gradient_length=24),
    )


def finetune_cfg() -> RslRlOnPolicyRunnerCfg:
    """Return PPO that continues with the student."""
    cfg = recurrent_cfg()
    cfg.run_name, cfg.max_iterations = "finetune", 60
    cfg.algorithm = TbpttPpoAlgorithmCfg(
        gradient_length=24,
        schedule="fixed",
        entropy_coef=0.0,
        student_action_std=0.2,
        critic_warmup_iterations=20,  # a fresh critic must not spoil the student
    )
    return cfg


def mlp(noise: dict[str, Any] | None = None) -> RslRlModelCfg:
    """Return an MLP; with action noise it is a policy."""
    return RslRlModelCfg(hidden_dims=(64, 64), distribution_cfg=noise)


def lstm(init_std: float) -> RslRlModelCfg:
    """Return an LSTM policy."""
    return RslRlModelCfg(
        class_name="RNNModel",
        rnn_type="lstm",
        rnn_hidden_dim=64,
        hidden_dims=(64,),
        distribution_cfg=gaussian(init_std),
    )


def gaussian(init_std: float) -> dict[str, Any]:
    """Return the action noise that a policy explores with."""
    return {"class_name": "GaussianDistribution", "init_std": init_std}

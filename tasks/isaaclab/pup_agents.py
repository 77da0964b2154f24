"""Agents of the small quadruped, sized for two processor cores with 512 environments.

Teacher and students log to one experiment folder; the run name tells them apart.
"""

from __future__ import annotations

from isaaclab.utils import configclass
from isaaclab_rl.rsl_rl import (
    RslRlDistillationRunnerCfg,
    RslRlMLPModelCfg,
    RslRlOnPolicyRunnerCfg,
    RslRlPpoAlgorithmCfg,
    RslRlRNNModelCfg,
)

from rsl_tbptt.integrations.isaaclab import TbpttDistillationAlgorithmCfg, TbpttPpoAlgorithmCfg

EXPERIMENT = "tbptt_pup_flat"
TEACHER_OBS_GROUPS = {"actor": ["teacher"], "critic": ["teacher"]}
STUDENT_OBS_GROUPS = {"student": ["policy"], "teacher": ["teacher"]}

TEACHER = RslRlMLPModelCfg(
    hidden_dims=[128, 128],
    activation="elu",
    distribution_cfg=RslRlMLPModelCfg.GaussianDistributionCfg(init_std=0.6),
)
"""PPO's actor and the distillation's teacher, which must be equal for the checkpoint to fit."""

CRITIC = RslRlMLPModelCfg(hidden_dims=[128, 128], activation="elu")


def lstm(init_std: float) -> RslRlRNNModelCfg:
    """Return the recurrent policy; ``init_std`` is the initial noise of its actions."""
    return RslRlRNNModelCfg(
        rnn_type="lstm",
        rnn_hidden_dim=128,
        rnn_num_layers=1,
        hidden_dims=[128],
        activation="elu",
        obs_normalization=True,  # angles vary by a tenth of the clock's range
        distribution_cfg=RslRlMLPModelCfg.GaussianDistributionCfg(init_std=init_std),
    )


@configclass
class PupTeacherCfg(RslRlOnPolicyRunnerCfg):
    """PPO on the exact state and the randomised physics."""

    experiment_name = EXPERIMENT
    run_name = "teacher"
    num_steps_per_env = 16
    max_iterations = 300
    save_interval = 50
    obs_groups = TEACHER_OBS_GROUPS
    actor = TEACHER
    critic = CRITIC
    algorithm = RslRlPpoAlgorithmCfg(
        num_learning_epochs=5,
        num_mini_batches=4,
        learning_rate=1.0e-3,
        schedule="adaptive",
        gamma=0.98,  # 1 s of 50 steps: longer than a gait's cycle
        lam=0.95,
        entropy_coef=0.0,
        desired_kl=0.01,
        max_grad_norm=1.0,
        value_loss_coef=1.0,
        use_clipped_value_loss=True,
        clip_param=0.2,
    )


@configclass
class PupStudentCfg(RslRlDistillationRunnerCfg):
    """An LSTM that imitates the teacher from the robot's own measurements."""

    experiment_name = EXPERIMENT
    run_name = "student"
    num_steps_per_env = 24
    max_iterations = 140
    save_interval = 20
    obs_groups = STUDENT_OBS_GROUPS
    student = lstm(init_std=0.1)
    teacher = TEACHER
    algorithm = TbpttDistillationAlgorithmCfg(gradient_length=12)


@configclass
class PupMemorylessStudentCfg(PupStudentCfg):
    """The student without memory, to show what memory is worth."""

    run_name = "student_memoryless"
    student = RslRlMLPModelCfg(
        hidden_dims=[128, 128],
        activation="elu",
        obs_normalization=True,
        distribution_cfg=RslRlMLPModelCfg.GaussianDistributionCfg(init_std=0.1),
    )


@configclass
class PupRecurrentCfg(RslRlOnPolicyRunnerCfg):
    """PPO from scratch on the student's observations: an LSTM actor and a privileged critic."""

    experiment_name = EXPERIMENT
    run_name = "recurrent"
    num_steps_per_env = 24
    max_iterations = 300
    save_interval = 50
    obs_groups = TEACHER_OBS_GROUPS | {"actor": ["policy"]}
    actor = lstm(init_std=1.0)
    critic = CRITIC
    algorithm = TbpttPpoAlgorithmCfg(gradient_length=24, gamma=0.98, entropy_coef=0.003)


@configclass
class PupFinetuneCfg(PupRecurrentCfg):
    """PPO that continues with the distilled student; ``--checkpoint`` names its file."""

    run_name = "finetune"
    max_iterations = 60
    save_interval = 50
    algorithm = TbpttPpoAlgorithmCfg(
        gradient_length=24,
        gamma=0.98,
        # The same as for the occluded cartpole; other values have not been tried on this task.
        schedule="fixed",
        learning_rate=1.0e-3,
        entropy_coef=0.0,
        student_action_std=0.2,
        critic_warmup_iterations=20,
    )

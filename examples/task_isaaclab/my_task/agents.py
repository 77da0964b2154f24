"""Teacher by PPO, recurrent student, recurrent PPO from scratch, and fine-tuning of the student."""

from isaaclab.utils import configclass
from isaaclab_rl.rsl_rl import (
    RslRlDistillationRunnerCfg,
    RslRlMLPModelCfg,
    RslRlOnPolicyRunnerCfg,
    RslRlRNNModelCfg,
)

from rsl_tbptt.integrations.isaaclab import TbpttDistillationAlgorithmCfg, TbpttPpoAlgorithmCfg

NOISE = RslRlMLPModelCfg.GaussianDistributionCfg(init_std=0.1)
EXPLORE = RslRlMLPModelCfg.GaussianDistributionCfg(init_std=1.0)
LSTM = {"rnn_type": "lstm", "rnn_hidden_dim": 256, "rnn_num_layers": 1, "hidden_dims": [256, 128]}


@configclass
class MyTeacherCfg(RslRlOnPolicyRunnerCfg):
    experiment_name, run_name = "my_task", "teacher"
    num_steps_per_env, max_iterations, save_interval = 24, 100, 50
    obs_groups = {"actor": ["teacher"], "critic": ["teacher"]}
    actor = RslRlMLPModelCfg(hidden_dims=[64, 64], activation="elu", distribution_cfg=EXPLORE)
    critic = RslRlMLPModelCfg(hidden_dims=[64, 64], activation="elu")
    algorithm = TbpttPpoAlgorithmCfg()


@configclass
class MyStudentCfg(RslRlDistillationRunnerCfg):
    experiment_name, run_name = "my_task", "student"
    num_steps_per_env, max_iterations, save_interval = 24, 1000, 100
    obs_groups = {"student": ["policy"], "teacher": ["teacher"]}
    student = RslRlRNNModelCfg(**LSTM, activation="elu", distribution_cfg=NOISE)
    teacher = MyTeacherCfg().actor
    algorithm = TbpttDistillationAlgorithmCfg(gradient_length=24)


@configclass
class MyRecurrentCfg(RslRlOnPolicyRunnerCfg):
    experiment_name, run_name = "my_task", "recurrent"
    num_steps_per_env, max_iterations, save_interval = 24, 1500, 100
    obs_groups = {"actor": ["policy"], "critic": ["teacher"]}
    actor = RslRlRNNModelCfg(**LSTM, activation="elu", distribution_cfg=EXPLORE)
    critic = MyTeacherCfg().critic
    algorithm = TbpttPpoAlgorithmCfg(gradient_length=24)


@configclass
class MyFinetuneCfg(MyRecurrentCfg):
    run_name, max_iterations = "finetune", 60
    algorithm = TbpttPpoAlgorithmCfg(
        gradient_length=24,
        schedule="fixed",
        learning_rate=3.0e-4,
        entropy_coef=0.0,
        student_action_std=0.2,
        critic_warmup_iterations=20,  # a fresh critic must not spoil the student
    )

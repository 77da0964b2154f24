"""Teacher by PPO and recurrent student; the student is that of docs/howto/isaaclab.md."""

from isaaclab.utils import configclass
from isaaclab_rl.rsl_rl import (
    RslRlDistillationRunnerCfg,
    RslRlMLPModelCfg,
    RslRlOnPolicyRunnerCfg,
    RslRlRNNModelCfg,
)

from rsl_tbptt.integrations.isaaclab import TbpttDistillationAlgorithmCfg, TbpttPpoAlgorithmCfg

TEACHER_NOISE = RslRlMLPModelCfg.GaussianDistributionCfg(init_std=1.0)
NOISE = RslRlMLPModelCfg.GaussianDistributionCfg(init_std=0.1)
LSTM = {"rnn_type": "lstm", "rnn_hidden_dim": 256, "rnn_num_layers": 1, "hidden_dims": [256, 128]}


@configclass
class MyTeacherCfg(RslRlOnPolicyRunnerCfg):
    experiment_name, run_name = "my_task", "teacher"
    num_steps_per_env, max_iterations, save_interval = 24, 100, 50
    obs_groups = {"actor": ["teacher"], "critic": ["teacher"]}
    actor = RslRlMLPModelCfg(hidden_dims=[64, 64], activation="elu", distribution_cfg=TEACHER_NOISE)
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

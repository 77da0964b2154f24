"""Agents of the cartpole from pixels, sized for two processor cores with 128 environments.

Teacher and students log to one experiment folder; the run name says which is which.
"""

from __future__ import annotations

from isaaclab.utils import configclass
from isaaclab_rl.rsl_rl import RslRlCNNModelCfg, RslRlMLPModelCfg

from rsl_tbptt.integrations.isaaclab import TbpttCnnRnnModelCfg, TbpttDistillationAlgorithmCfg
from rsl_tbptt_tasks.isaaclab.cartpole_agents import (
    TEACHER_OBS_GROUPS,
    CartpoleFinetuneCfg,
    CartpoleRecurrentCfg,
    CartpoleStudentCfg,
    CartpoleTeacherCfg,
)

EXPERIMENT = "tbptt_cartpole_camera"
STUDENT_OBS_GROUPS = {
    "student": ["camera"],
    "teacher": ["teacher"],
    "actor": ["camera"],  # LEAPP exports these, of a student too
}
ACTOR_OBS_GROUPS = TEACHER_OBS_GROUPS | {"actor": ["camera"]}

CNN = RslRlCNNModelCfg.CNNCfg(
    output_channels=[8, 16, 16],
    kernel_size=[5, 3, 3],
    stride=[2, 2, 2],
    # Frames are nearly empty; without it the memory saturates before the CNN sees anything.
    norm="layer",
    activation="relu",
)
STUDENT_STD = 0.4
"""Noise of the students' actions: with little of it all poles fall alike at first, and it takes
longer until the CNN sees which way."""


def cnn_lstm(init_std: float) -> TbpttCnnRnnModelCfg:
    """Return the policy that sees; ``init_std`` is the noise of its actions at the start."""
    return TbpttCnnRnnModelCfg(
        cnn_cfg=CNN,
        rnn_type="lstm",
        rnn_hidden_dim=64,
        rnn_num_layers=1,
        hidden_dims=[64],
        activation="elu",
        distribution_cfg=RslRlMLPModelCfg.GaussianDistributionCfg(init_std=init_std),
    )


@configclass
class CartpoleCameraTeacherCfg(CartpoleTeacherCfg):
    """PPO on the exact state and the randomised physics."""

    experiment_name = EXPERIMENT
    max_iterations = 100


@configclass
class CartpoleCameraStudentCfg(CartpoleStudentCfg):
    """A CNN and an LSTM that imitate the teacher from depth frames."""

    experiment_name = EXPERIMENT
    max_iterations = 150
    obs_groups = STUDENT_OBS_GROUPS
    student = cnn_lstm(init_std=STUDENT_STD)
    algorithm = TbpttDistillationAlgorithmCfg(
        gradient_length=16,
        loss_type="huber",  # the labels of poles that are past saving are large, and teach little
        # Frames of few environments say little; with the defaults, 8 and 1, each update swings.
        num_mini_batches=4,
        buffer_share=3.0,
        learning_rate_updates=150,
    )


@configclass
class CartpoleCameraMemorylessStudentCfg(CartpoleCameraStudentCfg):
    """The same CNN without memory, to show that frames alone do not do."""

    run_name = "student_memoryless"
    student = RslRlCNNModelCfg(
        cnn_cfg=CNN,
        hidden_dims=[64, 64],
        activation="elu",
        distribution_cfg=RslRlMLPModelCfg.GaussianDistributionCfg(init_std=STUDENT_STD),
    )


@configclass
class CartpoleCameraRecurrentCfg(CartpoleRecurrentCfg):
    """PPO from scratch on depth frames, with a critic that sees all."""

    experiment_name = EXPERIMENT
    obs_groups = ACTOR_OBS_GROUPS
    actor = cnn_lstm(init_std=1.0)


@configclass
class CartpoleCameraFinetuneCfg(CartpoleFinetuneCfg):
    """PPO that goes on with the distilled student; ``--checkpoint`` names its file."""

    experiment_name = EXPERIMENT
    obs_groups = ACTOR_OBS_GROUPS
    actor = cnn_lstm(init_std=1.0)

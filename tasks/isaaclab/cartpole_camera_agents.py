"""Agents of the cartpole from pixels, sized for two processor cores with 128 environments.

Teacher and students log to one experiment folder; the run name tells them apart.
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
    "actor": ["camera"],  # LEAPP exports these groups, also for a student
}
ACTOR_OBS_GROUPS = TEACHER_OBS_GROUPS | {"actor": ["camera"]}

CNN = RslRlCNNModelCfg.CNNCfg(
    output_channels=[8, 16, 16],
    kernel_size=[5, 3, 3],
    stride=[2, 2, 2],
    # Frames are nearly empty; without it the LSTM saturates before the CNN has learned anything.
    norm="layer",
    activation="relu",
)
STUDENT_STD = 0.4
"""Noise of the students' actions: with little noise all poles fall in the same way at first, and
the CNN takes longer to see the direction."""


def cnn_lstm(init_std: float) -> TbpttCnnRnnModelCfg:
    """Return the CNN and LSTM policy; ``init_std`` is the initial noise of its actions."""
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
        loss_type="huber",  # poles that cannot be saved have large labels, which teach little
        # Frames of few environments tell little: with the defaults, 8 and 1, updates oscillate.
        num_mini_batches=4,
        buffer_share=3.0,
    )


@configclass
class CartpoleCameraMemorylessStudentCfg(CartpoleCameraStudentCfg):
    """The same CNN without memory, to show that frames alone do not suffice."""

    run_name = "student_memoryless"
    student = RslRlCNNModelCfg(
        cnn_cfg=CNN,
        hidden_dims=[64, 64],
        activation="elu",
        distribution_cfg=RslRlMLPModelCfg.GaussianDistributionCfg(init_std=STUDENT_STD),
    )


@configclass
class CartpoleCameraRecurrentCfg(CartpoleRecurrentCfg):
    """PPO from scratch on depth frames, with a privileged critic."""

    experiment_name = EXPERIMENT
    obs_groups = ACTOR_OBS_GROUPS
    actor = cnn_lstm(init_std=1.0)


@configclass
class CartpoleCameraFinetuneCfg(CartpoleFinetuneCfg):
    """PPO that continues with the distilled student; ``--checkpoint`` names its file."""

    experiment_name = EXPERIMENT
    obs_groups = ACTOR_OBS_GROUPS
    actor = cnn_lstm(init_std=1.0)

"""Agents of the small quadruped with a camera, sized for two processor cores.

Teacher and students log to one experiment folder; the run name tells them apart.
"""

from __future__ import annotations

from isaaclab.utils import configclass
from isaaclab_rl.rsl_rl import RslRlCNNModelCfg, RslRlMLPModelCfg, RslRlSymmetryCfg

from rsl_tbptt.integrations.isaaclab import TbpttCnnRnnModelCfg, TbpttDistillationAlgorithmCfg
from rsl_tbptt_tasks.isaaclab.pup_agents import (
    TEACHER_OBS_GROUPS,
    PupFinetuneCfg,
    PupRecurrentCfg,
    PupStudentCfg,
    PupTeacherCfg,
)

EXPERIMENT = "tbptt_pup_seek"
STUDENT_OBS_GROUPS = {
    "student": ["policy", "camera"],
    "teacher": ["teacher"],
    "actor": ["policy", "camera"],  # LEAPP exports these groups, also for a student
}
ACTOR_OBS_GROUPS = TEACHER_OBS_GROUPS | {"actor": ["policy", "camera"]}

CNN = RslRlCNNModelCfg.CNNCfg(
    output_channels=[8, 16, 16],
    kernel_size=[3, 3, 3],
    stride=[2, 2, 1],
    norm="layer",
    activation="elu",
)


def cnn_lstm(init_std: float) -> TbpttCnnRnnModelCfg:
    """Return the CNN and LSTM policy; ``init_std`` is the initial noise of its actions."""
    return TbpttCnnRnnModelCfg(
        cnn_cfg=CNN,
        rnn_type="lstm",
        rnn_hidden_dim=128,
        rnn_num_layers=1,
        hidden_dims=[128],
        activation="elu",
        obs_normalization=True,
        distribution_cfg=RslRlMLPModelCfg.GaussianDistributionCfg(init_std=init_std),
    )


@configclass
class PupSeekTeacherCfg(PupTeacherCfg):
    """PPO on the exact state, the randomised physics and the way."""

    experiment_name = EXPERIMENT
    max_iterations = 200

    def __post_init__(self) -> None:
        """Train on the mirror image as well: without it a teacher turned well to one side only."""
        self.algorithm.symmetry_cfg = RslRlSymmetryCfg(
            use_data_augmentation=True,
            data_augmentation_func="rsl_tbptt_tasks.isaaclab.pup_symmetry:with_mirror_image",
        )


@configclass
class PupSeekStudentCfg(PupStudentCfg):
    """A CNN and an LSTM that imitate the teacher from the robot's own sensors and camera."""

    experiment_name = EXPERIMENT
    obs_groups = STUDENT_OBS_GROUPS
    num_steps_per_env = 48
    max_iterations = 200
    student = cnn_lstm(init_std=0.1)
    algorithm = TbpttDistillationAlgorithmCfg(
        gradient_length=48,
        num_mini_batches=16,
        # Shows the wall's side and the pillar from the start, where a beginner does not get.
        teacher_action_share=0.5,
        teacher_action_updates=60,
    )


@configclass
class PupSeekMemorylessStudentCfg(PupSeekStudentCfg):
    """The same CNN without memory, to show what memory is worth."""

    run_name = "student_memoryless"
    student = RslRlCNNModelCfg(
        cnn_cfg=CNN,
        hidden_dims=[128, 128],
        activation="elu",
        obs_normalization=True,
        distribution_cfg=RslRlMLPModelCfg.GaussianDistributionCfg(init_std=0.1),
    )


@configclass
class PupSeekRecurrentCfg(PupRecurrentCfg):
    """PPO from scratch on the student's observations, with a privileged critic."""

    experiment_name = EXPERIMENT
    obs_groups = ACTOR_OBS_GROUPS
    actor = cnn_lstm(init_std=1.0)


@configclass
class PupSeekFinetuneCfg(PupFinetuneCfg):
    """PPO that continues with the distilled student; ``--checkpoint`` names its file."""

    experiment_name = EXPERIMENT
    obs_groups = ACTOR_OBS_GROUPS
    actor = cnn_lstm(init_std=1.0)

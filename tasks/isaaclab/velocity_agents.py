"""Agents of the velocity tasks, sized for one GPU with 4096 environments.

Teachers are Isaac Lab's own PPO configs on the privileged group. Students differ in their teacher
only, whose network is taken from the PPO config because its checkpoint is loaded strictly.
"""

from __future__ import annotations

from isaaclab.utils import configclass
from isaaclab_rl.rsl_rl import RslRlDistillationRunnerCfg, RslRlMLPModelCfg, RslRlRNNModelCfg
from isaaclab_tasks.core.velocity.config.anymal_d.agents.rsl_rl_ppo_cfg import (
    AnymalDFlatPPORunnerCfg,
    AnymalDRoughPPORunnerCfg,
)
from isaaclab_tasks.core.velocity.config.go2.agents.rsl_rl_ppo_cfg import (
    UnitreeGo2FlatPPORunnerCfg,
    UnitreeGo2RoughPPORunnerCfg,
)

from rsl_tbptt.integrations.isaaclab import TbpttDistillationAlgorithmCfg

TEACHER_OBS_GROUPS = {"actor": ["teacher"], "critic": ["teacher"]}
STUDENT_OBS_GROUPS = {"student": ["policy"], "teacher": ["teacher"]}

MEMORYLESS = RslRlMLPModelCfg(
    hidden_dims=[256, 256, 128],
    activation="elu",
    distribution_cfg=RslRlMLPModelCfg.GaussianDistributionCfg(init_std=0.1),
)


@configclass
class VelocityStudentCfg(RslRlDistillationRunnerCfg):
    """An LSTM on proprioception; a task adds its experiment name and its teacher."""

    run_name = "student"
    num_steps_per_env = 24
    max_iterations = 1000
    save_interval = 100
    obs_groups = STUDENT_OBS_GROUPS
    student = RslRlRNNModelCfg(
        rnn_type="lstm",
        rnn_hidden_dim=256,
        rnn_num_layers=1,
        hidden_dims=[256, 128],
        activation="elu",
        distribution_cfg=RslRlMLPModelCfg.GaussianDistributionCfg(init_std=0.1),
    )
    algorithm = TbpttDistillationAlgorithmCfg(num_learning_epochs=2, gradient_length=24)


@configclass
class AnymalDFlatTeacherCfg(AnymalDFlatPPORunnerCfg):
    """PPO for ANYmal-D on flat ground."""

    obs_groups = TEACHER_OBS_GROUPS
    run_name = "teacher"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.experiment_name = "tbptt_anymal_d_flat"


@configclass
class AnymalDFlatStudentCfg(VelocityStudentCfg):
    """LSTM student for ANYmal-D on flat ground."""

    experiment_name = "tbptt_anymal_d_flat"
    teacher = AnymalDFlatTeacherCfg().actor


@configclass
class AnymalDFlatMemorylessStudentCfg(AnymalDFlatStudentCfg):
    """Memoryless student for ANYmal-D on flat ground."""

    run_name = "student_memoryless"
    student = MEMORYLESS


@configclass
class AnymalDRoughTeacherCfg(AnymalDRoughPPORunnerCfg):
    """PPO for ANYmal-D on rough ground."""

    obs_groups = TEACHER_OBS_GROUPS
    run_name = "teacher"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.experiment_name = "tbptt_anymal_d_rough"


@configclass
class AnymalDRoughStudentCfg(VelocityStudentCfg):
    """LSTM student for ANYmal-D on rough ground."""

    experiment_name = "tbptt_anymal_d_rough"
    teacher = AnymalDRoughTeacherCfg().actor


@configclass
class AnymalDRoughMemorylessStudentCfg(AnymalDRoughStudentCfg):
    """Memoryless student for ANYmal-D on rough ground."""

    run_name = "student_memoryless"
    student = MEMORYLESS


@configclass
class UnitreeGo2FlatTeacherCfg(UnitreeGo2FlatPPORunnerCfg):
    """PPO for Unitree Go2 on flat ground."""

    obs_groups = TEACHER_OBS_GROUPS
    run_name = "teacher"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.experiment_name = "tbptt_unitree_go2_flat"


@configclass
class UnitreeGo2FlatStudentCfg(VelocityStudentCfg):
    """LSTM student for Unitree Go2 on flat ground."""

    experiment_name = "tbptt_unitree_go2_flat"
    teacher = UnitreeGo2FlatTeacherCfg().actor


@configclass
class UnitreeGo2FlatMemorylessStudentCfg(UnitreeGo2FlatStudentCfg):
    """Memoryless student for Unitree Go2 on flat ground."""

    run_name = "student_memoryless"
    student = MEMORYLESS


@configclass
class UnitreeGo2RoughTeacherCfg(UnitreeGo2RoughPPORunnerCfg):
    """PPO for Unitree Go2 on rough ground."""

    obs_groups = TEACHER_OBS_GROUPS
    run_name = "teacher"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.experiment_name = "tbptt_unitree_go2_rough"


@configclass
class UnitreeGo2RoughStudentCfg(VelocityStudentCfg):
    """LSTM student for Unitree Go2 on rough ground."""

    experiment_name = "tbptt_unitree_go2_rough"
    teacher = UnitreeGo2RoughTeacherCfg().actor


@configclass
class UnitreeGo2RoughMemorylessStudentCfg(UnitreeGo2RoughStudentCfg):
    """Memoryless student for Unitree Go2 on rough ground."""

    run_name = "student_memoryless"
    student = MEMORYLESS

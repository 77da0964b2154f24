"""Agents of the velocity tasks, sized for one GPU with 4096 environments.

Teachers are Isaac Lab's own PPO configs on the privileged group. Students differ in their teacher
only, whose network is taken from the PPO config because its checkpoint is loaded strictly.
Recurrent PPO and fine-tuning share the student's network, so that its checkpoint fits them too; the
critic is the teacher's and sees what that sees.
"""

from __future__ import annotations

from isaaclab.utils import configclass
from isaaclab_rl.rsl_rl import (
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

TEACHER_OBS_GROUPS = {"actor": ["teacher"], "critic": ["teacher"]}
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


@configclass
class VelocityStudentCfg(RslRlDistillationRunnerCfg):
    """An LSTM on proprioception; a task adds its experiment name and its teacher."""

    run_name = "student"
    num_steps_per_env = 24
    max_iterations = 1000
    save_interval = 100
    obs_groups = STUDENT_OBS_GROUPS
    student = lstm(init_std=0.1)
    algorithm = TbpttDistillationAlgorithmCfg(num_learning_epochs=2, gradient_length=24)


@configclass
class VelocityRecurrentCfg(RslRlOnPolicyRunnerCfg):
    """PPO from scratch on proprioception; a task adds its experiment name and its critic."""

    run_name = "recurrent"
    num_steps_per_env = 24
    max_iterations = 1500
    save_interval = 100
    obs_groups = RECURRENT_OBS_GROUPS
    actor = lstm(init_std=1.0)
    algorithm = TbpttPpoAlgorithmCfg(gradient_length=24)


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
class AnymalDFlatRecurrentCfg(VelocityRecurrentCfg):
    """Recurrent PPO for ANYmal-D on flat ground."""

    experiment_name = "tbptt_anymal_d_flat"
    critic = AnymalDFlatTeacherCfg().critic


@configclass
class AnymalDFlatFinetuneCfg(AnymalDFlatRecurrentCfg):
    """PPO that goes on with the LSTM student for ANYmal-D on flat ground."""

    run_name = "finetune"
    max_iterations = 300
    algorithm = FINETUNING


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
class AnymalDRoughRecurrentCfg(VelocityRecurrentCfg):
    """Recurrent PPO for ANYmal-D on rough ground."""

    experiment_name = "tbptt_anymal_d_rough"
    critic = AnymalDRoughTeacherCfg().critic


@configclass
class AnymalDRoughFinetuneCfg(AnymalDRoughRecurrentCfg):
    """PPO that goes on with the LSTM student for ANYmal-D on rough ground."""

    run_name = "finetune"
    max_iterations = 300
    algorithm = FINETUNING


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
class UnitreeGo2FlatRecurrentCfg(VelocityRecurrentCfg):
    """Recurrent PPO for Unitree Go2 on flat ground."""

    experiment_name = "tbptt_unitree_go2_flat"
    critic = UnitreeGo2FlatTeacherCfg().critic


@configclass
class UnitreeGo2FlatFinetuneCfg(UnitreeGo2FlatRecurrentCfg):
    """PPO that goes on with the LSTM student for Unitree Go2 on flat ground."""

    run_name = "finetune"
    max_iterations = 300
    algorithm = FINETUNING


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


@configclass
class UnitreeGo2RoughRecurrentCfg(VelocityRecurrentCfg):
    """Recurrent PPO for Unitree Go2 on rough ground."""

    experiment_name = "tbptt_unitree_go2_rough"
    critic = UnitreeGo2RoughTeacherCfg().critic


@configclass
class UnitreeGo2RoughFinetuneCfg(UnitreeGo2RoughRecurrentCfg):
    """PPO that goes on with the LSTM student for Unitree Go2 on rough ground."""

    run_name = "finetune"
    max_iterations = 300
    algorithm = FINETUNING

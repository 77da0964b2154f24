"""Agents of the cartpole from pixels, sized for two processor cores with 128 environments.

They log to one experiment folder; the run name tells them apart.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mjlab.rl import RslRlModelCfg, RslRlOnPolicyRunnerCfg

from rsl_tbptt.integrations.mjlab import (
    TbpttCnnRnnModelCfg,
    TbpttDistillationAlgorithmCfg,
    TbpttDistillationRunnerCfg,
)
from rsl_tbptt_tasks.mjlab import cartpole_agents

EXPERIMENT = "tbptt_cartpole_camera"

CNN: dict[str, Any] = {
    "output_channels": [8, 16, 16],
    "kernel_size": [5, 3, 3],
    "stride": [2, 2, 2],
    # Frames are nearly empty; without it the LSTM saturates before the CNN has learned anything.
    "norm": "layer",
    "activation": "relu",
}


def teacher_cfg() -> RslRlOnPolicyRunnerCfg:
    """Return PPO on the exact state and the randomised physics."""
    return replace(
        cartpole_agents.teacher_cfg(),
        experiment_name=EXPERIMENT,
        max_iterations=60,  # it has a quarter of the occluded task's environments
    )


def student_cfg() -> TbpttDistillationRunnerCfg:
    """Return the distillation of a CNN and an LSTM that see depth frames."""
    return replace(
        cartpole_agents.student_cfg(),
        experiment_name=EXPERIMENT,
        max_iterations=110,
        obs_groups={"student": ("camera",), "teacher": ("critic",)},
        student=_cnn_lstm(init_std=0.1),
        algorithm=TbpttDistillationAlgorithmCfg(
            gradient_length=16,
            # Poles that cannot be saved have large labels, which teach little.
            loss_type="huber",
        ),
    )


def memoryless_cfg() -> TbpttDistillationRunnerCfg:
    """Return the same CNN without memory, to show that frames alone do not suffice."""
    return replace(
        student_cfg(),
        run_name="memoryless",
        student=RslRlModelCfg(
            class_name="CNNModel",
            cnn_cfg=CNN,
            hidden_dims=(64, 64),
            distribution_cfg=cartpole_agents.gaussian(init_std=0.1),
        ),
    )


def recurrent_cfg() -> RslRlOnPolicyRunnerCfg:
    """Return PPO from scratch on depth frames, with a privileged critic."""
    return replace(
        cartpole_agents.recurrent_cfg(),
        experiment_name=EXPERIMENT,
        obs_groups={"actor": ("camera",), "critic": ("critic",)},
        actor=_cnn_lstm(init_std=1.0),
    )


def _cnn_lstm(init_std: float) -> TbpttCnnRnnModelCfg:
    """Return the CNN and LSTM policy; ``init_std`` is the initial noise of its actions."""
    return TbpttCnnRnnModelCfg(
        cnn_cfg=CNN,
        rnn_type="lstm",
        rnn_hidden_dim=64,
        hidden_dims=(64,),
        distribution_cfg=cartpole_agents.gaussian(init_std),
    )

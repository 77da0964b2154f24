"""Agents and runners of the velocity tasks, sized for one GPU with 4096 environments."""

from __future__ import annotations

from typing import Any

from mjlab.rl import RslRlModelCfg, RslRlOnPolicyRunnerCfg
from mjlab.tasks.velocity.config.go1.rl_cfg import unitree_go1_ppo_runner_cfg
from mjlab.tasks.velocity.rl import VelocityOnPolicyRunner

from rsl_tbptt.integrations.mjlab.config import (
    TbpttDistillationAlgorithmCfg,
    TbpttDistillationRunnerCfg,
    TbpttPpoAlgorithmCfg,
)
from rsl_tbptt.integrations.mjlab.runner import (
    TbpttMjlabDistillationRunner,
    TbpttMjlabRecurrentRunner,
)


class VelocityDistillationRunner(TbpttMjlabDistillationRunner, VelocityOnPolicyRunner):
    """Distillation that exports the student with mjlab's metadata at every save."""


class VelocityRecurrentRunner(TbpttMjlabRecurrentRunner, VelocityOnPolicyRunner):
    """Recurrent PPO that exports its policy with mjlab's metadata at every save."""


def teacher_cfg(terrain: str) -> RslRlOnPolicyRunnerCfg:
    """Return mjlab's own PPO, on what its critic sees."""
    cfg = unitree_go1_ppo_runner_cfg()
    cfg.experiment_name = experiment_name(terrain)
    cfg.logger = "tensorboard"
    cfg.run_name = "teacher"
    cfg.obs_groups = {"actor": ("critic",), "critic": ("critic",)}
    return cfg


def student_cfg(terrain: str) -> TbpttDistillationRunnerCfg:
    """Return the distillation of an LSTM on proprioception."""
    return TbpttDistillationRunnerCfg(
        experiment_name=experiment_name(terrain),
        logger="tensorboard",
        run_name="student",
        num_steps_per_env=24,
        max_iterations=1000,
        save_interval=100,
        student=_lstm(init_std=0.1),
        teacher=teacher_cfg(terrain).actor,
        algorithm=TbpttDistillationAlgorithmCfg(gradient_length=24),
    )


def memoryless_cfg(terrain: str) -> TbpttDistillationRunnerCfg:
    """Return the same without memory, to compare with."""
    cfg = student_cfg(terrain)
    cfg.run_name = "memoryless"
    cfg.student = RslRlModelCfg(
        hidden_dims=(512, 256, 128), obs_normalization=True, distribution_cfg=_gaussian(0.1)
    )
    return cfg


def recurrent_cfg(terrain: str) -> RslRlOnPolicyRunnerCfg:
    """Return PPO from scratch on what the student sees, with mjlab's own critic."""
    cfg = teacher_cfg(terrain)
    cfg.run_name = "recurrent"
    cfg.obs_groups = {"actor": ("actor",), "critic": ("critic",)}
    cfg.actor = _lstm(init_std=1.0)
    cfg.algorithm = TbpttPpoAlgorithmCfg()
    return cfg


def experiment_name(terrain: str) -> str:
    """Return the log folder that the agents of a task share."""
    return f"tbptt_go1_{terrain.lower()}"


def _lstm(init_std: float) -> RslRlModelCfg:
    return RslRlModelCfg(
        class_name="RNNModel",
        rnn_type="lstm",
        rnn_hidden_dim=256,
        hidden_dims=(256, 128),
        obs_normalization=True,
        distribution_cfg=_gaussian(init_std),
    )


def _gaussian(init_std: float) -> dict[str, Any]:
    return {"class_name": "GaussianDistribution", "init_std": init_std, "std_type": "scalar"}

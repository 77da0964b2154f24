"""Agents and runners of the velocity tasks, sized for one GPU with 4096 environments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mjlab.rl import RslRlModelCfg, RslRlOnPolicyRunnerCfg
from mjlab.tasks.velocity.config.go1.rl_cfg import unitree_go1_ppo_runner_cfg
from mjlab.tasks.velocity.rl import VelocityOnPolicyRunner

from rsl_tbptt.integrations.mjlab import (
    TbpttCnnRnnModelCfg,
    TbpttDistillationAlgorithmCfg,
    TbpttDistillationRunnerCfg,
    TbpttMjlabDistillationRunner,
    TbpttMjlabRecurrentRunner,
    TbpttPpoAlgorithmCfg,
)


class VelocityDistillationRunner(TbpttMjlabDistillationRunner, VelocityOnPolicyRunner):
    """Distillation that exports the student with mjlab's metadata at every save."""


class VelocityRecurrentRunner(TbpttMjlabRecurrentRunner, VelocityOnPolicyRunner):
    """Recurrent PPO that exports its policy with mjlab's metadata at every save."""


CNN: dict[str, Any] = {
    "output_channels": [16, 32],
    "kernel_size": [3, 3],
    "stride": [2, 2],
    "activation": "elu",
}
"""CNN for the height scan of 11 by 17 rays."""


def teacher_cfg(terrain: str, variant: str = "") -> RslRlOnPolicyRunnerCfg:
    """Return mjlab's own PPO with its critic's observations; a variant sets only the log folder."""
    cfg = unitree_go1_ppo_runner_cfg()
    cfg.experiment_name = experiment_name(terrain, variant)
    cfg.logger = "tensorboard"
    cfg.run_name = "teacher"
    cfg.obs_groups = {"actor": ("critic",), "critic": ("critic",)}
    return cfg


def student_cfg(terrain: str, variant: str = "") -> TbpttDistillationRunnerCfg:
    """Return the distillation of an LSTM on proprioception and, in scan tasks, the scan."""
    return TbpttDistillationRunnerCfg(
        experiment_name=experiment_name(terrain, variant),
        logger="tensorboard",
        run_name="student",
        num_steps_per_env=24,
        max_iterations=1000,
        save_interval=100,
        obs_groups={"student": _seen(variant), "teacher": ("critic",)},
        student=_lstm(variant, init_std=0.1),
        teacher=teacher_cfg(terrain).actor,
        algorithm=TbpttDistillationAlgorithmCfg(gradient_length=24),
    )


def memoryless_cfg(terrain: str, variant: str = "") -> TbpttDistillationRunnerCfg:
    """Return the distillation without memory, for comparison."""
    student = RslRlModelCfg(
        hidden_dims=(512, 256, 128), obs_normalization=True, distribution_cfg=_gaussian(0.1)
    )
    if variant == "Scan":
        student = replace(student, class_name="CNNModel", cnn_cfg=CNN)
    return replace(student_cfg(terrain, variant), run_name="memoryless", student=student)


def recurrent_cfg(terrain: str, variant: str = "") -> RslRlOnPolicyRunnerCfg:
    """Return PPO on the student's observations, from scratch or from a student."""
    cfg = teacher_cfg(terrain, variant)
    cfg.run_name = "recurrent"
    cfg.obs_groups = {"actor": _seen(variant), "critic": ("critic",)}
    cfg.actor = _lstm(variant, init_std=1.0)
    cfg.algorithm = TbpttPpoAlgorithmCfg(student_action_std=0.2, critic_warmup_iterations=20)
    return cfg


def experiment_name(terrain: str, variant: str = "") -> str:
    """Return the log folder that the agents of a task share."""
    return f"tbptt_go1_{terrain}_{variant}".lower().rstrip("_")


def _seen(variant: str) -> tuple[str, ...]:
    """Return the observation groups of student and recurrent actor."""
    return ("actor", "scan") if variant == "Scan" else ("actor",)


def _lstm(variant: str, init_std: float) -> RslRlModelCfg:
    cfg = RslRlModelCfg(
        class_name="RNNModel",
        rnn_type="lstm",
        rnn_hidden_dim=256,
        hidden_dims=(256, 128),
        obs_normalization=True,
        distribution_cfg=_gaussian(init_std),
    )
    if variant != "Scan":
        return cfg
    options = {**vars(cfg), "class_name": TbpttCnnRnnModelCfg.class_name, "cnn_cfg": CNN}
    return TbpttCnnRnnModelCfg(**options)


def _gaussian(init_std: float) -> dict[str, Any]:
    return {"class_name": "GaussianDistribution", "init_std": init_std, "std_type": "scalar"}

"""Agents of the Go1 tasks, sized for two CPU cores. Students have some 400,000 weights."""

from __future__ import annotations

from typing import Any

PPO = {
    "class_name": "rsl_tbptt.algorithms:TbpttPPO",
    "gamma": 0.97,
    "lam": 0.95,
    "entropy_coef": 0.005,
    "schedule": "fixed",  # the adaptive one keeps the rate too low while the normaliser still moves
    "learning_rate": 1e-3,
    "num_learning_epochs": 4,
    "num_mini_batches": 4,
}
LSTM = {"class_name": "RNNModel", "rnn_type": "lstm", "rnn_hidden_dim": 256}


def _model(hidden_dims: list[int], init_std: float | None = None, **options: Any) -> dict[str, Any]:
    model = {"class_name": "MLPModel", "hidden_dims": hidden_dims, "activation": "elu"}
    model |= {"obs_normalization": True, **options}
    if init_std is not None:
        model["distribution_cfg"] = {"class_name": "GaussianDistribution", "init_std": init_std}
    return model


def teacher() -> dict[str, Any]:
    """Return PPO on everything.

    Beyond rsl_rl's keys a config has the ``"runner"`` and settings of the ``"env"`` to train in.
    """
    return {
        "runner": "rsl_tbptt.runners:TbpttOnPolicyRunner",
        "env": {"gentle_steps": 10_000},
        "num_steps_per_env": 32,
        "max_iterations": 1000,
        "save_interval": 50,
        "obs_groups": {"actor": ["privileged"], "critic": ["privileged"]},
        "algorithm": PPO,
        "actor": _model([256, 128, 64], 1.0),
        "critic": _model([256, 128, 64]),
    }


def student() -> dict[str, Any]:
    """Return the distillation of an LSTM."""
    return {
        "runner": "rsl_tbptt.runners:TbpttDistillationRunner",
        "num_steps_per_env": 24,
        "max_iterations": 150,
        "save_interval": 25,
        "obs_groups": {"student": ["policy"], "teacher": ["privileged"]},
        "algorithm": {
            "class_name": "rsl_tbptt.algorithms:TbpttDistillation",
            "gradient_length": 24,
        },
        "student": _model([256, 128], 0.1, **LSTM),
        "teacher": teacher()["actor"],
    }


def memoryless() -> dict[str, Any]:
    """Return the distillation of an MLP."""
    return student() | {"student": _model([768, 384, 192], 0.1)}


def recurrent() -> dict[str, Any]:
    """Return PPO on the student's sensors, from scratch or from a student."""
    return teacher() | {
        "env": {"gentle_steps": 4_000},
        "num_steps_per_env": 24,
        "obs_groups": {"actor": ["policy"], "critic": ["privileged"]},
        "algorithm": {**PPO, "gradient_length": 24},
        "actor": _model([256, 128], 1.0, **LSTM),
    }

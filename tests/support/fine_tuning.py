"""PPO that continues a distilled student, shared by the tests of fine-tuning."""

from pathlib import Path
from typing import Any

import torch

from rsl_tbptt.algorithms import TbpttPPO
from support.helpers import make_model, make_ppo
from support.safe_runs import model_cfg


def distilled(student: str = "lstm", teacher: str = "lstm") -> dict[str, Any]:
    """Return the entries of a distillation's checkpoint that PPO loads."""
    return {
        "student_state_dict": make_model("actor", student, 4, seed=5).state_dict(),
        "teacher_state_dict": make_model("teacher", teacher, 4, seed=7).state_dict(),
    }


def make_pulled(teacher: str = "lstm", **options: Any) -> Any:
    """Build a PPO with an untrained teacher, 6 steps by 4 environments."""
    shared = {"teacher_cfg": {"class_name": "any"}, "teacher_coef": 0.8, "num_mini_batches": 2}
    algorithm = make_ppo(TbpttPPO, 6, 4, **{**shared, **options})
    algorithm.set_teacher(make_model("teacher", teacher, 4, seed=9))
    return algorithm


def make_fine_tuned(teacher: str = "lstm", **options: Any) -> Any:
    """Build a PPO that has just taken over a distilled student and its teacher."""
    algorithm = make_pulled(teacher, **options)
    algorithm.load(distilled(teacher=teacher), None, strict=True)
    return algorithm


def save_untrained(runner: Any, path: Path) -> None:
    """Write a runner's checkpoint; rsl_rl 5.0's own ``save`` works only after training."""
    torch.save({**runner.alg.save(), "iter": 0, "infos": None}, path)


def _model_cfg(class_name: str, **kwargs: Any) -> dict[str, Any]:
    recurrent = {"rnn_type": "gru"} if class_name == "RNNModel" else {}
    gaussian = {"class_name": "GaussianDistribution", "init_std": 0.3}
    return model_cfg(class_name, **{"distribution_cfg": gaussian, **recurrent, **kwargs})


def distillation_cfg(**algorithm: Any) -> dict[str, Any]:
    """Return the config of a runner that distils on the recall task, with options."""
    return {
        "num_steps_per_env": 8,
        "save_interval": 1000,
        "obs_groups": {"student": ["policy"], "teacher": ["privileged"]},
        "algorithm": {
            "class_name": "rsl_tbptt.algorithms:TbpttDistillation",
            "gradient_length": 4,
            **algorithm,
        },
        "student": _model_cfg("RNNModel"),
        "teacher": _model_cfg("MLPModel"),
    }


def fine_tuning_cfg(**algorithm: Any) -> dict[str, Any]:
    """Return the config of a runner that continues with that student by PPO, with options."""
    return {
        "num_steps_per_env": 8,
        "save_interval": 1000,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"], "teacher": ["privileged"]},
        "algorithm": {
            "class_name": "rsl_tbptt.algorithms:TbpttPPO",
            "gradient_length": 4,
            "critic_warmup_iterations": 1,
            "teacher_coef": 0.5,
            "teacher_updates": 2,
            "teacher_cfg": _model_cfg("MLPModel"),
            **algorithm,
        },
        "actor": _model_cfg("RNNModel"),
        "critic": _model_cfg("RNNModel", distribution_cfg=None),
    }

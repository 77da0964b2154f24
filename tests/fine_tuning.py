"""PPO that continues a distilled student, shared by the tests of fine-tuning."""

from typing import Any

from helpers import make_model, make_ppo

from rsl_tbptt.algorithms import TbpttPPO


def distilled(student: str = "lstm", teacher: str = "lstm") -> dict[str, Any]:
    """Return what a distillation's checkpoint holds for PPO."""
    return {
        "student_state_dict": make_model("actor", student, 4, seed=5).state_dict(),
        "teacher_state_dict": make_model("teacher", teacher, 4, seed=7).state_dict(),
    }


def make_pulled(teacher: str = "lstm", **options: Any) -> Any:
    """Build a PPO with an untrained teacher, 6 steps by 4 environments."""
    shared = {"teacher_cfg": {"class_name": "any"}, "teacher_kl_coef": 0.8, "num_mini_batches": 2}
    algorithm = make_ppo(TbpttPPO, 6, 4, **{**shared, **options})
    algorithm.set_teacher(make_model("teacher", teacher, 4, seed=9))
    return algorithm


def make_fine_tuned(teacher: str = "lstm", **options: Any) -> Any:
    """Build a PPO that has just taken over a distilled student and its teacher."""
    algorithm = make_pulled(teacher, **options)
    algorithm.load(distilled(teacher=teacher), None, strict=True)
    return algorithm

"""Calls that a type checker accepts, and calls that it refuses: pyright reads this file.

An unnecessary ignore comment is an error.
"""

from rsl_rl.models import MLPModel
from rsl_rl.storage import RolloutStorage

from rsl_tbptt import TbpttDistillation, TbpttPPO

Parts = tuple[MLPModel, MLPModel, RolloutStorage]


def right_ppo(parts: Parts) -> TbpttPPO:
    actor, critic, storage = parts
    return TbpttPPO(
        actor, critic=critic, storage=storage, gradient_length=3, gamma=0.9, device="cpu"
    )


def right_distillation(parts: Parts) -> TbpttDistillation:
    return TbpttDistillation(*parts, gradient_length=3, tail="drop", multi_gpu_cfg=None)


def misspelt_ppo(parts: Parts) -> None:
    TbpttPPO(*parts, gradient_lenght=3)  # pyright: ignore[reportCallIssue]


def misspelt_distillation(parts: Parts) -> None:
    TbpttDistillation(*parts, gradient_lenght=3)  # pyright: ignore[reportCallIssue]


def wrong_choice(parts: Parts) -> None:
    TbpttDistillation(*parts, tail="keep")  # pyright: ignore[reportArgumentType]


def wrong_type(parts: Parts) -> None:
    TbpttPPO(*parts, num_mini_batches=2.5)  # pyright: ignore[reportArgumentType]

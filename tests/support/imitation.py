"""PPO with a teacher from the first update, shared by the tests of imitation."""

from pathlib import Path
from typing import Any

import torch

from rsl_tbptt.algorithms import TbpttPPO
from rsl_tbptt.core import hidden_state
from support.helpers import make_model, make_ppo, roll_out


def teacher_file(folder: Path, kind: str = "lstm", **kwargs: Any) -> str:
    """Write the checkpoint of a PPO whose actor is a teacher of a kind, and return its path."""
    teacher = make_model("teacher", kind, 4, seed=7, **kwargs)
    torch.save({"actor_state_dict": teacher.state_dict()}, folder / "teacher.pt")
    return str(folder / "teacher.pt")


def make_imitating(
    path: str | None,
    teacher: str = "lstm",
    models: tuple[str, str] = ("lstm", "lstm"),
    **options: Any,
) -> Any:
    """Build a PPO with a teacher of a kind, 6 steps by 4 environments."""
    shared = {"teacher_cfg": {"class_name": "any"}, "teacher_coef": 0.8, "num_mini_batches": 2}
    options = {**shared, "teacher_checkpoint": path, **options}
    algorithm = make_ppo(TbpttPPO, 6, 4, *models, **options)
    algorithm.set_teacher(make_model("teacher", teacher, 4, seed=9))
    return algorithm


def live(
    algorithm: Any, twin: Any, seed: int, done_rate: float = 0.3, **hooks: Any
) -> tuple[list, list]:
    """Roll out; return the states before each step, and the answers of a twin of the teacher.

    The twin keeps its state: it has to see every rollout that the teacher does.
    """
    states = []

    def record(step, obs, rewards):
        models = (algorithm.actor, algorithm.critic)
        states.append(tuple(hidden_state.clone(model.get_hidden_state()) for model in models))
        if "on_step" in hooks:
            hooks["on_step"](step, obs, rewards)

    roll_out(algorithm, seed, done_rate, on_step=record)
    said = []
    with torch.no_grad():
        for obs, dones in zip(
            algorithm.storage.observations, algorithm.storage.dones[..., 0], strict=True
        ):
            twin(obs, stochastic_output=True)
            said.append((twin.output_mean, twin.output_std))
            twin.reset(dones)
    return states, said


def forget(algorithm: Any) -> None:
    """Clear the memory of all models, as at the start of a run; a checkpoint holds none."""
    for model in algorithm.transaction.stateful_models():
        model.reset()

"""PPO with a teacher from the first update, shared by the tests of imitation."""

from pathlib import Path
from typing import Any

import torch

from support.fine_tuning import make_pulled
from support.helpers import make_model
from support.ppo_reference import record_states


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
    """Build a PPO with a teacher of a kind, read from a file, 6 steps by 4 environments."""
    kinds = dict(zip(("actor", "critic"), models, strict=True))
    return make_pulled(teacher, teacher_checkpoint=path, **kinds, **options)


def live(
    algorithm: Any, twin: Any, seed: int, done_rate: float = 0.3, **hooks: Any
) -> tuple[list, list]:
    """Roll out; return the states before each step, and the answers of a twin of the teacher.

    The twin keeps its state: it has to see every rollout that the teacher does.
    """
    states = record_states(algorithm, seed, done_rate, **hooks)
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
    for model in algorithm.stateful_models().values():
        model.reset()

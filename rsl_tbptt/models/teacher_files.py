"""Several teachers from the file of each, or from the checkpoint of a student that has them all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.checkpoints.describing import check_fits
from rsl_tbptt.checkpoints.reading import (
    checkpoint_file,
    config_advice,
    read_checkpoint,
    teacher_state_dict,
)
from rsl_tbptt.models.teacher_configs import role_of


def read_teacher(
    name: str, teacher: Any, path: str | None, obs: TensorDict
) -> Mapping[str, torch.Tensor]:
    """Read a teacher's parameters and buffers, of any shapes, from its file.

    Args:
        name: Its name.
        teacher: Its model, which is not changed.
        path: The file, of PPO or distillation, or ``FOLDER/latest``.
        obs: Observations of any batch size.

    Raises:
        ValueError: If the file is not named, missing, damaged or does not fit.
    """
    if path is None:
        raise ValueError(
            f"The checkpoint of the teacher '{name}' is None, expected its file: no checkpoint"
            " of a distillation brought the teachers, so set"
            f" 'teacher.teachers.{name}.checkpoint'."
        )
    try:
        path = str(checkpoint_file(path))
        checkpoint = read_checkpoint(path, next(teacher.parameters()).device)
        state_dict = teacher_state_dict(checkpoint, "The checkpoint")
        check_fits(teacher, state_dict, role_of(name), obs, checkpoint, path, config_advice)
    except ValueError as error:
        raise ValueError(f"The teacher '{name}' cannot be loaded from '{path}'. {error}") from error
    return state_dict


def check_teachers(
    teachers: nn.ModuleDict,
    state_dict: Mapping[str, torch.Tensor],
    obs: TensorDict,
    checkpoint: Mapping[str, Any],
) -> None:
    """Check that a checkpoint holds these teachers.

    Args:
        teachers: Their models by name.
        state_dict: Parameters and buffers of all of them, of any shapes.
        obs: Observations of any batch size.
        checkpoint: What that is a part of.

    Raises:
        ValueError: If it holds others, or one is known to have been configured otherwise.
    """
    own = {name: f"teachers.{name}." for name in teachers}
    for key in state_dict:
        if not key.startswith(tuple(own.values())):
            raise ValueError(
                f"The checkpoint holds '{key}', which is of none of the teachers {list(own)}:"
                " expected that of a distillation from these. A single teacher's file is named by"
                " its own 'checkpoint' in the config."
            )
    for name, prefix in own.items():
        part = {
            key.removeprefix(prefix): tensor
            for key, tensor in state_dict.items()
            if key.startswith(prefix)
        }
        model: Any = teachers[name]
        check_fits(model, part, role_of(name), obs, checkpoint)

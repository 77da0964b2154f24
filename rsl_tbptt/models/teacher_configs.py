"""The configs of several teachers: names, observation groups, and the models that they describe."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from tensordict import TensorDict
from torch import nn

from rsl_tbptt.compat.versions import MLPModel, resolve_callable

_KEYS = ("cfg", "checkpoint", "obs_groups")
"""What a teacher's config may have."""


def role_of(name: str) -> str:
    """Return where a teacher's config stands in the agent's, for messages and checkpoints."""
    return f"teacher.teachers.{name}.cfg"


def check_names(teachers: Mapping[str, Mapping[str, Any]]) -> None:
    """Check the names and keys of teachers.

    Raises:
        ValueError: If there is none, or a name or key cannot be.
    """
    if not teachers:
        raise ValueError("teachers is empty, expected the config of each teacher by its name.")
    taken = nn.ModuleDict()
    for name, teacher in teachers.items():
        if not str(name).isidentifier() or hasattr(taken, name):
            raise ValueError(
                f"teachers has the name {name!r}, expected a word of letters, digits and"
                " underscores that torch's modules do not use: rename it."
            )
        unknown = sorted(set(teacher) - set(_KEYS))
        if unknown or "cfg" not in teacher:
            raise ValueError(
                f"teachers['{name}'] has the keys {sorted(teacher)}, expected 'cfg' and, of"
                f" 'checkpoint' and 'obs_groups', any: the model's own arguments stand in 'cfg'."
            )


def groups_of(
    name: str, teacher: Mapping[str, Any], obs: TensorDict, default: Sequence[str]
) -> Sequence[str]:
    """Return what a teacher observes.

    Raises:
        ValueError: If it is nothing, or a group is unknown.
    """
    groups = teacher.get("obs_groups")
    groups = default if groups is None else groups
    known = sorted(map(str, obs.keys()))
    if isinstance(groups, str) or not groups:
        raise ValueError(
            f"The teacher '{name}' has obs_groups {groups!r}, expected a list of observation"
            f" groups, some of {known}."
        )
    for group in groups:
        if group not in obs:
            raise ValueError(
                f"The teacher '{name}' has the observation group '{group}', expected one of"
                f" {known}: the environment gives no other."
            )
    return groups


def build(
    name: str, teacher: Mapping[str, Any], obs: TensorDict, groups: Sequence[str], num_actions: int
) -> MLPModel:
    """Build a teacher's model.

    Args:
        name: Its name.
        teacher: Its config.
        obs: Observations of any batch size.
        groups: What it observes.
        num_actions: A.

    Raises:
        ValueError: If that fails.
    """
    arguments = copy.deepcopy(dict(teacher["cfg"]))  # models take entries out of it
    try:
        model_class: Any = resolve_callable(arguments.pop("class_name"))
        return model_class(obs, {"teacher": list(groups)}, "teacher", num_actions, **arguments)
    except Exception as error:  # a user's class can raise anything
        raise ValueError(
            f"The teacher '{name}' cannot be built from {role_of(name)}"
            f" ({type(error).__name__}: {error}): expected the config of the model that was"
            " trained, 'class_name' included."
        ) from error

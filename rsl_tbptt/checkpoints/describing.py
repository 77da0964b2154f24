"""Descriptions of a checkpoint's models: the parts of their configs that parameters do not show.

Two models with equal parameters act differently if their activations differ or if their
observations are joined in another order. Both are compared with the checkpoint's description if an
algorithm of this package wrote it, otherwise with ``params/agent.yaml`` next to it, which Isaac Lab
and mjlab write.
"""

from __future__ import annotations

import copy
import importlib.util
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from rsl_rl.utils import resolve_nn_activation
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.checkpoints.reading import check_matches, checkpoint_file, read_checkpoint
from rsl_tbptt.compat.versions import MLPModel, resolve_callable, teacher_state_dict
from rsl_tbptt.files import AGENT, complete, read_config

_TRAINED_AS = {
    "teacher": ("teacher", "actor", "policy"),
    "student": ("student",),
    "actor": ("student", "actor"),
    "critic": ("critic",),
}
"""Names under which a model of a role may have been trained, best first; rsl_rl 3 uses "policy"."""


def model_configs(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the models' configs from a runner's, before rsl_rl removes entries from it."""
    roles = ("actor", "critic", "student", "teacher")
    return copy.deepcopy({role: cfg[role] for role in roles if role in cfg})


def describe_all(
    models: Mapping[str, MLPModel], obs: TensorDict, configs: Mapping[str, Any] | None
) -> dict[str, dict[str, Any]]:
    """Describe models by role.

    Args:
        models: The models.
        obs: Observations of any batch size.
        configs: The result of ``model_configs``; None if models were built without a config.

    Returns:
        See ``describe``.
    """
    known = configs or {}
    return {role: describe(model, obs, known.get(role)) for role, model in models.items()}


def describe(
    model: MLPModel, obs: TensorDict, config: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Describe the parts of a model that its parameters do not show, in plain values.

    Args:
        model: The model.
        obs: Observations of any batch size.
        config: Its class and arguments, if known.

    Returns:
        ``"activations"``, classes of the head's layers without parameters; ``"obs_groups"``, the
        shape of each group that the model concatenates, in order; ``"groups"``, shape and dtype of
        each group that it reads; ``"class_name"``; and ``"arguments"`` of that class, if they are
        known and plain.
    """
    layers = getattr(model, "mlp", nn.Sequential()).children()
    parameterless = (layer for layer in layers if not list(layer.parameters()))
    names = {type(layer).__name__ for layer in parameterless if not isinstance(layer, nn.Unflatten)}

    def shapes(groups: Iterable[str]) -> dict[str, list[int]]:
        return {name: list(obs[name].shape[obs.batch_dims :]) for name in groups}

    vectors, images = getattr(model, "obs_groups", ()), getattr(model, "obs_groups_2d", ())
    groups = getattr(model, "group_shapes", (*vectors, *images))
    description = {
        "activations": sorted(names),
        "obs_groups": shapes(vectors),
        "groups": {
            name: {"shape": shape, "dtype": str(obs[name].dtype).removeprefix("torch.")}
            for name, shape in shapes(groups).items()
        },
        "class_name": qualified_name(type(model)),
    }
    try:
        if config and resolve_callable(config["class_name"]) is type(model):
            arguments = {name: value for name, value in config.items() if name != "class_name"}
            description["arguments"] = plain(arguments)
    except TypeError:  # an argument that a checkpoint cannot hold
        pass
    return description


def plain(value: Any, other: Callable[[Any], Any] | None = None) -> Any:
    """Return a config's value in a form for files without code; classes become their names.

    Args:
        value: The value.
        other: Returns a replacement for a value that is not plain. None refuses such values.

    Raises:
        TypeError: If the value, or something in it, is not plain.
    """
    if isinstance(value, Mapping):
        return {plain(key, other): plain(item, other) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return (list if isinstance(value, list) else tuple)(plain(item, other) for item in value)
    if isinstance(value, type):
        return qualified_name(value)
    for kind in (bool, int, float):  # also instances of subclasses, such as numpy's
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, str):
        return str.__str__(value)
    if value is None:
        return None
    if other is not None:
        return other(value)
    raise TypeError(f"{value!r} is a {type(value).__name__}, expected a plain value.")


def qualified_name(value: Any) -> str:
    """Return the name by which a class or function is imported; for other values ``str(value)``."""
    name = getattr(value, "__qualname__", None)
    return f"{value.__module__}:{name}" if name else str(value)


def check_fits(
    model: MLPModel,
    state_dict: Mapping[str, torch.Tensor],
    role: str,
    obs: TensorDict,
    checkpoint: Mapping[str, Any],
    path: str | None = None,
) -> None:
    """Check that a model can be loaded from a checkpoint, before anything is changed.

    Activations and observation groups are compared if the checkpoint, or a file next to it, has
    those of the training.

    Args:
        model: The model to load into.
        state_dict: Its part of the checkpoint: parameters and buffers, of any shapes.
        role: "teacher", "student", "actor" or "critic".
        obs: Observations of any batch size.
        checkpoint: The checkpoint.
        path: Its path, or None if it is unknown.

    Raises:
        ValueError: If the parameters do not fit, or if the model was trained with another
            activation, or with the same observation groups in another order or of other widths.
    """
    check_matches(model, state_dict, role)
    trained, source = _trained_with(role, checkpoint, path)
    if trained is None:
        return
    ours = describe(model, obs)
    used, expected = ours["activations"], trained["activations"]
    if used and not set(expected) <= set(used):
        raise ValueError(
            f"{role}.activation is {', '.join(used)}, expected {', '.join(expected)}, that of the"
            f" checkpoint's training, as {source} says: with another one the same parameters act"
            " differently. Change it in the config."
        )
    images = getattr(model, "obs_groups_2d", ())  # encoders are named after their groups
    groups = {name: shape for name, shape in trained["obs_groups"].items() if name not in images}
    _check_groups(ours["obs_groups"], groups, role, source)


def load_teacher(model: MLPModel, path: str, obs: TensorDict) -> Mapping[str, Any]:
    """Load a teacher from its file, after checking that it fits.

    If the model has the form of a distillation's student, it becomes that student, with a warning.

    Args:
        model: The teacher.
        path: The file of PPO or distillation, or ``FOLDER/latest``.
        obs: Observations of any batch size.

    Returns:
        The checkpoint.

    Raises:
        ValueError: If the file is missing, damaged or does not fit, or if the student and the
            teacher in it both fit. Nothing is changed then.
    """
    path = str(checkpoint_file(path))
    checkpoint = trained = read_checkpoint(path, next(model.parameters()).device)
    student, form = checkpoint.get("student_state_dict", {}), _form(model.state_dict())
    if _form(student) != form:
        state_dict = teacher_state_dict(checkpoint, f"The checkpoint '{path}'")
    elif _form(checkpoint.get("teacher_state_dict", {})) == form:
        raise ValueError(
            f"The checkpoint '{path}' holds a student and a teacher, and the teacher has the form"
            " of both, expected one of them: save the one that should teach as 'actor_state_dict'"
            " in a file of its own."
        )
    else:
        warnings.warn(f"The teacher is the student in '{path}', whose form it has.", stacklevel=2)
        models = checkpoint.get("rsl_tbptt", {}).get("models", {})
        described = {"teacher": models["student"]} if "student" in models else {}
        trained, state_dict = {"rsl_tbptt": {"models": described}}, student
    check_fits(model, state_dict, "teacher", obs, trained, path)
    model.load_state_dict(state_dict)
    return checkpoint


def _form(state_dict: Mapping[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in state_dict.items()}


def _check_groups(
    ours: dict[str, list[int]], trained: dict[str, list[int] | None], role: str, source: str
) -> None:
    """Compare observation groups; a width is None if it was not recorded.

    Raises:
        ValueError: If the same groups have another order or other widths.
    """
    if not trained or not ours:
        return
    if set(ours) != set(trained):
        warnings.warn(
            f"The {role} sees the observation groups {[*ours]} and was trained with"
            f" {[*trained]}, as {source} says: they need to have the same values, in that order.",
            stacklevel=3,
        )
        return
    expected = {name: ours[name] if shape is None else shape for name, shape in trained.items()}
    if [*ours.items()] != [*expected.items()]:
        raise ValueError(
            f"obs_groups['{role}'] is {ours}, expected {expected}, the order and widths of the"
            f" checkpoint's training, as {source} says: otherwise its inputs have another meaning."
        )


def _trained_with(
    role: str, checkpoint: Mapping[str, Any], path: str | None
) -> tuple[dict[str, Any] | None, str]:
    """Return the description of a role's model in its training, if there is one, and its source."""
    names = _TRAINED_AS[role]
    recorded = checkpoint.get("rsl_tbptt", {}).get("models", {})
    for name in names:
        if name in recorded:
            return recorded[name], "it"
    agent = Path(path or "").parent / AGENT
    # If the path is not a file it is something else, such as a pattern. Without yaml nobody can
    # have written such a config.
    if not (path and Path(path).is_file() and agent.is_file() and importlib.util.find_spec("yaml")):
        return None, ""
    config = read_config(agent)
    name = next((name for name in names if isinstance(config.get(name), dict)), None)
    if name is None:
        return None, ""
    groups = config.get("obs_groups") or {}
    trained_as = role if name == "policy" and role in groups else name
    trained = {
        "activations": _class_names(config[name].get("activation")),
        "obs_groups": dict.fromkeys(groups.get(trained_as) or ()),
    }
    return trained, f"'{agent}'"


def _class_names(activation: str | None) -> list[str]:
    """Return the class of an activation in a config; none if rsl_rl does not know it."""
    if activation is None:
        return []
    try:
        return [type(resolve_nn_activation(activation)).__name__]
    except ValueError:
        return []


def agent_config(checkpoint: Path) -> dict[str, Any]:
    """Read the agent's config of the run that a checkpoint belongs to.

    Args:
        checkpoint: ``model_<iteration>.pt`` in a log folder.

    Returns:
        The platform's agent config.

    Raises:
        FileNotFoundError: If the checkpoint or its config is missing.
        ValueError: If the config cannot be read.
    """
    path = checkpoint.parent / AGENT
    for needed in (checkpoint, path):
        if not needed.is_file():
            raise FileNotFoundError(
                f"{needed} is missing, expected a checkpoint in the log folder of a training, with"
                " params/agent.yaml next to it. rsl_rl's own runners write none, those of"
                " rsl_tbptt.runners do: name the runner's config, in YAML, as --agent FILE."
            )
    return read_config(path)


def write_agent_config(config: Mapping[str, Any], folder: Path) -> None:
    """Write a runner's config into a run's folder, as Isaac Lab does; nothing without pyyaml.

    Args:
        config: Plain values.
        folder: The run's folder.
    """
    if importlib.util.find_spec("yaml") is None:
        return  # without it nobody can read the file
    import yaml

    try:
        with complete(folder / AGENT) as unfinished:
            unfinished.write_text(yaml.safe_dump(dict(config), sort_keys=False), encoding="utf-8")
    except OSError as error:  # checkpoints contain their models' configs as well
        warnings.warn(f"'{folder / AGENT}' cannot be written ({error.strerror}).", stacklevel=3)

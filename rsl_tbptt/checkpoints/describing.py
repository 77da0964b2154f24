"""How the models of a checkpoint were configured, where their parameters do not show it.

Two models with equal parameters act differently if their activations differ or if their
observations are joined in another order. Both are compared with what the checkpoint says where an
algorithm of this package wrote it, and otherwise with ``params/agent.yaml`` beside it, which Isaac
Lab and mjlab write.
"""

from __future__ import annotations

import copy
import importlib.util
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from rsl_rl.utils import resolve_nn_activation
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.checkpoints.reading import Advice, check_matches
from rsl_tbptt.compat.versions import MLPModel, resolve_callable
from rsl_tbptt.files import complete, read_yaml

_TRAINED_AS = {
    "teacher": ("teacher", "actor", "policy"),
    "student": ("student",),
    "actor": ("student", "actor"),
    "critic": ("critic",),
}
"""Names under which a model of a role may have been trained, best first; "policy" by rsl_rl 3."""


def _trained_as(role: str) -> tuple[str, ...]:
    """Return these names; a role of its own is that of one of several teachers."""
    return _TRAINED_AS.get(role) or (role, *_TRAINED_AS["teacher"])


def model_configs(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Copy what a runner's config says of its models, before rsl_rl takes entries out of it."""
    roles = ("actor", "critic", "student", "teacher")
    return copy.deepcopy({role: cfg[role] for role in roles if role in cfg})


def describe_all(
    models: Mapping[str, MLPModel], obs: TensorDict, configs: Mapping[str, Any] | None
) -> dict[str, dict[str, Any]]:
    """Describe models by role.

    Args:
        models: The models.
        obs: Observations of any batch size.
        configs: What ``model_configs`` returned; None where models were built without a config.

    Returns:
        See ``describe``.
    """

    def config_of(role: str) -> Any:
        found: Any = configs
        for key in role.split("."):  # that of one of several teachers stands deeper
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    return {role: describe(model, obs, config_of(role)) for role, model in models.items()}


def describe(
    model: MLPModel, obs: TensorDict, config: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Describe what a model's parameters do not show, in plain values for a checkpoint.

    Args:
        model: The model.
        obs: Observations of any batch size.
        config: Its class and arguments, if they are known.

    Returns:
        ``"activations"``, classes of the head's layers without parameters; ``"obs_groups"``, the
        shape of each group that the model concatenates, in their order; ``"images"``, the shape
        of each that a CNN encodes; ``"groups"``, shape and dtype of each that it sees;
        ``"class_name"``; and ``"arguments"`` of that class, where they are known and plain.
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
        "images": shapes(images),
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
    except TypeError:  # an argument that no checkpoint can hold
        pass
    return description


def plain(value: Any, other: Callable[[Any], Any] | None = None) -> Any:
    """Return a config's value as files without code can hold it; classes become their names.

    Args:
        value: The value.
        other: Returns what stands for a value that is not plain. None refuses it.

    Raises:
        TypeError: If it, or something in it, is of no such kind.
    """
    if isinstance(value, Mapping):
        return {plain(key, other): plain(each, other) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return (list if isinstance(value, list) else tuple)(plain(each, other) for each in value)
    if isinstance(value, type):
        return qualified_name(value)
    for kind in (bool, int, float):  # also of a subclass, such as one of numpy
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
    """Return the name by which a class or function is imported, else what it is in words."""
    name = getattr(value, "__qualname__", None)
    return f"{value.__module__}:{name}" if name else str(value)


def check_fits(
    model: MLPModel,
    state_dict: Mapping[str, torch.Tensor],
    role: str,
    obs: TensorDict,
    checkpoint: Mapping[str, Any],
    path: str | None = None,
    advice: Advice | None = None,
) -> None:
    """Check that a model can be loaded from a checkpoint, before anything is changed.

    Args:
        model: The model to load into.
        state_dict: Its part of the checkpoint: parameters and buffers, of any shapes.
        role: "teacher", "student", "actor" or "critic", or that of one of several teachers.
        obs: Observations of any batch size.
        checkpoint: The checkpoint.
        path: Its file, or None where that is unknown.
        advice: Names the setting to change; see ``check_matches``.

    Raises:
        ValueError: If the parameters do not fit, or if the model is known to have been configured
            otherwise.
    """
    check_matches(model, state_dict, role, advice)
    check_configured_alike(model, obs, role, checkpoint, path)


def check_configured_alike(
    model: MLPModel,
    obs: TensorDict,
    role: str,
    checkpoint: Mapping[str, Any],
    path: str | None,
) -> None:
    """Check that a model is configured as the one whose parameters a checkpoint holds.

    Nothing is checked where neither the checkpoint nor a file beside it tells.

    Args:
        model: The model to load into.
        obs: Observations of any batch size.
        role: "teacher", "student", "actor" or "critic", or that of one of several teachers.
        checkpoint: The checkpoint, whose parameters fit.
        path: Its file, or None where that is unknown.

    Raises:
        ValueError: If it was trained with another activation, or with the same observation groups
            in another order or of other widths.
    """
    recorded = checkpoint.get("rsl_tbptt", {}).get("models", {})
    names = [name for name in _trained_as(role) if name in recorded]
    source, trained = "it", recorded[names[0]] if names else None
    # Without its file the path belongs to something else, such as a pattern of files.
    if trained is None and path is not None and Path(path).is_file():
        agent = Path(path).parent / "params" / "agent.yaml"
        source, trained = f"'{agent}'", _described_in(agent, role)
    if trained is None:
        return
    ours = describe(model, obs)
    used, expected = ours["activations"], trained["activations"]
    if used and not set(expected) <= set(used):
        raise ValueError(
            f"{role}.activation is {', '.join(used)}, expected {', '.join(expected)}, with which"
            f" the checkpoint was trained as {source} says: the same parameters would act"
            " differently. Set it so in the config."
        )
    images = getattr(model, "obs_groups_2d", ())  # their encoders bear their names
    groups = {name: shape for name, shape in trained["obs_groups"].items() if name not in images}
    _check_groups(ours["obs_groups"], groups, role, source)


def _check_groups(
    ours: dict[str, list[int]], trained: dict[str, list[int] | None], role: str, source: str
) -> None:
    """Compare observation groups; widths are None where they were not kept.

    Raises:
        ValueError: If the same groups have another order or other widths.
    """
    if not trained or not ours:
        return
    if set(ours) != set(trained):
        warnings.warn(
            f"The {role} sees the observation groups {[*ours]} and was trained with"
            f" {[*trained]}, as {source} says: they have to hold the same values, in that order.",
            stacklevel=4,
        )
        return
    if [*ours] != [*trained]:
        raise ValueError(
            f"obs_groups['{role}'] is {[*ours]}, expected {[*trained]}, the order in which the"
            f" checkpoint was trained as {source} says: the same inputs would mean something else."
        )
    for name, shape in trained.items():
        if shape is not None and shape != ours[name]:
            raise ValueError(
                f"The observation group '{name}' of the {role} has shape {ours[name]}, expected"
                f" {shape}, with which the checkpoint was trained: the same inputs would mean"
                " something else. Give the environment the observations of that training."
            )


def _described_in(agent: Path, role: str) -> dict[str, Any] | None:
    """Describe the model of a run's config that became one of this role, if there is one."""
    if not (agent.is_file() and importlib.util.find_spec("yaml")):
        return None  # nobody without yaml has written such a file
    config = read_agent_config(agent)
    names = [name for name in _trained_as(role) if isinstance(config.get(name), dict)]
    if not names:
        return None
    groups = config.get("obs_groups") or {}
    trained_as = role if names[0] == "policy" and role in groups else names[0]
    return {
        "activations": _class_names(config[names[0]].get("activation")),
        "obs_groups": dict.fromkeys(groups.get(trained_as) or ()),
    }


def read_agent_config(file: Path) -> dict[str, Any]:
    """Read the agent's config that Isaac Lab or mjlab wrote, without running code it may contain.

    Args:
        file: ``params/agent.yaml`` of a run. Reading it needs pyyaml, which both bring.

    Returns:
        The config, tuples included; other Python objects are read as None.
    """
    return read_yaml(file.read_text(encoding="utf-8"))


def _class_names(activation: str | None) -> list[str]:
    """Return the class of an activation that a config names; none where rsl_rl knows no such."""
    if activation is None:
        return []
    try:
        return [type(resolve_nn_activation(activation)).__name__]
    except ValueError:
        return []


AGENT = Path("params", "agent.yaml")
"""Where Isaac Lab, mjlab and our runners write it. rsl_rl alone writes none."""


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
    return read_config(agent_config_file(checkpoint))


def agent_config_file(checkpoint: Path) -> Path:
    """Return the file of the agent's config of the run that a checkpoint belongs to.

    Raises:
        FileNotFoundError: If it or the checkpoint is missing.
    """
    path = checkpoint.parent / AGENT
    for needed in (checkpoint, path):
        if not needed.is_file():
            raise FileNotFoundError(
                f"{needed} is missing, expected a checkpoint in the log folder of a training, with"
                " params/agent.yaml beside it. rsl_rl alone writes none: `rsl-tbptt export` and"
                " `rsl-tbptt evaluate` take its config as --agent FILE."
            )
    return path


def write_agent_config(config: Mapping[str, Any], folder: Path) -> None:
    """Write a runner's config into a run's folder, as Isaac Lab does; without pyyaml nothing.

    Args:
        config: Plain values.
        folder: The run's folder.
    """
    if importlib.util.find_spec("yaml") is None:
        return  # nobody without it can read the file
    import yaml

    try:
        with complete(folder / AGENT) as unfinished:
            unfinished.write_text(yaml.safe_dump(dict(config), sort_keys=False), encoding="utf-8")
    except OSError as error:  # checkpoints say the same of their models
        warnings.warn(f"'{folder / AGENT}' cannot be written ({error.strerror}).", stacklevel=3)


def read_config(file: Path) -> dict[str, Any]:
    """Read an agent's config from a YAML file, without running code it may contain.

    Args:
        file: The file.

    Returns:
        The config.

    Raises:
        ValueError: If it is missing, no YAML or no mapping.
    """
    import yaml  # what only reads the checkpoint itself can do without

    try:
        config = read_agent_config(file)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"The config '{file}' cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"The config '{file}' holds {config!r}, expected a mapping of options.")
    return config


def recorded_config(models: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a config that an algorithm of this package wrote into a checkpoint.

    Args:
        models: Descriptions by model, as of :func:`rsl_tbptt.checkpoints.describing.describe`.

    Returns:
        ``obs_groups``, and of each model what is known: its activation and class, or its class and
        all arguments.
    """
    names = {"CELU": "crelu", "LeakyReLU": "lrelu", "SiLU": "swish"}  # rsl_rl's for torch's
    config: dict[str, Any] = {"obs_groups": {}}
    for part, model in models.items():
        config["obs_groups"][part] = list(model.get("groups") or model["obs_groups"])
        known = {"class_name": model["class_name"]} if "class_name" in model else {}
        for activation in model["activations"] if "arguments" not in model else ():
            known["activation"] = names.get(activation, activation.lower())
        config[part] = known | model.get("arguments", {})
    return config


def check_agrees(
    told: Mapping[str, Any], recorded: Mapping[str, Any], part: str, file: Path
) -> None:
    """Check that a file does not contradict what a checkpoint says of its own model.

    Args:
        told: The config in the file.
        recorded: What :func:`recorded_config` returned; empty where the checkpoint says nothing.
        part: The policy's name in both.
        file: The file, for the message.

    Raises:
        ValueError: If it does.
    """
    groups, own_groups = ({part: each.get("obs_groups", {}).get(part)} for each in (told, recorded))
    of_groups = _differences(groups, own_groups, "obs_groups")
    of_model = _differences(told.get(part, {}), recorded.get(part, {}), part)
    for place, one, other in (*of_groups, *of_model):
        raise ValueError(
            f"{place} is {one!r} in {file}, expected {other!r}, with which the checkpoint was"
            " trained as it says: the same parameters would act differently. Leave it out."
        )


def _differences(
    told: Mapping[str, Any], recorded: Mapping[str, Any], place: str
) -> Iterator[tuple[str, Any, Any]]:
    """Yield where two configs have different values, and these; what one lacks is not compared."""
    for key in told:
        one, other = told[key], recorded.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _differences(one, other, f"{place}.{key}")
        elif None not in (one, other) and _compared(key, one) != _compared(key, other):
            yield f"{place}.{key}", one, other


def _compared(key: str, value: Any) -> Any:
    """Return a value such that equal ones compare equal, however they are written."""
    if key == "class_name":
        return re.split("[.:]", str(value))[-1]
    if key == "activation":
        return str(value).lower()
    return [_compared("", each) for each in value] if isinstance(value, (list, tuple)) else value


def completed(
    config: dict[str, Any], part: str, state_dict: dict[str, torch.Tensor]
) -> dict[str, Any]:
    """Add to a config what the policy's parameters show; what it says itself comes first.

    Args:
        config: What is known of the training's config.
        part: The policy's name in it.
        state_dict: The policy's parameters, whose shapes tell its layers.

    Returns:
        A config that a policy can be built from.

    Raises:
        ValueError: If something is missing that they do not show.
    """
    model = _shown_by(state_dict) | (config.get(part) or {})
    for name in ("activation", "distribution_cfg"):
        if name not in model:
            raise ValueError(missing(f"{part}.{name}"))
    groups = {part: ["obs"]} | (config.get("obs_groups") or {})
    return {**config, "obs_groups": groups, part: model}


def missing(place: str) -> str:
    """Say that the policy's config lacks something that nothing else tells."""
    return (
        f"{place} is missing, expected the training's: neither the checkpoint nor its parameters"
        " show it. Write it into the YAML file that --agent names."
    )


def _shown_by(state_dict: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Return the part of a model's config that its parameters show."""
    last = int(last_layer(state_dict).split(".")[1])
    hidden = [state_dict.get(f"mlp.{layer}.weight") for layer in range(last)]
    shown: dict[str, Any] = {
        "class_name": "MLPModel",
        "hidden_dims": [weight.shape[0] for weight in hidden if weight is not None],
        "obs_normalization": any(name.startswith("obs_normalizer.") for name in state_dict),
    }
    weight_hh = state_dict.get("rnn.rnn.weight_hh_l0")
    if weight_hh is not None:
        num_gates = weight_hh.shape[0] // weight_hh.shape[1]
        shown |= {
            "class_name": "RNNModel",
            "rnn_type": {4: "lstm", 3: "gru"}[num_gates],
            "rnn_hidden_dim": weight_hh.shape[1],
            "rnn_num_layers": sum(name.startswith("rnn.rnn.weight_hh_l") for name in state_dict),
        }
    for name, std_type in (("std_param", "scalar"), ("log_std_param", "log")):
        if f"distribution.{name}" in state_dict:
            gaussian = {"class_name": "GaussianDistribution", "std_type": std_type}
            shown["distribution_cfg"] = gaussian
    return shown


def last_layer(state_dict: dict[str, torch.Tensor]) -> str:
    """Name the weight of the head's last layer, shape (outputs, inputs).

    Raises:
        ValueError: If there is no head such as those of rsl_rl's models.
    """
    layers = [name for name in state_dict if re.fullmatch(r"mlp\.\d+\.weight", name)]
    if not layers:
        raise ValueError(
            f"The policy's parameters are {sorted(state_dict)}, expected 'mlp.0.weight' and so on"
            " among them, as in rsl_rl's models."
        )
    return max(layers, key=lambda name: int(name.split(".")[1]))

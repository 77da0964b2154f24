"""The config that a policy was trained with: noted beside it, or seen from its parameters."""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from rsl_tbptt.checkpoints.trained_models import read_agent_config
from rsl_tbptt.files import complete

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
        models: Descriptions by model, as of :func:`rsl_tbptt.checkpoints.trained_models.describe`.

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

"""The config that a policy was trained with: noted beside it, or seen from its parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rsl_tbptt.checkpoints.trained_models import read_agent_config

AGENT = Path("params", "agent.yaml")
"""Where Isaac Lab and mjlab write it, beside the checkpoints. rsl_rl alone writes none."""


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
                " params/agent.yaml beside it. rsl_rl alone writes none: `rsl-tbptt export` and"
                " `rsl-tbptt evaluate` take its config as --agent FILE."
            )
    return read_config(path)


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
        ``obs_groups``, and the activation of each model.
    """
    names = {"CELU": "crelu", "LeakyReLU": "lrelu", "SiLU": "swish"}  # rsl_rl's for torch's
    return {
        "obs_groups": {part: list(model["obs_groups"]) for part, model in models.items()},
        **{
            part: {"activation": names.get(activation, activation.lower())}
            for part, model in models.items()
            for activation in model["activations"]
        },
    }


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
            raise ValueError(
                f"{part}.{name} is missing, expected the training's: the parameters do not show it."
                " Write it into the YAML file that --agent names."
            )
    groups = {part: ["obs"]} | (config.get("obs_groups") or {})
    return {**config, "obs_groups": groups, part: model}


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

"""Policies from a platform's log folders: the trained model without its runner."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rsl_rl.models import MLPModel
from rsl_rl.utils import resolve_callable
from tensordict import TensorDict

from rsl_tbptt.checkpoints.reading import read_checkpoint
from rsl_tbptt.checkpoints.trained_models import read_agent_config

AGENT = Path("params", "agent.yaml")
PARTS = {"student_state_dict": "student", "actor_state_dict": "actor"}
"""Checkpoint entries of a policy and its name in the agent's config, best first."""


Images = Mapping[str, Sequence[int]]
"""Channels, height and width of image groups."""


def load_policy(
    checkpoint: Path,
    device: str = "cpu",
    agent: Path | None = None,
    images: Images | None = None,
) -> MLPModel:
    """Load the policy of a checkpoint: the student of a distillation, the actor of PPO.

    The model is built from ``params/agent.yaml``, which platforms write beside the checkpoints, so
    it is the one that was trained, command-line overrides included. rsl_rl alone writes no such
    file: then from what the checkpoint says itself, or from ``agent``.

    Args:
        checkpoint: ``model_<iteration>.pt`` in a log folder.
        device: Device of the model.
        agent: YAML file of the training's config, or of what of it parameters do not show.
        images: Sizes of the image groups that a CNN sees, which its parameters do not show. None
            takes what the checkpoint says; one of rsl_rl alone says nothing.

    Returns:
        The policy in evaluation mode, its memory empty.

    Raises:
        FileNotFoundError: If the checkpoint or the config beside it is missing.
        ValueError: If the checkpoint cannot be read, holds no policy or another model's.
    """
    alone = agent is not None or not (checkpoint.parent / AGENT).is_file()
    config = _config_alone(checkpoint, agent) if alone else agent_config(checkpoint)
    part, state_dict = _policy_state(checkpoint)
    if alone:
        config = _completed(config, part, state_dict)
    if not config.get(part):
        raise ValueError(f"{checkpoint} holds a {part}, expected one in its params/agent.yaml.")
    if images is None:
        trained = read_checkpoint(str(checkpoint), "cpu").get("rsl_tbptt", {}).get("models", {})
        images = trained.get(part, {}).get("images", {})
    policy = _build(config, part, state_dict, images)
    try:
        policy.load_state_dict(state_dict)
    except RuntimeError as error:
        raise ValueError(f"{checkpoint} does not fit its params/agent.yaml: {error}") from error
    return policy.to(device).eval()


def agent_config(checkpoint: Path) -> dict[str, Any]:
    """Read the agent's config of the run that a checkpoint belongs to.

    Args:
        checkpoint: ``model_<iteration>.pt`` in a log folder.

    Returns:
        The platform's agent config.

    Raises:
        FileNotFoundError: If the checkpoint or its config is missing.
    """
    path = checkpoint.parent / AGENT
    for needed in (checkpoint, path):
        if not needed.is_file():
            raise FileNotFoundError(
                f"{needed} is missing, expected a checkpoint in the log folder of a training, with"
                " params/agent.yaml beside it. rsl_rl alone writes none: export.py takes its config"
                " as --agent FILE."
            )
    return read_agent_config(path)


def _config_alone(checkpoint: Path, agent: Path | None) -> dict[str, Any]:
    """Return what is known of a policy that rsl_rl alone trained, beside its parameters.

    Raises:
        FileNotFoundError: If nothing is.
        ValueError: If the checkpoint cannot be read.
    """
    if agent is not None:
        return read_agent_config(agent)
    if not checkpoint.is_file():
        return agent_config(checkpoint)  # which says so
    models = read_checkpoint(str(checkpoint), "cpu").get("rsl_tbptt", {}).get("models", {})
    if not models:
        return agent_config(checkpoint)
    names = {"CELU": "crelu", "LeakyReLU": "lrelu", "SiLU": "swish"}  # rsl_rl's for torch's
    return {
        "obs_groups": {part: list(model["obs_groups"]) for part, model in models.items()},
        **{
            part: {"activation": names.get(activation, activation.lower())}
            for part, model in models.items()
            for activation in model["activations"]
        },
    }


def _completed(
    config: dict[str, Any], part: str, state_dict: dict[str, torch.Tensor]
) -> dict[str, Any]:
    """Add to a config what the policy's parameters show; what it says itself comes first.

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
    last = int(_last_layer(state_dict).split(".")[1])
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


def _policy_state(checkpoint: Path) -> tuple[str, dict[str, torch.Tensor]]:
    """Read a policy's parameters and its name in the agent's config.

    Raises:
        ValueError: If the file cannot be read or holds no policy.
    """
    loaded = read_checkpoint(str(checkpoint), "cpu")
    for key, part in PARTS.items():
        if key in loaded:
            return part, loaded[key]
    raise ValueError(f"{checkpoint} holds {sorted(loaded)}, expected one of {list(PARTS)}.")


def _build(
    config: dict[str, Any], part: str, state_dict: dict[str, torch.Tensor], images: Images
) -> MLPModel:
    """Build the model with the sizes of its parameters; no environment is needed for them."""
    model_class, options = _class_of(_set_fields(config[part]))
    rnn_input = state_dict.get("rnn.rnn.weight_ih_l0")
    num_inputs = (state_dict["mlp.0.weight"] if rnn_input is None else rnn_input).shape[1]
    num_outputs = state_dict[_last_layer(state_dict)].shape[0]
    num_actions = num_outputs // _outputs_per_action(options)

    def build(num_obs: int) -> MLPModel:
        # The model concatenates its groups without images; their total is all that parameters show.
        obs = split_into_groups(names, torch.zeros(1, num_obs))
        obs.update({name: torch.zeros(1, *images[name]) for name in encoded})
        arguments = copy.deepcopy(options)
        return model_class(obs, config["obs_groups"], part, num_actions, **arguments)

    groups = config["obs_groups"][part]
    encoded = [name for name in groups if any(k.startswith(f"cnns.{name}.") for k in state_dict)]
    names = [name for name in groups if name not in encoded]
    _check_sizes(encoded, images)
    if encoded:
        num_inputs -= build(len(names)).cnn_latent_dim  # pyright: ignore[reportAttributeAccessIssue]
    return build(max(num_inputs, len(names)))


def _check_sizes(encoded: list[str], images: Images) -> None:
    """Check that the size of each image is known.

    Raises:
        ValueError: If one is not.
    """
    for name in encoded:
        if name not in images:
            raise ValueError(
                f"The size of the images '{name}' is missing, expected it in a checkpoint that has"
                " a CNN: rsl_rl alone does not write it and parameters do not show it. Give"
                f" channels, height and width, for example --image {name}=3x64x64."
            )


def _class_of(config: dict[str, Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return the class that a config names, and a copy of its arguments: models edit theirs."""
    arguments = copy.deepcopy(config)
    return resolve_callable(arguments.pop("class_name")), arguments


def _set_fields(model_cfg: dict[str, Any]) -> dict[str, Any]:
    """Leave out of a model's config what is unset: mjlab's class has the fields of every model."""
    given = {name: value for name, value in model_cfg.items() if value is not None}
    if "rnn_type" in given:
        return given
    return {name: value for name, value in given.items() if not name.startswith("rnn_")}


def _last_layer(state_dict: dict[str, torch.Tensor]) -> str:
    """Name the weight of the head's last layer."""
    layers = [name for name in state_dict if name.startswith("mlp.") and name.endswith(".weight")]
    return max(layers, key=lambda name: int(name.split(".")[1]))


def _outputs_per_action(options: dict[str, Any]) -> int:
    """Return how many numbers the head gives for an action: more than 1 for some distributions."""
    if options.get("distribution_cfg") is None:
        return 1
    distribution_class, distribution_options = _class_of(options["distribution_cfg"])
    input_dim = distribution_class(1, **distribution_options).input_dim
    return input_dim if isinstance(input_dim, int) else math.prod(input_dim)


def split_into_groups(names: list[str], obs: torch.Tensor) -> TensorDict:
    """Cut observations into groups, in any widths: a policy concatenates them again.

    Args:
        names: The policy's observation groups without images.
        obs: Observations. Shape: (N, D), with D at least the number of groups, 0 without any.

    Returns:
        Observations by group, batch size (N,).
    """
    if not names:
        return TensorDict({}, batch_size=obs.shape[:1])
    widths = [obs.shape[-1] - len(names) + 1] + [1] * (len(names) - 1)
    parts = obs.split(widths, dim=-1)
    return TensorDict(dict(zip(names, parts, strict=True)), batch_size=obs.shape[:1])


def images_of(obs: TensorDict) -> Images:
    """Return the sizes of the image groups among observations of batch size (N,)."""
    return {name: group.shape[1:] for name, group in obs.items() if group.dim() == 4}

"""Build the policy of a run, the trained model without its runner, and its auxiliary heads."""

import contextlib
import copy
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.algorithms.extensions.heads import PREFIX, build_head
from rsl_tbptt.compat.versions import MLPModel, resolve_callable
from rsl_tbptt.tools.run import Run

MLP_WEIGHT = re.compile(r"mlp\.\d+\.weight")
Images = Mapping[str, Sequence[int]]
"""Channels, height and width of image groups."""


def build_policy(run: Run, device: str = "cpu", images: Images | None = None) -> MLPModel:
    """Build the model without an environment: the shapes of its parameters give its sizes.

    Args:
        run: Result of :func:`rsl_tbptt.tools.run.read_run`.
        device: Device of the model.
        images: Sizes of the image groups. None takes them from the checkpoint.

    Returns:
        The policy in evaluation mode, with empty memory.

    Raises:
        ValueError: If config and parameters are of different models, or sizes are missing.
    """
    shapes = {**run.shapes, **(images or {})}
    for name in _encoded(run):
        if name not in shapes:
            raise ValueError(
                f"The size of the images '{name}' is missing, expected channels, height and width"
                f" as in --image {name}=3x64x64: the checkpoint does not show it."
            )
    try:
        policy = _build(run, shapes)
        policy.load_state_dict(run.state_dict)
    except Exception as error:  # a class can raise anything if the options are another's
        raise ValueError(f"{run.source}: {error!r}") from error
    return policy.to(device).eval()


def _build(run: Run, shapes: Images) -> MLPModel:
    """Build the model with freshly initialised parameters."""
    state_dict, (model_class, options) = run.state_dict, _class_of(run.config[run.part])
    num_actions = _num_actions(_num_outputs(state_dict), options)
    first = "rnn.rnn.weight_ih_l0" if "rnn.rnn.weight_ih_l0" in state_dict else "mlp.0.weight"
    num_inputs = state_dict[first].shape[1]
    encoded, shown = _encoded(run), set(run.groups) <= set(shapes)
    names = [name for name in run.groups if name not in encoded]

    def build(num_obs: int) -> MLPModel:
        # The model concatenates its groups without images: parameters show only their total width.
        obs = split_into_groups(names, torch.zeros(1, num_obs))
        for name in run.groups if shown else encoded:
            obs[name] = torch.zeros(1, *shapes[name], dtype=run.dtypes.get(name))
        groups, arguments = run.config["obs_groups"], copy.deepcopy(options)
        return model_class(obs, groups, run.part, num_actions, **arguments)

    if encoded and not shown:
        blind: Any = build(len(names))
        num_inputs -= blind.cnn_latent_dim
    return build(max(num_inputs, len(names)))


def check_images(run: Run, images: Images) -> None:
    """Check that image sizes given by a user have an effect and agree with the checkpoint.

    Raises:
        ValueError: If one has no effect or contradicts the checkpoint.
    """
    seen = run.groups if {*run.groups} <= {*images, *run.shapes} else _encoded(run)
    for name, size in images.items():
        known = run.shapes.get(name)
        if name not in seen or (known is not None and [*known] != [*size]):
            expected = [*known] if known else f"one of {seen}, the image groups that it sees"
            raise ValueError(
                f"--image is {name}={'x'.join(map(str, size))}, expected {expected}: it would have"
                " no effect, or contradict the checkpoint. Leave it out."
            )


def _encoded(run: Run) -> list[str]:
    """Return the observation groups that have a CNN of their own."""
    encoders = {key.split(".")[1] for key in run.state_dict if key.startswith("cnns.")}
    return [name for name in run.groups if name in encoders]


def _class_of(config: dict[str, Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return the class that a config names, and a copy of its arguments, which models edit."""
    arguments = copy.deepcopy(config)
    return resolve_callable(arguments.pop("class_name")), arguments


def _num_outputs(state_dict: Mapping[str, torch.Tensor]) -> int:
    """Return the number of outputs of the head.

    Raises:
        ValueError: If there is no head as in rsl_rl's models.
    """
    layers = [int(name.split(".")[1]) for name in state_dict if MLP_WEIGHT.fullmatch(name)]
    if not layers:
        raise ValueError(
            f"The policy's parameters are {sorted(state_dict)}, expected 'mlp.0.weight' and so on"
            " among them, as in rsl_rl's models."
        )
    return len(state_dict[f"mlp.{max(layers)}.weight"])


def _num_actions(num_outputs: int, options: dict[str, Any]) -> int:
    """Return the number of actions for which a distribution takes that many outputs of the head.

    Raises:
        ValueError: If there is none.
    """
    if options.get("distribution_cfg") is None:
        return num_outputs
    for number in range(1, num_outputs + 1):
        make, arguments = _class_of(options["distribution_cfg"])
        with contextlib.suppress(Exception):  # its options may be lists with a value per action
            input_dim = make(number, **arguments).input_dim
            if num_outputs == (input_dim if isinstance(input_dim, int) else math.prod(input_dim)):
                return number
    raise ValueError(
        f"The head has {num_outputs} outputs, expected as many as the input_dim of"
        f" {options['distribution_cfg']} is for some number of actions."
    )


def split_into_groups(names: list[str], obs: torch.Tensor) -> TensorDict:
    """Cut observations into groups of arbitrary widths: a policy concatenates them again.

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


def groups_of(policy: MLPModel) -> list[str]:
    """Return the names of the observation groups that a policy sees, in its order."""
    images = getattr(policy, "obs_groups_2d", ())
    return [*getattr(policy, "group_shapes", (*policy.obs_groups, *images))]


def images_of(obs: TensorDict) -> Images:
    """Return the sizes of the image groups among observations of batch size (N,)."""
    return {name: group.shape[1:] for name, group in obs.items() if group.dim() == 4}


def saved_heads(saved: Mapping[str, Any]) -> dict[str, nn.Module]:
    """Build the heads of a checkpoint, to run with its model.

    Args:
        saved: The result of ``AuxiliaryHeads.state_dict``, or nothing.

    Returns:
        Modules by the names of their outputs. They map latents, (rows, H), to predictions,
        (rows, D); for a head with the loss "bce" these are probabilities.
    """
    heads: dict[str, nn.Module] = {}
    for name, head in saved.get("heads", {}).items():
        weights = [value for value in head["state_dict"].values() if value.dim() == 2]
        num_inputs, num_outputs = weights[0].shape[1], weights[-1].shape[0]
        network = build_head(num_inputs, tuple(head["hidden_dims"]), num_outputs)
        network.load_state_dict(head["state_dict"])
        if head["loss"] == "bce":
            network.append(nn.Sigmoid())
        heads[PREFIX + name] = network.eval()
    return heads

"""Policies from checkpoints: the trained model without its runner."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict

from rsl_tbptt.checkpoints.reading import read_checkpoint
from rsl_tbptt.compat import MODELS_ERA, require_era
from rsl_tbptt.compat.versions import MLPModel, resolve_callable
from rsl_tbptt.tools.simulate.policy_config import last_layer, policy_config

require_era(MODELS_ERA, "rsl_tbptt.tools.simulate.policies")

PARTS = {"student_state_dict": "student", "actor_state_dict": "actor"}
"""Checkpoint entries of a policy and its name in the agent's config, in order of preference."""

Images = Mapping[str, Sequence[int]]
"""Channels, height and width of image groups."""


@dataclass(frozen=True, kw_only=True)
class SavedPolicy:
    """A policy as read from a checkpoint and the config next to it."""

    source: str
    """Start of error messages: the checkpoint, and the config that does not fit it."""
    config: dict[str, Any]
    """The agent's config."""
    part: str
    """The policy's name in it."""
    state_dict: dict[str, torch.Tensor]
    shapes: Images
    """Shapes of the observation groups that the checkpoint records."""
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)
    """Dtypes of the same groups."""
    auxiliary: Mapping[str, Any] = field(default_factory=dict)
    """Its auxiliary heads, as the checkpoint has them."""
    robot: Mapping[str, Any] = field(default_factory=dict)
    """Properties of the robot; see ``checkpoints/robot.py``."""
    iteration: int | None = None


def load_policy(
    checkpoint: Path,
    device: str = "cpu",
    agent: Path | None = None,
    images: Images | None = None,
    trust: Sequence[str] = (),
) -> MLPModel:
    """Load the policy of a checkpoint: the student of a distillation, the actor of PPO.

    Args:
        checkpoint: ``model_<iteration>.pt`` in a log folder.
        device: Device of the model.
        agent: YAML file of the training's config, or only of the options that parameters do not
            show.
        images: Sizes of the image groups that a CNN sees, which its parameters do not show. None
            takes them from the checkpoint; a checkpoint of rsl_rl alone does not have them.
        trust: See :func:`read_policy`.

    Returns:
        The policy in evaluation mode, with empty memory.

    Raises:
        FileNotFoundError: If the config next to the checkpoint is missing.
        ValueError: If the checkpoint is missing or cannot be read, its policy is missing or does
            not fit the config, or a class is not trusted.
    """
    saved = read_policy(checkpoint, agent, trust)
    check_images(saved, images or {})
    return build_policy(saved, device, images)


def read_policy(
    checkpoint: Path, agent: Path | None = None, trust: Sequence[str] = ()
) -> SavedPolicy:
    """Read a policy's parameters and config, without running code that the files contain or name.

    The config is ``params/agent.yaml``, which platforms write next to the checkpoints. It is the
    training's own, command-line overrides included. rsl_rl alone writes no such file: then the
    config comes from the checkpoint itself, or from ``agent``.

    Args:
        checkpoint: ``model_<iteration>.pt`` in a log folder.
        agent: YAML file of the training's config, or only of the options that parameters do not
            show.
        trust: Packages, in addition to rsl_rl and this one, whose classes these files may name. The
            classes in the config of the registered task are always allowed: the user has installed
            that task.

    Returns:
        Everything that building the policy needs. If the checkpoint is of rsl_rl alone, the sizes
        of images are missing.

    Raises:
        FileNotFoundError: If the config next to the checkpoint is missing.
        ValueError: If the checkpoint is missing or cannot be read, its policy is missing or does
            not fit the config, or a class is not trusted.
    """
    loaded = read_checkpoint(str(checkpoint), "cpu")
    key = next((key for key in PARTS if loaded.get(key)), None)
    if key is None:
        raise ValueError(f"{checkpoint} holds {sorted(loaded)}, expected one of {list(PARTS)}.")
    part, state_dict = PARTS[key], loaded[key]
    if not (isinstance(state_dict, dict) and all(map(torch.is_tensor, state_dict.values()))):
        raise ValueError(f"{checkpoint} holds no tensors by name as {key}, expected parameters.")
    own = loaded.get("rsl_tbptt", {})
    robot = own.get("robot", {})
    step_dt = robot.get("step_dt", 1.0)
    if not (isinstance(step_dt, (int, float)) and 0 < step_dt < math.inf):
        raise ValueError(f"step_dt is {step_dt!r} in {checkpoint}, expected seconds above 0.")
    recorded = own.get("models", {})
    config, source = policy_config(checkpoint, agent, part, state_dict, recorded, trust)
    groups = recorded.get(part, {}).get("groups", {})
    return SavedPolicy(
        source=f"{checkpoint} does not fit {source}",
        config=config,
        part=part,
        state_dict=state_dict,
        shapes={name: group["shape"] for name, group in groups.items()},
        dtypes={
            name: _dtype_of(group["dtype"], name, checkpoint) for name, group in groups.items()
        },
        auxiliary=own.get("auxiliary", {}),
        robot=robot,
        iteration=loaded.get("iter"),
    )


def _dtype_of(name: Any, group: str, checkpoint: Path) -> torch.dtype:
    """Return the dtype of an observation group.

    Raises:
        ValueError: If it is none.
    """
    found = getattr(torch, str(name), None)
    if not isinstance(found, torch.dtype):
        raise ValueError(
            f"The dtype of '{group}' is {name!r} in {checkpoint}, expected one such as 'float32'."
        )
    return found


def build_policy(saved: SavedPolicy, device: str = "cpu", images: Images | None = None) -> MLPModel:
    """Build the model without an environment: the shapes of its parameters give its sizes.

    Args:
        saved: Result of :func:`read_policy`.
        device: Device of the model.
        images: Sizes of the image groups. None takes them from the checkpoint.

    Returns:
        The policy in evaluation mode, with empty memory.

    Raises:
        ValueError: If config and parameters are of different models, or sizes are missing.
    """
    shapes = {**saved.shapes, **(images or {})}
    for name in _encoded(saved):
        if name not in shapes:
            raise ValueError(
                f"The size of the images '{name}' is missing, expected channels, height and width"
                f" as in --image {name}=3x64x64: the checkpoint does not show it."
            )
    try:
        policy = _build(saved, shapes)
        policy.load_state_dict(saved.state_dict)
    except Exception as error:  # a class can raise anything if the options are another's
        raise ValueError(f"{saved.source}: {error!r}") from error
    return policy.to(device).eval()


def _build(saved: SavedPolicy, shapes: Images) -> MLPModel:
    """Build the model with freshly initialised parameters."""
    config, part, state_dict = saved.config, saved.part, saved.state_dict
    model_class, options = _class_of(config[part])
    first = "rnn.rnn.weight_ih_l0" if "rnn.rnn.weight_ih_l0" in state_dict else "mlp.0.weight"
    num_inputs = state_dict[first].shape[1]
    num_actions = _num_actions(state_dict[last_layer(state_dict)].shape[0], options)
    groups, encoded = config["obs_groups"][part], _encoded(saved)
    names = [name for name in groups if name not in encoded]
    shown = set(groups) <= set(shapes)

    def build(num_obs: int) -> MLPModel:
        # The model concatenates its groups without images: parameters show only their total width.
        obs = split_into_groups(names, torch.zeros(1, num_obs))
        for name in groups if shown else encoded:
            obs[name] = torch.zeros(1, *shapes[name], dtype=saved.dtypes.get(name))
        arguments = copy.deepcopy(options)
        return model_class(obs, config["obs_groups"], part, num_actions, **arguments)

    if encoded and not shown:
        blind: Any = build(len(names))
        num_inputs -= blind.cnn_latent_dim
    return build(max(num_inputs, len(names)))


def check_images(saved: SavedPolicy, images: Images) -> None:
    """Check that image sizes given by a user have an effect and agree with the checkpoint.

    Raises:
        ValueError: If one has no effect or contradicts the checkpoint.
    """
    groups = saved.config["obs_groups"][saved.part]
    seen = groups if set(groups) <= {*images, *saved.shapes} else _encoded(saved)
    for name, size in images.items():
        known = saved.shapes.get(name)
        if name not in seen or (known is not None and [*known] != [*size]):
            expected = [*known] if known else f"one of {seen}, the image groups that it sees"
            raise ValueError(
                f"--image is {name}={'x'.join(map(str, size))}, expected {expected}: it would have"
                " no effect, or contradict the checkpoint. Leave it out."
            )


def _encoded(saved: SavedPolicy) -> list[str]:
    """Return the observation groups that have a CNN of their own."""
    groups = saved.config["obs_groups"][saved.part]
    return [name for name in groups if any(k.startswith(f"cnns.{name}.") for k in saved.state_dict)]


def _class_of(config: dict[str, Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return the class that a config names, and a copy of its arguments, which models edit."""
    arguments = copy.deepcopy(config)
    return resolve_callable(arguments.pop("class_name")), arguments


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

"""Build the policy of a run, the trained model without its runner, and its auxiliary heads."""

import contextlib
import copy
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.algorithms.heads import PREFIX, Head
from rsl_tbptt.compat.checkpoints import modules_of_extension
from rsl_tbptt.compat.versions import MLPModel, resolve_callable
from rsl_tbptt.tools.run import Run

MLP_WEIGHT = re.compile(r"mlp\.\d+\.weight")


def build_policy(run: Run, device: str = "cpu", obs: TensorDict | None = None) -> MLPModel:
    """Build the trained model, without its runner.

    Args:
        run: Result of :func:`rsl_tbptt.tools.run.read_run`.
        device: Device of the model.
        obs: Observations of its task, batch size (N,). They show the sizes of the groups where the
            checkpoint does not record them.

    Returns:
        The policy in evaluation mode, with empty memory.

    Raises:
        ValueError: If config and parameters are of different models, or sizes are missing.
    """
    seen = TensorDict({}) if obs is None else obs[:1].cpu()
    if missing := [name for name in run.groups if name not in run.shapes and name not in seen]:
        raise ValueError(
            f"{run.checkpoint} does not record the shapes of {missing}, expected an environment"
            " that shows them: name its task with --task, or with --env for rsl_rl alone."
        )
    num_outputs = _num_outputs(run.state_dict)
    shown = {
        name: torch.zeros(1, *run.shapes[name], dtype=run.dtypes[name])
        if name in run.shapes
        else seen[name]
        for name in run.groups
    }
    try:
        model_class, options = _class_of(run.config[run.part])
        policy = model_class(
            TensorDict(shown, batch_size=[1]),
            run.config["obs_groups"],
            run.part,
            _num_actions(num_outputs, options),
            **options,
        )
        policy.load_state_dict(run.state_dict)
    except Exception as error:  # a class can raise anything if the options are another's
        raise ValueError(f"{run.source}: {error!r}") from error
    return policy.to(device).eval()


def check_groups(run: Any, obs: TensorDict, task: str) -> None:
    """Check that a task gives the observation groups that a policy was trained on.

    Args:
        run: What has the policy's ``groups`` and ``shapes``: a :class:`Run` or a bundle.
        obs: The task's observations, batch size (N,).
        task: Its name, for messages.

    Raises:
        ValueError: If a group is missing, or has another shape than recorded.
    """
    advice = "name the task that it was trained on"
    if missing := [name for name in run.groups if name not in obs]:
        raise ValueError(
            f"{task} has the observation groups {sorted(map(str, obs.keys()))}, expected {missing}"
            f" among them, which the policy sees: {advice}."
        )
    found = {name: [*obs[name].shape[1:]] for name in run.groups}
    expected = {name: [*run.shapes.get(name, found[name])] for name in run.groups}
    if found != expected:
        raise ValueError(
            f"{task} has the observation groups {found}, expected {expected} as the policy sees:"
            f" {advice}."
        )


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


def groups_of(policy: MLPModel) -> list[str]:
    """Return the names of the observation groups that a policy sees, in its order."""
    images = getattr(policy, "obs_groups_2d", ())
    return [*getattr(policy, "group_shapes", (*policy.obs_groups, *images))]


def saved_heads(saved: Mapping[str, Any]) -> dict[str, nn.Module]:
    """Build the heads of a checkpoint, to run with its model.

    Args:
        saved: The checkpoint's entry of the extension, or nothing.

    Returns:
        Modules by the names of their outputs. They map latents, (rows, H), to predictions,
        (rows, D); for a head with the loss "bce" these are probabilities.
    """
    heads: dict[str, nn.Module] = {}
    for name, state_dict in modules_of_extension(saved).items():
        meaning = state_dict["_extra_state"]
        weights = [value for key, value in state_dict.items() if key.endswith("weight")]
        num_inputs, num_outputs = weights[0].shape[1], weights[-1].shape[0]
        network = Head(num_inputs, meaning["hidden_dims"], num_outputs, meaning)
        network.load_state_dict(state_dict)
        if meaning["loss"] == "bce":
            network.append(nn.Sigmoid())
        heads[PREFIX + name] = network.eval()
    return heads

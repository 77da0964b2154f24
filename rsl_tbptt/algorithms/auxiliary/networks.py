"""The networks of auxiliary heads, what they read and their losses."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from rsl_rl.storage import RolloutStorage
from torch import nn

from rsl_tbptt.algorithms.auxiliary.options import (
    HEAD_LOSSES,
    PREFIX,
    HeadOptions,
    PerSample,
)
from rsl_tbptt.algorithms.replay import Replay, action_head, seen_by
from rsl_tbptt.compat.versions import MLPModel, resolve_callable
from rsl_tbptt.core import losses
from rsl_tbptt.models.protocol import parts_of


def build_head(num_inputs: int, hidden_dims: tuple[int, ...], num_outputs: int) -> nn.Sequential:
    """Build a head: linear layers with ELU between them."""
    sizes = [num_inputs, *hidden_dims, num_outputs]
    layers: list[nn.Module] = []
    for first, second in itertools.pairwise(sizes):
        layers += [nn.Linear(first, second), nn.ELU()]
    return nn.Sequential(*layers[:-1])


def saved_heads(saved: Mapping[str, Any]) -> dict[str, nn.Module]:
    """Build the heads of a checkpoint, to be run with its model.

    Args:
        saved: What :meth:`AuxiliaryHeads.state_dict` returned, or nothing.

    Returns:
        By the names of their outputs, modules of latents, (rows, H), to predictions, (rows, D):
        probabilities of a head with the loss "bce".
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


def latent_width(model: MLPModel, storage: RolloutStorage) -> int:
    """Return the size of what the model's head reads.

    Raises:
        NotImplementedError: If the model has to be run step by step.
    """
    parts = parts_of(model)
    if parts is None:
        raise NotImplementedError(
            f"auxiliary is set, expected None with a {type(model).__name__}: it is run step by"
            " step, where its latent is not seen. Give it `encode`, `cell` and `head`, as"
            " docs/models.md says."
        )
    if parts.cell is not None:
        return parts.cell.proj_size or parts.cell.hidden_size
    return _encoded_width(model, storage)


@torch.no_grad()
def _encoded_width(model: MLPModel, storage: RolloutStorage) -> int:
    training = model.training
    model.eval()  # running statistics are for data
    try:
        obs = seen_by(model, storage.observations[:1, :1])
        return Replay(model, action_head).encode(obs).shape[-1]
    finally:
        model.train(training)


def resolve_loss(name: str, options: HeadOptions, width: int, parameter: torch.Tensor) -> PerSample:
    """Return the loss of a head, and try out one that is the user's.

    Args:
        name: Name of the head.
        options: Its options.
        width: Number of its outputs.
        parameter: Has the device and dtype of its outputs, any shape.

    Raises:
        ValueError: If the loss cannot be imported, or fails on a few numbers.
    """
    loss = options.loss
    if isinstance(loss, str) and loss in HEAD_LOSSES:
        return HEAD_LOSSES[loss]
    option = f"auxiliary.{name}.loss"
    try:
        function = losses.from_function(resolve_callable(loss))
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"{option} is '{loss}', which cannot be imported ({error}): expected the qualified name"
            " of a function, such as 'my_package.losses:my_loss'."
        ) from error
    shape = (2, 3, width)
    targets = torch.linspace(-1.0, 1.0, 6 * width).to(parameter).view(shape)
    predictions = (0.5 * targets).requires_grad_()
    try:
        torch.autograd.grad(function(predictions, targets).sum(), predictions)
    except Exception as error:  # a user's function can raise anything
        raise ValueError(
            f"{option} is {loss!r}, which fails on predictions and targets of shape {shape}"
            f" ({error}): expected a differentiable function of the two that returns one loss per"
            " column."
        ) from error
    return function

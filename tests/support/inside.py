"""Access to the internals of the algorithms that tests check, in one place."""

from __future__ import annotations

import copy
import io
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from rsl_tbptt.core.hidden_state import as_tensors


def add_gradient(algorithm: Any, indices: Any) -> None:
    """Add PPO's gradient on one mini-batch of the stored rollout to the parameters'."""
    before = [parameter.grad for parameter in algorithm.parameters]
    algorithm.begin_update()
    algorithm._normalize(indices, algorithm.ranks)
    sizes = {"num_samples": indices.num_samples, "num_parts": algorithm.options.num_micro_batches}
    algorithm.gradients(indices.segments, **sizes)
    for parameter, gradient in zip(algorithm.parameters, before, strict=True):
        if gradient is not None:
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


def extension(algorithm: Any, name: str) -> Any:
    """Return the extension of an algorithm that checkpoints know by this name."""
    return next(each for each in algorithm.extensions if each.name == name)


def networks_of_heads(algorithm: Any) -> list[torch.nn.Module]:
    """Return the networks of the auxiliary heads, in their order; none without heads."""
    return [*extension(algorithm, "auxiliary").modules.values()]


def everything(algorithm: Any) -> Any:
    """Copy all that an update changes: models, normalisers, optimisers and the learning rate."""
    transaction = algorithm.transaction
    states = [dict(each.state_dict()) for each in (*transaction.modules, *transaction.optimizers)]
    for state in states:
        state.pop("_extra_state", None)  # what a head predicts, in words
    return copy.deepcopy([states, algorithm.learning_rate])


def saved(algorithm: Any) -> Any:
    """Copy all that a training continues with, besides the states of models and of RND's rewards.

    Those belong to a rollout.
    """
    checkpoint = algorithm.save()
    own = {k: v for k, v in checkpoint["rsl_tbptt"].items() if k not in ("models", "rnd")}
    return copy.deepcopy([{**checkpoint, "rsl_tbptt": own}, algorithm.learning_rate])


def hidden_states(algorithm: Any) -> list[torch.Tensor]:
    """Copy the states of all models."""
    models = algorithm.stateful_models().values()
    return [t.clone() for model in models for t in as_tensors(model.get_hidden_state())]


def assert_same(got: Any, want: Any) -> None:
    """Compare nested tensors, numbers and text to the last bit."""
    got, want = (tree_map_only(str, hash, each) for each in (got, want))
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def through_a_file(checkpoint: Any) -> Any:
    """Save a checkpoint to a file and return it as read from there."""
    file = io.BytesIO()
    torch.save(checkpoint, file)
    file.seek(0)
    return torch.load(file, weights_only=True)

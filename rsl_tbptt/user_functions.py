"""Trials of what users give: each is tried out once, when training is set up."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

import torch


@contextlib.contextmanager
def unwritten(name: str, values: Mapping[str, Any]) -> Iterator[None]:
    """Run a user's function inside; what it is given has to stay as it is.

    Args:
        name: The function in the message.
        values: What it is given, by name; only tensors are looked at.

    Raises:
        ValueError: If it writes into a value.
    """
    tensors = {key: value for key, value in values.items() if isinstance(value, torch.Tensor)}
    kept = {key: tensor.clone() for key, tensor in tensors.items()}
    yield
    for key, tensor in tensors.items():
        same = tensor == kept[key]
        if not (same | (tensor != tensor) & (kept[key] != kept[key])).all():  # NaN equals nothing
            raise ValueError(
                f"{name} writes into the '{key}' that it is given, expected a new tensor: training"
                " uses the old one. Begin with .clone()."
            )


def made_up(like: torch.Tensor) -> torch.Tensor:
    """Return values of a form: between 0 and 1, each another one; whole numbers are 0 and 1."""
    numbers = torch.arange(like.numel(), device=like.device)
    if like.is_floating_point():
        return ((numbers + 1) / (like.numel() + 1)).to(like.dtype).view(like.shape)
    return (numbers % 2).to(like.dtype).view(like.shape)


def values_with_gradient(model: Any) -> set[str]:
    """Name the values of a model's distribution through which a loss reaches the model.

    An argmax passes no gradient, and neither does rounding, whose gradient is 0 everywhere.

    Args:
        model: A model that follows rsl_rl's interface; its distribution stays as it is.

    Returns:
        Some of "actions" (deterministic ones), "mean", "log_prob" and "kl". Also a value that
        cannot be tried out: the first update checks the gradient itself.
    """
    distribution = model.distribution

    def of_log_prob(inputs: torch.Tensor) -> torch.Tensor:
        distribution.update(inputs)
        return model.get_output_log_prob(distribution.deterministic_output(inputs).detach())

    def of_mean(inputs: torch.Tensor) -> torch.Tensor:
        distribution.update(inputs)
        return model.output_mean

    def of_kl(inputs: torch.Tensor) -> torch.Tensor:
        distribution.update(0.5 * inputs.detach())
        other = model.output_distribution_params
        distribution.update(inputs)
        return model.get_kl_divergence(other, model.output_distribution_params)

    def of_actions(inputs: torch.Tensor) -> torch.Tensor:
        return distribution.deterministic_output(inputs)

    values = {"actions": of_actions, "mean": of_mean, "log_prob": of_log_prob, "kl": of_kl}
    return {name for name, value in values.items() if _has_gradient(distribution, value)}


def _has_gradient(distribution: Any, value: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Return whether a value passes a gradient to the distribution's inputs or parameters."""
    sizes = getattr(distribution, "input_dim", None)
    if sizes is None:  # no distribution, or one that says nothing of its inputs
        return True
    learned = [each for each in distribution.parameters() if each.requires_grad]
    like = next(chain(distribution.parameters(), distribution.buffers()), torch.empty(0))
    form = like.new_empty(3, *(sizes if isinstance(sizes, list | tuple) else [sizes]))
    kept = dict(vars(distribution))
    try:
        with torch.inference_mode(False), torch.enable_grad():
            inputs = made_up(form).requires_grad_()
            found = value(inputs)
            if not found.requires_grad:
                return False
            # Weights, as a sum of probabilities is constant.
            total = (found * (1.0 + made_up(found.detach()))).sum()
            gradients = torch.autograd.grad(total, [inputs, *learned], allow_unused=True)
    except Exception:  # a user's distribution can raise anything, and may refuse made-up inputs
        return True
    finally:
        vars(distribution).clear()  # its last update has a graph behind it
        vars(distribution).update(kept)
    return any(gradient is not None and bool(gradient.any()) for gradient in gradients)

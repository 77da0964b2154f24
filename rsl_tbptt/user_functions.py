"""Call users' functions once at setup, to find their faults before the first rollout."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
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

"""What a model shows to be replayed window by window, and what stands for it in rsl_rl's models.

A window of K steps of n environments is K * n rows for all of a model but its memory::

    frames (rows, C, H, W) ---> encoders[group] ---+
                                                   v
    observations (rows, D) ----------------------> encode ---> cell ---> head ---> distribution
                                                               over K steps
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.compat.versions import CNNModel, MLPModel, RNNModel
from rsl_tbptt.core.scan import is_supported

Observed = Mapping[str, torch.Tensor] | TensorDict
"""Observation groups by name, of leading shape (rows,), to be read by ``obs[group]`` alone."""

FrameEncoder = Callable[[torch.Tensor], torch.Tensor]
"""Maps the frames of a group, shape (rows, C, H, W) or any other, to features, (rows, F)."""


@runtime_checkable
class WindowedModel(Protocol):
    """A recurrent model that is replayed window by window.

    Its forward pass has to be ``head`` of one step of ``cell`` on ``encode``. It may also have
    ``encoders``, frame encoders by observation group: ``encode`` then gets features in place of the
    frames, which are computed in parts and once for a frame that an environment shows for longer.
    If ``encode`` does no more than put those features, in the order of ``encoders``, behind what
    the method ``encode_vectors`` returns for the same rows, the memory's products with features are
    computed once for such a frame, too.
    """

    @property
    def cell(self) -> nn.RNNBase:
        """The memory: recurrent layers of a kind that ``recurrent_scan`` runs."""
        ...

    def encode(self, obs: Observed, /) -> torch.Tensor:
        """Return the memory's inputs, shape (rows, F), for observations of batch size (rows,)."""
        ...

    def head(self, latent: torch.Tensor, /) -> torch.Tensor:
        """Return what makes the distribution from the memory's outputs, shape (rows, H)."""
        ...


@dataclass(frozen=True)
class Parts:
    """A model as a replay runs it."""

    encode: Callable[[Any], torch.Tensor]
    """See :class:`WindowedModel`."""
    cell: nn.RNNBase | None
    """None without memory."""
    head: Callable[[torch.Tensor], torch.Tensor]
    """See :class:`WindowedModel`."""
    encoders: Mapping[str, FrameEncoder] = field(default_factory=dict)
    """By observation group."""
    encode_vectors: Callable[[Any], torch.Tensor] | None = None
    """What ``encode`` puts before the features of frames, if that is all it does."""


def parts_of(model: Any) -> Parts | None:
    """Take a model apart.

    Args:
        model: A model that follows rsl_rl's interface.

    Returns:
        The parts of a :class:`WindowedModel` or of a model of rsl_rl's; None for any other, which
        has to be run step by step.
    """
    own = type(model)
    if isinstance(model, WindowedModel):
        if not (is_supported(model.cell) and _is_as_new(own, "encode", "forward", "get_latent")):
            return None
        encoders: Any = getattr(model, "encoders", {})
        vectors: Any = getattr(model, "encode_vectors", None)
        joins = vectors if _is_as_new(own, "encode_vectors", "encode") else None
        return Parts(model.encode, model.cell, model.head, dict(encoders), joins)
    if own.forward is not MLPModel.forward:
        return None
    if CNNModel is not None and own.get_latent is CNNModel.get_latent:
        return Parts(partial(_join, model), None, model.mlp, dict(model.cnns))
    if not model.is_recurrent:
        return Parts(model.get_latent, None, model.mlp)
    if own.get_latent is RNNModel.get_latent and is_supported(model.rnn.rnn):
        return Parts(partial(MLPModel.get_latent, model), model.rnn.rnn, model.mlp)
    return None


def _is_as_new(model_class: type, part: str, *others: str) -> bool:
    """Return whether a method is as new as others, which a subclass may have replaced."""

    def age(name: str) -> int:
        classes = enumerate(model_class.__mro__)
        return next((index for index, each in classes if name in vars(each)), 0)

    return all(age(part) <= age(name) for name in others)


def _join(model: Any, obs: Any) -> torch.Tensor:
    """Return the latent of rsl_rl's CNNModel, (rows, F), with features in place of images."""
    features = [obs[group] for group in model.obs_groups_2d]
    vectors = [MLPModel.get_latent(model, obs)] if model.obs_groups else []
    return torch.cat([*vectors, *features], dim=-1)

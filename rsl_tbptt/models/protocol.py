"""What a model shows to be replayed window by window, and what stands for it in rsl_rl's models.

A window of K steps of n environments is K * n rows for all of a model but its memory::

    frames (rows, C, H, W) ---> encoders[group] ---+
                                                   v
    observations (rows, D) ----------------------> encode ---> cell ---> head ---> distribution
                                                               over K steps
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from tensordict import TensorDict
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from rsl_tbptt.compat.versions import CNNModel, MLPModel, RNNModel
from rsl_tbptt.core.scan import is_supported

Observed = Mapping[str, torch.Tensor] | TensorDict
"""Observation groups by name, of leading shape (rows,), to be read by ``obs[group]`` alone."""

FrameEncoder = Callable[[torch.Tensor], torch.Tensor]
"""Maps the frames of a group, shape (rows, C, H, W) or any other, to features, (rows, F)."""


@runtime_checkable
class WindowedModel(Protocol):
    """A recurrent model that is replayed window by window.

    Its forward pass has to call these: ``head`` of one step of ``cell`` on ``encode``. A subclass
    that changes the pass itself, a method of ``PASS``, is replayed step by step. It may also have
    ``encoders``, frame encoders by observation group: ``encode`` then gets features in place of the
    frames, which are computed in parts and once for a frame that an environment shows for longer.
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


PASS = ("forward", "get_latent", "features", "reset", "get_hidden_state")
"""What of a model runs or clears its parts."""

_OF_RNN = ("get_latent", "reset", "get_hidden_state")


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


def parts_of(model: Any) -> Parts | None:
    """Take a model apart.

    Args:
        model: A model that follows rsl_rl's interface.

    Returns:
        The parts of a :class:`WindowedModel` or of a model of rsl_rl's; None for any other, which
        has to be run step by step.
    """
    parts = _found_in(model, type(model))
    if parts is None or not (parts.cell is None or is_supported(parts.cell)):
        return None
    # Statistics of a batch would be those of whatever frames are encoded at once.
    if parts.encoders and any(isinstance(each, _BatchNorm) for each in model.modules()):
        return None
    return parts


def _found_in(model: Any, own: type) -> Parts | None:
    """Return the parts of a model of the class ``own``, whatever they are."""
    called = None
    if own.forward is MLPModel.forward:
        called = model.mlp  # which that calls, whatever ``head`` says
        if CNNModel is not None and own.get_latent is CNNModel.get_latent:
            return Parts(partial(_join, model), None, model.mlp, dict(model.cnns))
        if not model.is_recurrent:
            return Parts(model.get_latent, None, model.mlp)
        of_rsl_rl = type(getattr(model, "rnn", None)).__module__.startswith("rsl_rl.")
        if of_rsl_rl and all(getattr(own, each) is getattr(RNNModel, each) for each in _OF_RNN):
            base: Any = super(RNNModel, model)  # perhaps not MLPModel
            return Parts(base.get_latent, model.rnn.rnn, model.mlp)
    if not (isinstance(model, WindowedModel) and _is_as_declared(own, PASS, "encode", "head")):
        return None
    encoders: Any = getattr(model, "encoders", {})
    head = model.head if called is None else called
    return Parts(model.encode, model.cell, head, dict(encoders))


def _is_as_declared(own: type, methods: Iterable[str], *parts: str) -> bool:
    """Return whether methods are those of the first class that has all parts, or inherited."""
    declaring = [each for each in own.__mro__ if all(hasattr(each, part) for part in parts)]
    first = declaring[-1] if declaring else own
    return all(getattr(own, name, None) is getattr(first, name, None) for name in methods)


def _join(model: Any, obs: Any) -> torch.Tensor:
    """Return the latent of rsl_rl's CNNModel, (rows, F), with features in place of images."""
    features = [obs[group] for group in model.obs_groups_2d]
    base: Any = super(CNNModel, model)
    vectors = [base.get_latent(obs)] if model.obs_groups else []
    return torch.cat([*vectors, *features], dim=-1)

"""The interface of models that are replayed window by window, and its form for rsl_rl's models.

In a window of K steps of n environments, all but the recurrent layers runs on K * n rows::

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
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from rsl_tbptt.checkpoints.describing import qualified_name
from rsl_tbptt.compat.versions import CNNModel, MLPModel, RNNModel
from rsl_tbptt.core.scan import RecurrentLayers, is_supported

Observed = Mapping[str, torch.Tensor] | TensorDict
"""Observation groups by name, of leading shape (rows,); read them by ``obs[group]`` only."""

FrameEncoder = Callable[[torch.Tensor], torch.Tensor]
"""Maps the frames of a group, shape (rows, C, H, W) or any other, to features, (rows, F)."""


@runtime_checkable
class WindowedModel(Protocol):
    """A recurrent model that is replayed window by window.

    Its forward pass has to call these methods: ``head`` of one step of ``cell`` on ``encode``. A
    subclass that overrides a method of ``PASS`` is replayed step by step. It may also have
    ``encoders``, frame encoders by observation group. ``encode`` then gets features instead of
    frames; they are computed in parts, and once for a frame that is shown for several steps.
    """

    @property
    def cell(self) -> RecurrentLayers:
        """The recurrent layers, of a kind that ``recurrent_scan`` runs."""
        ...

    def encode(self, obs: Observed, /) -> torch.Tensor:
        """Return the inputs of ``cell``, shape (rows, F), for observations of batch (rows,)."""
        ...

    def head(self, latent: torch.Tensor, /) -> torch.Tensor:
        """Return the distribution's inputs from the outputs of ``cell``, shape (rows, H)."""
        ...


PASS = ("forward", "get_latent", "features", "reset", "get_hidden_state")
"""Methods of a model that run its parts or clear its state."""

_OF_RNN = ("get_latent", "reset", "get_hidden_state")


@dataclass(frozen=True)
class Parts:
    """The parts of a model that a replay runs."""

    encode: Callable[[Any], torch.Tensor]
    """See :class:`WindowedModel`."""
    cell: RecurrentLayers | None
    """Recurrent layers; None without memory."""
    head: Callable[[torch.Tensor], torch.Tensor]
    """See :class:`WindowedModel`."""
    encoders: Mapping[str, FrameEncoder] = field(default_factory=dict)
    """Frame encoders by observation group."""


def parts_of(model: Any) -> Parts | None:
    """Find the parts of a model.

    Args:
        model: A model that follows rsl_rl's interface.

    Returns:
        The parts of a :class:`WindowedModel` or of one of rsl_rl's models. None for any other
        model, which has to run step by step.
    """
    parts = _found_in(model, type(model))
    if parts is None or not (parts.cell is None or is_supported(parts.cell)):
        return None
    # Batch statistics depend on which frames are encoded at once; dropout would draw other numbers
    # when a part is recomputed.
    if parts.encoders and any(isinstance(m, _BatchNorm | _DropoutNd) for m in model.modules()):
        return None
    return parts


def _found_in(model: Any, own: type) -> Parts | None:
    """Return the parts of a model of class ``own``, without checking that they are supported."""
    called = None
    if own.forward is MLPModel.forward:
        called = model.mlp  # forward calls it, even if there is a ``head``
        if CNNModel is not None and own.get_latent is CNNModel.get_latent:
            return Parts(partial(_join, model), None, model.mlp, dict(model.cnns))
        if not model.is_recurrent:
            return Parts(model.get_latent, None, model.mlp)
        of_rsl_rl = type(getattr(model, "rnn", None)).__module__.startswith("rsl_rl.")
        if of_rsl_rl and all(getattr(own, each) is getattr(RNNModel, each) for each in _OF_RNN):
            base: Any = super(RNNModel, model)  # another class than MLPModel with several bases
            return Parts(base.get_latent, model.rnn.rnn, model.mlp)
    if not (isinstance(model, WindowedModel) and _is_as_declared(own, PASS, "encode", "head")):
        return None
    encoders: Any = getattr(model, "encoders", {})
    head = model.head if called is None else called
    return Parts(model.encode, model.cell, head, dict(encoders))


def _is_as_declared(own: type, methods: Iterable[str], *parts: str) -> bool:
    """Return whether methods are inherited from the first class that has all parts."""
    declaring = [each for each in own.__mro__ if all(hasattr(each, part) for part in parts)]
    first = declaring[-1] if declaring else own
    return all(getattr(own, name, None) is getattr(first, name, None) for name in methods)


def check_rnn_types(cfg: Mapping[str, Any], place: str = "") -> None:
    """Refuse a cell that rsl_rl does not know where its own model would build an LSTM instead.

    Args:
        cfg: A runner's config, or a part of it.
        place: Path of the part, such as "student.".

    Raises:
        ValueError: If there is one.
    """
    for key, value in cfg.items():
        if isinstance(value, Mapping):
            check_rnn_types(value, f"{place}{key}.")
    name, rnn_type = qualified_name(cfg.get("class_name")), cfg.get("rnn_type")
    is_of_rsl_rl = name.startswith("rsl_rl.") or not {".", ":"} & {*name}
    if is_of_rsl_rl and str(rnn_type).lower() not in ("none", "lstm", "gru"):
        raise ValueError(
            f"{place}rnn_type is '{rnn_type}', expected 'lstm' or 'gru': {name} would build an LSTM"
            f" instead. Set {place}class_name to 'rsl_tbptt.models:RecurrentModel' (rsl_rl 5)."
        )


def _join(model: Any, obs: Any) -> torch.Tensor:
    """Return the latent of rsl_rl's CNNModel, (rows, F), from features instead of images."""
    features = [obs[group] for group in model.obs_groups_2d]
    base: Any = super(CNNModel, model)
    vectors = [base.get_latent(obs)] if model.obs_groups else []
    return torch.cat([*vectors, *features], dim=-1)

"""Auxiliary heads: each predicts an observation group from the model's latent at every step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.algorithms.behavior_losses import own_loss
from rsl_tbptt.algorithms.replay import Policy
from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.core import losses
from rsl_tbptt.core.rollout import Samples
from rsl_tbptt.extensions import (
    Extension,
    OptionGroup,
    Rule,
    Term,
    are_integers,
    parse_fields,
    positive,
)
from rsl_tbptt.models.protocol import parts_of

PREFIX = "auxiliary/"
"""Prefix of a head's name in metrics, labels and the outputs of an ONNX file."""

PerSample = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Maps predictions and targets, (..., D) each, to one loss per sample, (...)."""

HEAD_LOSSES: dict[str, PerSample] = {"mse": losses.mse, "huber": losses.huber, "bce": losses.bce}


_SIZES = Rule(lambda value: are_integers(value, 1), "a list of layer sizes, such as [64]")
_LOSS = Rule(
    lambda value: (
        callable(value) or (isinstance(value, str) and (value in HEAD_LOSSES or ":" in value))
    ),
    f"one of {list(HEAD_LOSSES)} or a qualified name such as 'my_package.losses:my_loss'",
)


@dataclass(frozen=True, kw_only=True)
class HeadOptions:
    """Options of a head, which predicts its target from the model's latent at each step."""

    target: str
    """The observation group that it predicts."""

    loss: Annotated[str | Callable[..., Any], _LOSS] = "mse"
    """``"mse"``, ``"huber"``, ``"bce"`` (of logits), or the name of an element-wise function."""

    coef: Annotated[float, positive(0)] = 1.0
    """Weight of its loss compared with the algorithm's. With 0 the head learns nothing."""

    hidden_dims: Annotated[tuple[int, ...], _SIZES] = ()
    """Sizes of hidden layers, each followed by ELU; no layers make the head linear."""

    detach: bool = False
    """Whether its gradient stops at the latent, so that the model does not learn from it."""

    @property
    def reaches_model(self) -> bool:
        """Whether the model learns from the head."""
        return self.coef > 0 and not self.detach

    def meaning(self) -> dict[str, Any]:
        """Return a checkpoint's description of the head, in plain values."""
        loss: Any = self.loss
        return {
            "target": self.target,
            "loss": loss if isinstance(loss, str) else f"{loss.__module__}:{loss.__qualname__}",
            "hidden_dims": list(self.hidden_dims),
        }


def parse_heads(auxiliary: Mapping[str, Any] | None) -> dict[str, HeadOptions]:
    """Build the options of heads from a config.

    Args:
        auxiliary: Options of each head, by its name.

    Returns:
        The heads' options, checked as far as possible without models and rollouts.

    Raises:
        ValueError: If a name, an option or a value is not valid.
    """
    if not isinstance(auxiliary or {}, Mapping):
        raise ValueError(f"auxiliary is {auxiliary!r}, expected options by the name of a head.")
    parsed = {}
    for name, options in (auxiliary or {}).items():
        if not (isinstance(name, str) and name.isidentifier()):
            raise ValueError(
                f"auxiliary has a head {name!r}, expected a name of letters, digits and _: it names"
                " a metric and an output of the ONNX file."
            )
        head = f"auxiliary.{name}"
        if not isinstance(options, Mapping) or not isinstance(options.get("target"), str):
            raise ValueError(
                f"{head} is {options!r}, expected a dictionary with 'target', an observation group."
            )
        values = {key: tuple(v) if isinstance(v, list) else v for key, v in options.items()}
        parsed[name] = parse_fields(HeadOptions, values, head, prefix=f"{head}.")
    return parsed


@dataclass(kw_only=True)
class HeadsOptions(OptionGroup):
    """The option of an algorithm with auxiliary heads."""

    auxiliary: dict[str, Any] | None = None
    """Auxiliary heads by name: each predicts a quantity from the model's latent.

    See docs/howto/auxiliary_heads.md.
    """


def check_targets(heads: Mapping[str, HeadOptions], obs: TensorDict) -> None:
    """Check that the targets of heads are observation groups of vectors.

    Args:
        heads: Options of the heads by name.
        obs: Observations, batch size (N,).

    Raises:
        ValueError: If a target is not.
    """
    for name, head in heads.items():
        if head.target not in obs:
            raise ValueError(
                f"auxiliary.{name}.target is '{head.target}', expected an observation group, one of"
                f" {list(obs.keys())}: let the environment make a group of what is to be predicted."
            )
        _, *shape = obs[head.target].shape
        if len(shape) != 1:
            raise ValueError(
                f"auxiliary.{name}.target is '{head.target}' of shape {tuple(shape)}, expected"
                " vectors."
            )


class Head(nn.Sequential):
    """Linear layers with ELU between them; its state dict knows what it predicts."""

    def __init__(
        self, num_inputs: int, hidden_dims: Sequence[int], num_outputs: int, meaning: dict[str, Any]
    ) -> None:
        """Build the layers, given the result of ``HeadOptions.meaning``."""
        sizes = [num_inputs, *hidden_dims, num_outputs]
        layers: list[nn.Module] = []
        for first, second in itertools.pairwise(sizes):
            layers += [nn.Linear(first, second), nn.ELU()]
        super().__init__(*layers[:-1])
        self._meaning = meaning

    def get_extra_state(self) -> dict[str, Any]:
        """Return what the head predicts."""
        return dict(self._meaning)

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """Check that a state dict is of a head that predicts the same.

        Raises:
            ValueError: If it has another target, loss or layers.
        """
        # The first two are options of earlier versions.
        for option, value in {"columns": None, "delay": 0, **self._meaning}.items():
            if state.get(option, value) != value:
                raise ValueError(
                    f"Its {option} is {value!r}, expected {state[option]!r} as there: keep it, or"
                    " give the head another name to begin anew."
                )


def latent_width(model: MLPModel) -> int:
    """Return the size of the latent, which the model's head reads.

    Raises:
        NotImplementedError: If the model runs step by step.
    """
    parts: Any = parts_of(model)
    if parts is None:
        raise NotImplementedError(
            f"auxiliary is set, expected None with a {type(model).__name__}: it runs step by step,"
            " where its latent is not known. Give it `encode`, `cell` and `head`, as"
            " rsl_tbptt.models.protocol.WindowedModel does."
        )
    if parts.cell is not None:
        return parts.cell.hidden_size
    return next(layer.in_features for layer in parts.head.modules() if isinstance(layer, nn.Linear))


class Heads(Extension):
    """The auxiliary heads of a model, which learn with it; without any it has no effect."""

    name = "auxiliary"

    def __init__(self, options: HeadsOptions, algorithm: Any, model: MLPModel) -> None:
        """Build the heads.

        Their initial values come from a copy of the random state, so that all other random numbers
        of the training are those without heads.

        Args:
            options: The option ``auxiliary``.
            algorithm: The algorithm, with its storage.
            model: The model whose latent they read.

        Raises:
            ValueError: If a target is no observation group of vectors, or a loss does not fit.
            NotImplementedError: If the model's latent is unknown.
        """
        super().__init__(options, algorithm)
        self._heads = parse_heads(options.auxiliary)
        self._losses: dict[str, PerSample] = {}
        stored = algorithm.storage.observations
        check_targets(self._heads, stored[0])
        if not self._heads:
            return
        parameter = next(model.parameters())
        num_inputs = latent_width(model)
        with torch.random.fork_rng(devices=[]):
            for name, head in self._heads.items():
                width = stored[head.target].shape[-1]
                network = Head(num_inputs, head.hidden_dims, width, head.meaning())
                self.modules[name] = network.to(parameter)
                loss: Any = head.loss
                if isinstance(loss, str) and loss in HEAD_LOSSES:
                    loss = HEAD_LOSSES[loss]
                else:
                    option = f"auxiliary.{name}.loss"
                    loss = own_loss(option, loss, HEAD_LOSSES, width, parameter)
                self._losses[name] = loss

    def observed_groups(self) -> set[str]:
        """Return the observation groups that are targets."""
        return {head.target for head in self._heads.values()}

    def labels(self) -> dict[str, torch.Tensor]:
        """Return the targets in the stored rollout, (T, N, D) each."""
        stored = self.algorithm.storage.observations
        return {PREFIX + name: stored[head.target].detach() for name, head in self._heads.items()}

    def losses(self, policy: Policy, samples: Samples) -> Iterator[Term]:
        """Yield the loss of each head."""
        for name, head in self._heads.items():
            latent = policy.latent if head.reaches_model else policy.latent.detach()
            prediction = self.modules[name](latent)
            values = self._losses[name](prediction, samples[PREFIX + name].to(prediction.dtype))
            if head.coef == 0:  # without effect even if its target is NaN, which undoes an update
                values = torch.nan_to_num(values.detach())
            yield PREFIX + name, head.coef, values

"""Auxiliary heads as options: the target, loss and weight of each."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import distributed, nn

from rsl_tbptt.algorithms.behavior_losses import own_loss
from rsl_tbptt.algorithms.extensions import Extension
from rsl_tbptt.algorithms.optimizers import step_at, use_fused_kernels
from rsl_tbptt.algorithms.option_checks import (
    GONE,
    OptionGroup,
    Rule,
    are_integers,
    parse_fields,
    positive,
)
from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.core import losses
from rsl_tbptt.core.accumulate import Loss, Outputs, SampleLosses
from rsl_tbptt.core.rollout import Labels
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


def build_head(num_inputs: int, hidden_dims: tuple[int, ...], num_outputs: int) -> nn.Sequential:
    """Build a head: linear layers with ELU between them."""
    sizes = [num_inputs, *hidden_dims, num_outputs]
    layers: list[nn.Module] = []
    for first, second in itertools.pairwise(sizes):
        layers += [nn.Linear(first, second), nn.ELU()]
    return nn.Sequential(*layers[:-1])


@torch.no_grad()
def latent_width(model: MLPModel, storage: RolloutStorage) -> int:
    """Return the size of the latent, which the model's head reads.

    Raises:
        NotImplementedError: If the model runs step by step.
    """
    parts = parts_of(model)
    if parts is None:
        raise NotImplementedError(
            f"auxiliary is set, expected None with a {type(model).__name__}: it runs step by step,"
            " where its latent is not known. Give it `encode`, `cell` and `head`, as"
            " rsl_tbptt.models.protocol.WindowedModel does."
        )
    if parts.cell is not None:
        return parts.cell.hidden_size
    training = model.training
    model.eval()  # keeps running statistics unchanged
    try:
        obs = storage.observations[0, :1].copy()
        for group, encoder in parts.encoders.items():
            obs[group] = encoder(obs[group])
        return parts.encode(obs).shape[-1]
    finally:
        model.train(training)


@dataclass(frozen=True)
class _Head:
    options: HeadOptions
    network: nn.Module
    loss: PerSample

    def saved(self) -> dict[str, Any]:
        """Return a checkpoint's entry of the head."""
        return {**self.options.meaning(), "state_dict": self.network.state_dict()}


class AuxiliaryHeads(Extension):
    """The heads of a model; without heads it has no effect."""

    name, loaded_with = "auxiliary", ("actor", "auxiliary", "student")

    def __init__(self, algorithm: Any, model: MLPModel, reported_where: str | None = None) -> None:
        """Build the heads and their optimiser without changing the random state.

        Args:
            algorithm: The algorithm. Its optimiser gives theirs class and learning rate, its option
                ``max_grad_norm`` clips their gradient.
            model: The model whose latent they read.
            reported_where: Label of the samples whose loss is reported, (T, N), bool; without such
                a label all are.

        Raises:
            ValueError: If an option is not valid, or a target is no observation group of vectors.
            NotImplementedError: If the model runs step by step.
        """
        options, self._storage = parse_heads(algorithm.options.auxiliary), algorithm.storage
        check_targets(options, self._storage.observations[0])
        self._reported_where, self._options = reported_where, algorithm.options
        self._heads: dict[str, _Head] = {}
        self.optimizers: list[torch.optim.Optimizer] = []
        if not options:
            return
        networks = nn.ModuleList()
        parameter = next(model.parameters())
        num_inputs = latent_width(model, self._storage)
        with torch.random.fork_rng(devices=[]):
            for name, head in options.items():
                width = self._storage.observations[head.target].shape[-1]
                network = build_head(num_inputs, head.hidden_dims, width).to(parameter)
                loss: Any = head.loss
                if isinstance(loss, str) and loss in HEAD_LOSSES:
                    loss = HEAD_LOSSES[loss]
                else:
                    option = f"auxiliary.{name}.loss"
                    loss = own_loss(option, loss, HEAD_LOSSES, width, parameter)
                self._heads[name] = _Head(head, network, loss)
                networks.append(network)
        own: Any = type(algorithm.optimizer)
        self.modules = [networks]
        self.optimizers = [own(networks.parameters(), lr=algorithm.optimizer.defaults["lr"])]
        use_fused_kernels(self.optimizers[0])
        self.reported = tuple(PREFIX + name for name in self._heads)

    @property
    def networks(self) -> dict[str, nn.Module]:
        """The heads' networks by the names of their losses."""
        return {PREFIX + name: head.network for name, head in self._heads.items()}

    def observed_groups(self) -> set[str]:
        """Return the observation groups that are targets."""
        return {head.options.target for head in self._heads.values()}

    def labels(self) -> dict[str, torch.Tensor]:
        """Return the targets in the stored rollout, (T, N, D) each."""
        stored, heads = self._storage.observations, self._heads.items()
        return {PREFIX + name: stored[head.options.target].detach() for name, head in heads}

    def outputs(self, latent: torch.Tensor) -> Outputs:
        """Return the heads' predictions from latents, shape (rows, H): shape (rows, D) each."""
        return tuple(
            head.network(latent if head.options.reaches_model else latent.detach())
            for head in self._heads.values()
        )

    def wrap(self, loss: Loss) -> Loss:
        """Return a loss plus those of the heads, whose outputs follow the model's."""
        if not self._heads:
            return loss
        num_heads, where = len(self._heads), self._reported_where

        def both(outputs: Outputs, labels: Labels) -> SampleLosses:
            of_model = loss(outputs[:-num_heads], labels)
            trained, reported = of_model.trained, dict(of_model.reported)
            for (name, head), output in zip(self._heads.items(), outputs[-num_heads:], strict=True):
                per_sample = head.loss(output, labels[PREFIX + name].to(output.dtype))
                if head.options.coef > 0:
                    trained = trained + head.options.coef * per_sample
                else:  # without effect even if its target is NaN, which would undo the update
                    per_sample = torch.nan_to_num(per_sample.detach())
                if where is not None and where in labels:
                    per_sample = torch.where(labels[where], per_sample, 0.0)
                reported[PREFIX + name] = per_sample
            return replace(of_model, trained=trained, reported=reported)

        return both

    def step(self, rate: torch.Tensor) -> None:
        """Clip the gradient of all heads, and step once at the algorithm's learning rate."""
        for optimizer in self.optimizers:
            nn.utils.clip_grad_norm_(self.parameters, self._options.max_grad_norm or math.inf)
            step_at(optimizer, rate)

    def broadcast(self) -> None:
        """Copy the first process's parameters to all processes."""
        for parameter in self.parameters:
            distributed.broadcast(parameter.data, src=0)

    def state_dict(self) -> dict[str, Any]:
        """Return a checkpoint's entry of the heads; empty without heads."""
        if not self._heads:
            return {}
        heads = {name: head.saved() for name, head in self._heads.items()}
        return {"heads": heads, "optimizer_state_dict": self.optimizers[0].state_dict()}

    def check(self, saved: Mapping[str, Any]) -> None:
        """Check that the heads of a checkpoint fit; nothing is changed.

        Args:
            saved: The result of ``state_dict``, or nothing.

        Raises:
            ValueError: If a head of the same name has another target, loss or layers, or an option
                that is gone.
        """
        heads = saved.get("heads", {})
        for name in self._heads.keys() & heads.keys():
            for option in ("columns", "delay"):  # of earlier versions
                if heads[name].get(option):
                    raise ValueError(
                        f"auxiliary.{name} has {option} {heads[name][option]} in the checkpoint, an"
                        f" option that is gone: {GONE[option]} Give the head another name to begin"
                        " anew."
                    )
            ours, theirs = (
                {**head, "shapes": [tuple(each.shape) for each in head["state_dict"].values()]}
                for head in (self._heads[name].saved(), heads[name])
            )
            for option in ours:
                if option != "state_dict" and theirs[option] != ours[option]:
                    raise ValueError(
                        f"auxiliary.{name}.{option} is {ours[option]!r}, expected"
                        f" {theirs[option]!r} as in the checkpoint: keep it, or give the head"
                        " another name to begin anew."
                    )

    def load_state_dict(self, saved: Mapping[str, Any], *, with_optimizer: bool) -> None:
        """Load the heads of a checkpoint; heads that it lacks start anew.

        Args:
            saved: The result of ``state_dict``, checked; or nothing.
            with_optimizer: Whether to load their optimiser, too, if all heads are the same.
        """
        heads = saved.get("heads", {})
        for name, head in self._heads.items():
            if name in heads:
                head.network.load_state_dict(heads[name]["state_dict"])
        if with_optimizer and self._heads and list(heads) == list(self._heads):
            self.optimizers[0].load_state_dict(saved["optimizer_state_dict"])
        fresh = [name for name in self._heads if name not in heads]
        left = [name for name in heads if name not in self._heads]
        for names, what in (
            (fresh, "are not in the checkpoint and begin anew"),
            (left, "of the checkpoint are not in the option auxiliary and are left out"),
        ):
            if names:
                warnings.warn(f"Auxiliary heads: {names} {what}.", stacklevel=3)

"""Auxiliary heads: networks that read a model's latent and are trained beside it.

::

    observations -> encoder, memory -> latent -+-> the model's own MLP -> the algorithm's loss
                                               |                               + sum of coef * loss
                                               +-> head "velocity" -----------> loss of the head

The model and its optimiser know nothing of them: heads have an optimiser of their own, of the same
class and learning rate, so that a model's checkpoint is the same with and without heads.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from rsl_rl.storage import RolloutStorage
from torch import distributed, nn

from rsl_tbptt.algorithms.auxiliary.networks import build_head, latent_width, resolve_loss
from rsl_tbptt.algorithms.auxiliary.options import PREFIX, HeadOptions, PerSample
from rsl_tbptt.algorithms.auxiliary.targets import Targets, counts_of
from rsl_tbptt.algorithms.update.optimizers import step_at, use_fused_kernels
from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.core.accumulate import Loss, Outputs, SampleLosses
from rsl_tbptt.core.rollout import Labels


@dataclass(frozen=True)
class _Head:
    options: HeadOptions
    network: nn.Module
    loss: PerSample


class AuxiliaryHeads:
    """The heads of a model; without any, nothing here has an effect."""

    def __init__(
        self,
        options: Mapping[str, HeadOptions],
        model: MLPModel,
        storage: RolloutStorage,
        optimizer: torch.optim.Optimizer,
        *,
        layers: Mapping[str, torch.Tensor] | None = None,
        reported_where: str | None = None,
    ) -> None:
        """Build the heads and what trains them. No random number is drawn from outside.

        Args:
            options: Of each head, by its name.
            model: The model whose latent they read.
            storage: Where rollouts are stored.
            optimizer: The model's, whose class and learning rate theirs has.
            layers: Outputs of the teacher's layers in the rollout, by name. Shape: (T, N, D) each.
                None without a teacher.
            reported_where: Label of the samples whose loss is reported, (T, N), bool; where there
                is none, all are.

        Raises:
            ValueError: If a target is unknown, or too narrow or too late for what is asked of it.
            NotImplementedError: If the model has to be run step by step.
        """
        self._targets = Targets(options, storage, layers)
        self._reported_where = reported_where
        self._heads: dict[str, _Head] = {}
        self.module = nn.ModuleList()
        """All of them, in order."""
        self.optimizers: list[torch.optim.Optimizer] = []
        """Theirs, if there are any."""
        if not options:
            return
        parameter = next(model.parameters())
        num_inputs = latent_width(model, storage)
        with torch.random.fork_rng(devices=[]):
            for name, head in options.items():
                width = self._targets.widths[name]
                network = build_head(num_inputs, head.hidden_dims, width).to(parameter)
                self._heads[name] = _Head(head, network, resolve_loss(name, head, width, parameter))
                self.module.append(network)
        own: Any = type(optimizer)
        self.optimizers = [own(self.module.parameters(), lr=optimizer.defaults["lr"])]
        use_fused_kernels(self.optimizers[0])

    @property
    def names(self) -> tuple[str, ...]:
        """Names of what is reported, in order."""
        return tuple(PREFIX + name for name in self._heads)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """What is trained."""
        return list(self.module.parameters())

    def observed_groups(self) -> set[str]:
        """Return the observation groups that are targets."""
        return self._targets.observed_groups()

    def outputs(self, latent: torch.Tensor) -> Outputs:
        """Return what the heads say of latents, shape (rows, H): of shape (rows, D) each."""
        return tuple(
            head.network(latent if head.options.reaches_model else latent.detach())
            for head in self._heads.values()
        )

    def targets(self, dones: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return labels with the targets; see :meth:`Targets.labels`. ``dones``: (T, N), bool."""
        return self._targets.labels(dones)

    def beside(self, loss: Loss) -> Loss:
        """Return a loss with those of the heads, whose outputs stand behind the model's."""
        if not self._heads:
            return loss
        num_heads, where = len(self._heads), self._reported_where

        def both(outputs: Outputs, labels: Labels) -> SampleLosses:
            of_model = loss(outputs[:-num_heads], labels)
            trained, reported = of_model.trained, dict(of_model.reported)
            for (name, head), output in zip(self._heads.items(), outputs[-num_heads:], strict=True):
                per_sample = head.loss(output, labels[PREFIX + name].to(output.dtype))
                if counts_of(name) in labels:
                    per_sample = torch.where(labels[counts_of(name)], per_sample, 0.0)
                trained = trained + head.options.coef * per_sample
                if where is not None and where in labels:
                    per_sample = torch.where(labels[where], per_sample, 0.0)
                reported[PREFIX + name] = per_sample
            return replace(of_model, trained=trained, reported=reported)

        return both

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self, rate: float | torch.Tensor, max_grad_norm: float | None) -> None:
        """Clip the gradient of all heads and step once.

        Args:
            rate: Learning rate, or one that only the device knows, shape ().
            max_grad_norm: Threshold of the norm; None does not clip.
        """
        for optimizer in self.optimizers:
            nn.utils.clip_grad_norm_(self.module.parameters(), max_grad_norm or math.inf)
            if isinstance(rate, torch.Tensor):
                step_at(optimizer, rate)
                continue
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()

    def broadcast(self) -> None:
        """Let all processes begin with the first one's parameters."""
        for parameter in self.module.parameters():
            distributed.broadcast(parameter.data, src=0)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint holds of the heads; empty without any."""
        if not self._heads:
            return {}
        heads = {
            name: {**head.options.meaning(), "state_dict": head.network.state_dict()}
            for name, head in self._heads.items()
        }
        return {"heads": heads, "optimizer_state_dict": self.optimizers[0].state_dict()}

    def check(self, saved: Mapping[str, Any]) -> None:
        """Check that the heads of a checkpoint fit, before anything is changed.

        Args:
            saved: What ``state_dict`` returned, or nothing.

        Raises:
            ValueError: If one of the same name predicts something else or has other layers.
        """
        heads = saved.get("heads", {})
        for name in self._heads.keys() & heads.keys():
            ours, theirs = self._heads[name], heads[name]
            for option, value in ours.options.meaning().items():
                if theirs[option] != value:
                    raise ValueError(
                        f"auxiliary.{name}.{option} is {value!r}, expected {theirs[option]!r} as in"
                        " the checkpoint: keep it, or give the head another name to begin anew."
                    )
            for key, tensor in ours.network.state_dict().items():
                shape = tuple(theirs["state_dict"][key].shape)
                if shape != tuple(tensor.shape):
                    raise ValueError(
                        f"'{key}' of auxiliary.{name} has shape {tuple(tensor.shape)}, expected"
                        f" {shape} as in the checkpoint: its target or the model's latent has"
                        " another width. Give the head another name to begin anew."
                    )

    def load_state_dict(self, saved: Mapping[str, Any], *, with_optimizer: bool) -> None:
        """Go on with the heads of a checkpoint; those that it lacks begin anew.

        Args:
            saved: What ``state_dict`` returned, checked; or nothing.
            with_optimizer: Whether their optimiser goes on as well, where all heads are the same.
        """
        heads = saved.get("heads", {})
        for name, head in self._heads.items():
            if name in heads:
                head.network.load_state_dict(heads[name]["state_dict"])
        if with_optimizer and self._heads and list(heads) == list(self._heads):
            self.optimizers[0].load_state_dict(saved["optimizer_state_dict"])
        fresh = [name for name in self._heads if name not in heads]
        left = [name for name in heads if name not in self._heads]
        said = [f"{fresh} are not in the checkpoint and begin anew"] if fresh else []
        if left:
            said += [f"{left} of the checkpoint are not in the option auxiliary and are left out"]
        if said:
            warnings.warn(f"Auxiliary heads: {', '.join(said)}.", stacklevel=3)

"""Outputs of named layers of the teacher, recorded while it labels the rollout."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from rsl_rl.storage import RolloutStorage
from torch import nn

from rsl_tbptt.algorithms.auxiliary.options import TEACHER, HeadOptions
from rsl_tbptt.algorithms.replay import observed_groups
from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.models.selected_teachers import SelectedTeachers


class TeacherLayers:
    """What some layers of the teacher gave at every step of the rollout."""

    def __init__(
        self,
        teacher: MLPModel,
        storage: RolloutStorage,
        heads: Mapping[str, HeadOptions],
        *,
        in_batches: bool,
    ) -> None:
        """Hook into the layers that are targets.

        Args:
            teacher: The teacher, before it is compiled.
            storage: Where rollouts are stored.
            heads: Options of the auxiliary heads by name.
            in_batches: Whether whole rollouts are labelled at once.

        Raises:
            ValueError: If a layer is unknown, or does not give one vector per environment, or if
                teachers are several.
        """
        self.outputs: dict[str, torch.Tensor] = {}
        """By layer. Shape: (T, N, D) each."""
        self._seen: dict[str, torch.Tensor] = {}
        asked = {name: head.teacher_layer for name, head in heads.items() if head.teacher_layer}
        if not asked:
            return
        if isinstance(teacher, SelectedTeachers):
            name, layer = next(iter(asked.items()))
            raise ValueError(
                f"auxiliary.{name}.target is '{TEACHER}{layer}', expected no layer of a teacher"
                " where there are several: each sees only samples of its own, and their layers"
                " differ. Predict an observation group."
            )
        shapes = _shapes_of_layers(teacher, storage)
        for name, layer in asked.items():
            if layer not in shapes or (in_batches and layer.startswith("cnns.")):
                raise ValueError(
                    f"auxiliary.{name}.target is '{TEACHER}{layer}', expected a layer of the"
                    " teacher that gives one vector per environment, once, one of"
                    f" {list(shapes)}; none of a CNN with batch_teacher_labels."
                )
        sizes = (storage.num_transitions_per_env, storage.num_envs)
        modules, parameter = dict(teacher.named_modules()), next(teacher.parameters())
        for layer in dict.fromkeys(asked.values()):
            self.outputs[layer] = parameter.new_zeros(*sizes, shapes[layer])
            modules[layer].register_forward_hook(partial(_see, self._seen, layer))

    def keep(self, first_step: int) -> None:
        """Store what the layers gave last, of all environments and the steps from one on."""
        for layer, kept in self.outputs.items():
            rows = self._seen.pop(layer).detach().view(-1, *kept.shape[1:])
            kept[first_step : first_step + len(rows)].copy_(rows)


def _see(seen: dict[str, torch.Tensor], layer: str, _: nn.Module, __: Any, output: Any) -> None:
    seen[layer] = output[0] if isinstance(output, tuple) else output


def _see_all(seen: dict[str, list[Any]], layer: str, _: nn.Module, __: Any, output: Any) -> None:
    seen.setdefault(layer, []).append(output[0] if isinstance(output, tuple) else output)


@torch.no_grad()
def _shapes_of_layers(teacher: MLPModel, storage: RolloutStorage) -> dict[str, int]:
    """Return how long a vector each layer gives per environment, where it gives one.

    One that runs several times in a pass, as rsl_rl's MLP has one activation for all its hidden
    layers, gives none that its name would tell from the others.

    Raises:
        ValueError: If the storage lacks what the teacher observes.
    """
    obs, seen = storage.observations[0], dict[str, list[Any]]()
    stored = list(obs.keys())
    for group in observed_groups(teacher, obs):
        if group not in stored:
            raise ValueError(
                f"auxiliary asks for a layer of the teacher, whose observation group '{group}' the"
                f" storage lacks, expected it among {stored}."
            )
    layers = {name: module for name, module in teacher.named_modules() if name}
    with _as_it_is(teacher), _hooked(layers, lambda layer: partial(_see_all, seen, layer)):
        teacher(obs)
    num_envs = storage.num_envs
    once = {layer: seen[layer][0] for layer in layers if len(seen.get(layer, ())) == 1}
    return {
        layer: output.shape[-1]
        for layer, output in once.items()
        if isinstance(output, torch.Tensor)
        and output.dim() > 1
        and output.numel() == num_envs * output.shape[-1]
    }


@contextlib.contextmanager
def _as_it_is(teacher: MLPModel) -> Iterator[None]:
    """Leave a teacher's mode and state as they are."""
    training, state = teacher.training, teacher.get_hidden_state()
    teacher.eval()  # running statistics are for data
    try:
        yield
    finally:
        teacher.train(training)
        teacher.reset(hidden_state=state)


@contextlib.contextmanager
def _hooked(
    layers: Mapping[str, nn.Module], hook_of: Callable[[str], Callable[..., None]]
) -> Iterator[None]:
    handles = [module.register_forward_hook(hook_of(name)) for name, module in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()

"""Recurrent models as ONNX and TorchScript run them: one step of one robot, groups by name.

Annotations are no strings here, which ``torch.jit.script`` does not read.
"""

import copy
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.core.hidden_state import as_tensors, from_tensors

if TYPE_CHECKING:
    from rsl_tbptt.models.recurrent import RecurrentModel


class OnnxModel(nn.Module):
    """One step of one robot: observation groups and state to actions and the state after."""

    def __init__(self, model: "RecurrentModel") -> None:
        """Copy the model.

        Args:
            model: The model.
        """
        super().__init__()
        self.model = _copied(model)
        self.latent = nn.Identity()
        """What passes through it is what the model's head and auxiliary heads read."""
        head = self.model.head
        vars(self.model)["head"] = lambda latent: head(self.latent(latent))
        self._obs = {
            group: torch.zeros(1, *shape, dtype=model.group_dtypes[group])
            for group, shape in model.group_shapes.items()
        }
        states = ("h", "c") if isinstance(model.cell, nn.LSTM) else ("h",)
        self.input_names = [*self._obs, *(f"{name}_in" for name in states)]
        self.output_names = ["actions", *(f"{name}_out" for name in states)]

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Take observation groups, (1, ...) each, and the state's tensors, (L, 1, H) each."""
        obs = TensorDict(dict(zip(self._obs, inputs, strict=False)), batch_size=[1])
        self.model.reset(hidden_state=from_tensors(inputs[len(self._obs) :]))
        action = self.model(obs)
        state = as_tensors(self.model.get_hidden_state())
        self.model.reset()  # torch's exporter refuses a model that keeps what it was given
        return action, *state

    def get_dummy_inputs(self) -> tuple[torch.Tensor, ...]:
        """Return zeros of all inputs' shapes."""
        cell = self.model.cell
        states = [torch.zeros(cell.num_layers, 1, cell.hidden_size) for _ in self.output_names[1:]]
        return (*(torch.zeros_like(group) for group in self._obs.values()), *states)


class OnnxModelWithHeads(nn.Module):
    """A model for ONNX, of rsl_rl's or :class:`OnnxModel`, whose last outputs are its heads'."""

    def __init__(self, model: Any, heads: Mapping[str, nn.Module]) -> None:
        """Take the model, and the heads by the names of their outputs."""
        super().__init__()
        self.model, self.heads = model, nn.ModuleList(heads.values())
        self.get_dummy_inputs, self.input_names = model.get_dummy_inputs, model.input_names
        self.output_names = [*model.output_names, *heads]

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Take the model's inputs; return its outputs and those of the heads, (1, D) each."""
        latents: list[torch.Tensor] = []
        reader = getattr(self.model, "latent", None) or self.model.mlp
        hook = reader.register_forward_pre_hook(lambda _, args: latents.append(args[0]))
        outputs = self.model(*inputs)
        hook.remove()
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        of_model = (output for output in outputs if output is not None)  # of a GRU: no cell state
        return (*of_model, *(head(latents[0]) for head in self.heads))


def _copied(model: "RecurrentModel") -> "RecurrentModel":
    """Copy a model's layers, without its state; what else it holds may hang on a graph."""
    holders = [model] if model.distribution is None else [model, model.distribution]
    shared = {
        id(value): value
        for holder in holders
        for name, value in vars(holder).items()
        if name not in ("_parameters", "_buffers", "_modules")
    }
    return copy.deepcopy(model, {**shared, id(model.rnn.hidden_state): None})


class TorchScriptModel(nn.Module):
    """Actions of one robot, step by step; ``reset()`` where an episode starts.

    A model's encoder may be any code, so a step is traced. What keeps the state is scripted, as
    rsl_rl's export does.
    """

    state: torch.Tensor

    def __init__(self, model: "RecurrentModel") -> None:
        """Trace a step.

        Args:
            model: The model.
        """
        super().__init__()
        step = _Step(model).cpu().eval()
        example = step.example()
        with warnings.catch_warnings():  # torch's layers check their arguments' shapes
            warnings.simplefilter("ignore", torch.jit.TracerWarning)
            self.step: Any = torch.jit.trace(step, example)
        self.register_buffer("state", example[1])

    def forward(self, obs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the action, (1, A), for observation groups, (1, ...) each."""
        action, self.state = self.step(obs, self.state)
        return action

    @torch.jit.export
    def reset(self) -> None:
        """Clear the state."""
        self.state = torch.zeros_like(self.state)


class _Step(nn.Module):
    """A step with the state's tensors as one, (1 or 2, L, 1, H)."""

    def __init__(self, model: "RecurrentModel") -> None:
        super().__init__()
        self._groups = list(model.group_shapes)
        self._step = OnnxModel(model)

    def example(self) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Return observation groups and a state, all zero."""
        inputs, num_groups = self._step.get_dummy_inputs(), len(self._groups)
        obs = dict(zip(self._groups, inputs[:num_groups], strict=True))
        return obs, torch.stack(inputs[num_groups:])

    def forward(
        self, obs: dict[str, torch.Tensor], state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        action, *after = self._step(*(obs[name] for name in self._groups), *state.unbind(0))
        return action, torch.stack(after)

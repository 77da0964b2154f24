"""A recurrent model as ONNX sees it: every input by name, the memory's state in and out."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import nn

from rsl_tbptt.core.hidden_state import as_tensors, from_tensors

if TYPE_CHECKING:
    from rsl_tbptt.models.recurrent import RecurrentModel

STATES = ("h", "c")
"""Names of the state's tensors, of which a GRU has the first."""


class OnnxModel(nn.Module):
    """One step of one robot: observation groups and state to actions and the state after."""

    def __init__(self, model: RecurrentModel) -> None:
        """Copy the model.

        Args:
            model: The model.
        """
        super().__init__()
        distribution = model.distribution
        self.model = _copied(model)
        self.action = (
            nn.Identity() if distribution is None else distribution.as_deterministic_output_module()
        )
        self._obs = {
            group: torch.zeros(1, *shape, dtype=model.group_dtypes[group])
            for group, shape in model.group_shapes.items()
        }

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Take observation groups, (1, ...) each, and the state's tensors, (L, 1, H) each."""
        obs = dict(zip(self._obs, inputs, strict=False))
        state = from_tensors(list(inputs[len(obs) :]))
        outputs, state = self.model.cell(self.model.features(obs).unsqueeze(0), state)
        return self.action(self.model.head(outputs.squeeze(0))), *as_tensors(state)

    def get_dummy_inputs(self) -> tuple[torch.Tensor, ...]:
        """Return zeros of all inputs' shapes."""
        cell = self.model.cell
        num_states = 2 if isinstance(cell, nn.LSTM) else 1
        states = [torch.zeros(cell.num_layers, 1, cell.hidden_size) for _ in range(num_states)]
        return (*(torch.zeros_like(group) for group in self._obs.values()), *states)

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs: observation groups, ``h_in`` and for an LSTM ``c_in``."""
        return [*self._obs, *(f"{name}_in" for name in self._states)]

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs: ``actions``, ``h_out`` and for an LSTM ``c_out``."""
        return ["actions", *(f"{name}_out" for name in self._states)]

    @property
    def _states(self) -> tuple[str, ...]:
        return STATES[: len(self.get_dummy_inputs()) - len(self._obs)]


def _copied(model: RecurrentModel) -> RecurrentModel:
    """Copy a model's layers, without its state and distribution, which hang on a graph."""
    copied = copy.copy(model)
    layers = {name: layer for name, layer in model.named_children() if name != "distribution"}
    state, model.rnn.hidden_state = model.rnn.hidden_state, None
    try:
        vars(copied)["_modules"] = copy.deepcopy(layers)
    finally:
        model.rnn.hidden_state = state
    return copied

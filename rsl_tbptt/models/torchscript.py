"""A recurrent model as TorchScript: one robot, observation groups by name, the state inside.

Annotations are no strings here, which ``torch.jit.script`` does not read.
"""

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rsl_tbptt.models.onnx import OnnxModel

if TYPE_CHECKING:
    from rsl_tbptt.models.recurrent import RecurrentModel


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

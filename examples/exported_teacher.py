"""Teachers from exported policies: copy this file next to your task, and name a class of it.

For example ``class_name="exported_teacher:TorchScript"`` with ``file="teacher.pt"`` and
``groups=["policy"]``, the observation groups that the policy was trained with, in their order. The
file normalises them itself.
"""

from typing import Any

import onnx
import onnxruntime
import torch


class TorchScript:
    """A policy from a file of TorchScript, which is code: load only files that you trust."""

    def __init__(self, env: Any, file: str, groups: list[str]) -> None:
        """Load it onto the environment's device."""
        self.network, self.groups = torch.jit.load(file, map_location=env.device).eval(), groups

    @torch.no_grad()
    def __call__(self, obs: Any) -> torch.Tensor:
        """Return actions, (N, A)."""
        return self.network(torch.cat([obs[group] for group in self.groups], dim=-1))


class Onnx:
    """A policy from a file of ONNX, on the CPU."""

    def __init__(self, file: str, groups: list[str]) -> None:
        """Load it; a file for one robot takes any number."""
        model, self.groups = onnx.load(file), groups
        for tensor in (*model.graph.input, *model.graph.output):
            tensor.type.tensor_type.shape.dim[0].dim_param = "envs"
        self.session = onnxruntime.InferenceSession(model.SerializeToString())
        self.input = self.session.get_inputs()[0].name

    def __call__(self, obs: Any) -> torch.Tensor:
        """Return actions, (N, A)."""
        rows = torch.cat([obs[group] for group in self.groups], dim=-1)
        return torch.from_numpy(self.session.run(None, {self.input: rows.cpu().numpy()})[0])

"""Write a bundle's folders for programs that run policies on robots: docs/howto/runtimes.md."""

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import onnx
import torch
from torch import nn

from rsl_tbptt.deploy import METADATA, ONNX
from rsl_tbptt.files import write_json
from rsl_tbptt.tools.robot import runtime_configs as configs
from rsl_tbptt.tools.robot.verify import torchscript

UNITREE = Path(__file__).with_name("unitree.h")
"""Template of the class that Unitree's programs call."""


@dataclass(frozen=True)
class Exported:
    """An exported policy, from which targets are written."""

    model: onnx.ModelProto
    """One step with a single input ``obs``."""
    metadata: configs.Metadata
    """Content of a ``policy.json`` for ``model``."""
    torchscript: Path
    """The bundle's TorchScript file, which newer releases of torch may not write."""


class InMotorOrder(nn.Module):
    """A policy that takes rl_sar's observations and returns actions in the order of motors.

    rl_sar's history begins with zeros. Training's repeats the first observation, and so does this.
    rl_sar loads the file anew where an episode starts.
    """

    order: torch.Tensor
    action_order: torch.Tensor

    def __init__(self, policy: Any, order: torch.Tensor, action_order: torch.Tensor) -> None:
        """Keep the orders.

        Args:
            policy: The policy in TorchScript.
            order: Place in rl_sar's observations of each of the policy's, at the first steps of an
                episode; the last row holds from then on. Shape: (H, D), H steps of history.
            action_order: Place in the policy's actions of each motor's. Shape: (A,).
        """
        super().__init__()
        self.policy = policy
        self.register_buffer("order", order)
        self.register_buffer("action_order", action_order)
        self.step: int = 0

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Return actions, (1, A), for rl_sar's observations, (1, any)."""
        order = self.order[self.step]
        self.step = min(self.step + 1, self.order.size(0) - 1)
        return self.policy(obs.index_select(1, order)).index_select(1, self.action_order)

    @torch.jit.export
    def reset(self) -> None:
        """Start an episode."""
        self.step = 0
        self.policy.reset()


def write_rl_sar(folder: Path, exported: Exported) -> None:
    """Write TorchScript and config for rl_sar, in the folders that it looks for.

    Raises:
        ValueError: If the robot's name is no name of a folder, or there is no TorchScript.
    """
    metadata = exported.metadata
    robot = metadata["robot"].get("name", "ROBOT")
    if not re.fullmatch(r"\w[\w.-]*", str(robot), re.ASCII):
        raise ValueError(
            f"The robot's name is {robot!r}, expected one such as 'go2', of letters, digits, '_',"
            " '-' and '.', as rl_sar's folder has: describe_robot() returns it."
        )
    if not exported.torchscript.exists():
        raise ValueError(
            "rl_sar needs TorchScript, which this torch cannot write: export with an earlier one."
        )
    name = f"{robot}/rsl_tbptt"
    path = folder / "policy" / name / "config.yaml"
    configs.write_yaml(path, metadata, configs.rl_sar_config(metadata), "model_name", name)
    places = (configs.observation_order(metadata), configs.motors(metadata)[1])
    order, action_order = map(torch.from_numpy, places)
    with torchscript():
        policy = InMotorOrder(torch.jit.load(str(exported.torchscript)), order, action_order)
        torch.jit.script(policy).save(str(path.with_name("policy.pt")))


def write_unitree(folder: Path, exported: Exported) -> None:
    """Write ONNX, config, and the class that unitree_rl_lab and unitree_rl_mjlab call."""
    metadata = exported.metadata
    path = folder / "params" / "deploy.yaml"
    configs.write_yaml(path, metadata, configs.unitree_config(metadata), "joint_ids_map")
    (folder / "exported").mkdir(exist_ok=True)
    onnx.save(exported.model, folder / "exported" / ONNX)
    write_json(folder / "exported" / METADATA, metadata)
    text = Template(UNITREE.read_text(encoding="utf-8")).substitute(_class_in_cpp(metadata))
    (folder / "policy_unitree.h").write_text(text, encoding="utf-8")


def _class_in_cpp(metadata: configs.Metadata) -> dict[str, Any]:
    """Return what the template of Unitree's class is filled with.

    The states and the heads' predictions lie one after another in one array of numbers.
    """
    names, num_states = [*metadata["outputs"]], len(metadata["state_names"])
    widths = [math.prod(metadata["outputs"][name]["shape"]) for name in names[1:]]
    *starts, end = itertools.accumulate(widths, initial=0)
    before = [f"state_.data() + {start}" for start in starts[:num_states]]
    after = [f"after.data() + {start}" for start in starts]
    return {
        "checkpoint": metadata["checkpoint"].replace("*/", "* /"),
        "parameters": ", ".join(["const float *"] * (1 + num_states) + ["float *"] * len(names)),
        "arguments": ", ".join(["obs.data()", *before, "actions.data()", *after]),
        "num_obs": metadata["inputs"]["obs"]["shape"][0],
        "num_actions": metadata["outputs"]["actions"]["shape"][0],
        "num_numbers": end,
    }


TARGETS = {"rl_sar": write_rl_sar, "unitree": write_unitree}
"""Functions that write a target's folder, by the name of both."""


def check_targets(names: Sequence[str]) -> None:
    """Check the names of targets.

    Raises:
        ValueError: If one is unknown.
    """
    if unknown := [name for name in names if name not in TARGETS]:
        raise ValueError(
            f"--target is {unknown[0]!r}, expected one of {[*TARGETS]}: any other program feeds the"
            " states of policy.onnx back, or compiles it as C; see docs/howto/runtimes.md."
        )

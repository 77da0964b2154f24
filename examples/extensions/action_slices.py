"""A loss of its own for some actions, such as a gripper's: copy this file next to your task.

``extensions=[{"class_name": "action_slices:ActionSlice", "columns": [7], "loss": "bce"}]``
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch

from rsl_tbptt.core import losses
from rsl_tbptt.extensions import Extension, OptionGroup, Rule, are_integers, positive

LOSSES = {"mse": losses.mse, "huber": losses.huber, "bce": losses.bce_of_signs}
COLUMNS = Rule(lambda value: are_integers(value, 0), "a list of columns of the action, such as [7]")


class ActionSlice(Extension):
    """Adds a loss between some columns of the student's and the teacher's actions."""

    @dataclass(kw_only=True)
    class Options(OptionGroup):
        """What is compared, and how."""

        columns: Annotated[list[int], COLUMNS]
        """The columns, from 0 on."""

        loss: Literal["mse", "huber", "bce"] = "mse"
        """``"bce"`` is of signs: an action is the logit that the teacher's is positive."""

        coef: Annotated[float, positive(0)] = 1.0
        """Weight of the loss."""

    def __init__(self, options: Options, algorithm: Any) -> None:
        """Place the columns on the device, where recorded steps read them."""
        super().__init__(options, algorithm)
        self.columns = torch.tensor(options.columns, device=algorithm.storage.dones.device)

    def losses(self, policy: Any, samples: Any) -> Iterator[Any]:
        """Yield the loss. In PPO the teacher's action is there with ``teacher_loss="mse"``."""
        (actions,) = samples["teacher"] if "teacher" in samples else (samples["actions"],)
        pair = (values.index_select(-1, self.columns) for values in (policy.mean, actions))
        yield "slice", self.options.coef, LOSSES[self.options.loss](*pair)

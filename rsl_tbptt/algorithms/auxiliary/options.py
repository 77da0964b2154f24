"""Auxiliary heads as options: what each predicts, by which loss, and with what weight."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch

from rsl_tbptt.algorithms.update.checks import Count, Positive, check_value
from rsl_tbptt.core import losses

PREFIX = "auxiliary/"
"""Stands before a head's name in metrics, labels and the outputs of an ONNX file."""

TEACHER = "teacher:"
"""Stands before the name of a teacher's layer where that is a target."""

PerSample = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Maps predictions and targets, (..., D) each, to one loss per sample, (...)."""

HEAD_LOSSES: dict[str, PerSample] = {"mse": losses.mse, "huber": losses.huber, "bce": losses.bce}


def _flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}, expected True or False.")


def _counts(name: str, value: Any) -> None:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{name} is {value!r}, expected a list of layer sizes, such as [64].")
    for each in value:
        Count()(name, each)


def _indices(name: str, value: Any) -> None:
    rule = "expected a list of different columns from 0 on, or None for all."
    if not isinstance(value, list | tuple) or not value or len(set(value)) < len(value):
        raise ValueError(f"{name} is {value!r}, {rule}")
    if not all(isinstance(each, int) and each >= 0 for each in value):
        raise ValueError(f"{name} is {value!r}, {rule}")


def _known_loss(name: str, value: Any) -> None:
    if callable(value) or (isinstance(value, str) and (value in HEAD_LOSSES or ":" in value)):
        return
    raise ValueError(
        f"{name} is {value!r}, expected one of {list(HEAD_LOSSES)} or a qualified name such as"
        " 'my_package.losses:my_loss'."
    )


@dataclass(frozen=True, kw_only=True)
class HeadOptions:
    """What a head predicts of the model's latent, at each step."""

    target: str
    """An observation group, or ``"teacher:LAYER"``, the output of a named layer of the teacher."""

    columns: Annotated[tuple[int, ...] | None, _indices] = None
    """Columns of the target; None takes all."""

    loss: Annotated[str | Callable[..., Any], _known_loss] = "mse"
    """``"mse"``, ``"huber"``, ``"bce"`` (of logits), or the name of an element-wise function."""

    coef: Annotated[float, Positive(or_zero=True)] = 1.0
    """What its loss counts beside the algorithm's. With 0 the head learns nothing."""

    hidden_dims: Annotated[tuple[int, ...], _counts] = ()
    """Hidden layers, with ELU after each; none makes the head linear."""

    delay: Annotated[int, Count(or_zero=True)] = 0
    """Steps by which the target is later than the latent."""

    detach: Annotated[bool, _flag] = False
    """Whether its gradient stops at the latent, so that the model does not learn from it."""

    @property
    def teacher_layer(self) -> str | None:
        """The teacher's layer that is the target, None where that is an observation group."""
        return self.target.removeprefix(TEACHER) if self.target.startswith(TEACHER) else None

    @property
    def reaches_model(self) -> bool:
        """Whether the model learns from the head."""
        return self.coef > 0 and not self.detach

    def meaning(self) -> dict[str, Any]:
        """Return what a checkpoint says of the head, in plain values."""
        loss: Any = self.loss
        return {
            "target": self.target,
            "columns": None if self.columns is None else list(self.columns),
            "loss": loss if isinstance(loss, str) else f"{loss.__module__}:{loss.__qualname__}",
            "delay": self.delay,
            "hidden_dims": list(self.hidden_dims),
        }


def parse_heads(auxiliary: Mapping[str, Any] | None) -> dict[str, HeadOptions]:
    """Build the options of heads from what a config says.

    Args:
        auxiliary: Options of each head, by its name.

    Returns:
        The same, checked as far as they can be without models and rollouts.

    Raises:
        ValueError: If a name, an option or a value is not valid.
    """
    if auxiliary is None:
        return {}
    if not isinstance(auxiliary, Mapping):
        raise ValueError(
            f"auxiliary is {auxiliary!r}, expected options by head, such as"
            " {'velocity': {'target': 'privileged'}}."
        )
    return {name: _parse_head(name, options) for name, options in auxiliary.items()}


def _parse_head(name: Any, options: Any) -> HeadOptions:
    if not (isinstance(name, str) and name.isidentifier()):
        raise ValueError(
            f"auxiliary has a head {name!r}, expected a name of letters, digits and _: it names a"
            " metric and an output of the ONNX file."
        )
    if not isinstance(options, Mapping) or not isinstance(options.get("target"), str):
        raise ValueError(
            f"auxiliary.{name} is {options!r}, expected a dictionary with 'target', an observation"
            " group or 'teacher:LAYER'."
        )
    hints = typing.get_type_hints(HeadOptions, include_extras=True)
    known = [field.name for field in dataclasses.fields(HeadOptions)]
    for option, value in options.items():
        if option not in known:
            near = difflib.get_close_matches(str(option), known, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"known options are {known}."
            raise ValueError(f"Unknown option '{option}' of auxiliary.{name}: {hint}")
        check_value(f"auxiliary.{name}.{option}", value, hints[option])
    values: dict[str, Any] = {
        option: tuple(value) if isinstance(value, list) else value
        for option, value in options.items()
    }
    return HeadOptions(**values)


def check_heads(name: str, value: Any) -> None:
    """Check the option ``auxiliary``.

    Raises:
        ValueError: If it is not valid.
    """
    parse_heads(value)

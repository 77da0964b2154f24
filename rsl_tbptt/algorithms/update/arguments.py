"""What the constructors take, stated to type checkers and to ``help()`` without a second list."""

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec

P = ParamSpec("P")


@dataclass(kw_only=True)
class RunnerArguments:
    """What rsl_rl gives every algorithm beside models, storage and options."""

    device: str = "cpu"
    """Device of the update."""

    multi_gpu_cfg: dict[str, Any] | None = None
    """rsl_rl's description of the processes, or None for one process."""

    rnd_cfg: dict[str, Any] | None = None
    """rsl_rl's description of random network distillation, or None. None in distillation."""

    symmetry_cfg: dict[str, Any] | None = None
    """rsl_rl's description of symmetries, or None. None in distillation."""


def takes(
    arguments: Callable[P, object],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Declare that a constructor takes what a dataclass takes; it runs as it is written.

    Args:
        arguments: The dataclass. Its fields become the parameters, with types and defaults.

    Returns:
        A decorator of ``__init__``.
    """
    types = typing.get_type_hints(arguments)  # without the checks that the options' types carry
    parameters = [
        parameter.replace(annotation=types[name])
        for name, parameter in inspect.signature(arguments).parameters.items()
    ]
    self = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    signature = inspect.Signature([self, *parameters], return_annotation=None)

    def declare(constructor: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        vars(constructor)["__signature__"] = signature
        return constructor

    return declare

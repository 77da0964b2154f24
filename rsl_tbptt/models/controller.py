"""A controller as a teacher, without a network: a planner, demonstrations or a function."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.compat.versions import OWN_MODELS, resolve_callable
from rsl_tbptt.core.hidden_state import HiddenState


class Controller(nn.Module):
    """A controller behind rsl_rl's model interface; it has no parameters, whatever is inside.

    So no checkpoint is needed for it, and none contains it. It sees all environments at every step,
    and has ``reset`` if it has a state.
    """

    distribution = None
    """Controllers have actions alone."""

    def __init__(self, controller: Callable[..., Any], num_actions: int) -> None:
        """Take the controller.

        Args:
            controller: Maps observations, batch size (N,), to actions, (N, A), a tensor or numpy's
                array. It may have ``reset(dones)``, which is told whose episode ended, (N,), bool.
            num_actions: Number of actions A.

        Raises:
            ValueError: If it cannot be called.
        """
        super().__init__()
        function = controller.func if isinstance(controller, partial) else controller
        self.name = getattr(function, "__qualname__", type(function).__name__)
        """Name of the class or function, for messages."""
        if not callable(controller):
            raise ValueError(
                f"The teacher {self.name} cannot be called, expected a controller: __call__ maps"
                " observations to actions."
            )
        self._controller = (controller,)  # a tuple, so that its networks are not submodules
        self._num_actions, self._tried = num_actions, False

    def extra_repr(self) -> str:
        """Return the name that torch prints."""
        return self.name

    @torch.compiler.disable
    def forward(
        self,
        obs: TensorDict,
        masks: None = None,
        hidden_state: None = None,
        stochastic_output: bool = False,
    ) -> torch.Tensor:
        """Return the controller's actions.

        Args:
            obs: All observation groups, batch size (N,).
            masks: Unused: a teacher is not trained.
            hidden_state: Unused.
            stochastic_output: Unused.

        Returns:
            Its actions, which it may use again for the next ones. Shape: (N, A).

        Raises:
            ValueError: If actions have another shape, or the controller writes into observations.
        """
        (controller,) = self._controller
        check = unwritten(f"The teacher {self.name}", dict(obs.items()))
        with contextlib.nullcontext() if self._tried else check:
            actions = torch.as_tensor(controller(obs))
        self._tried = True
        if actions.shape != (len(obs), self._num_actions):
            raise ValueError(
                f"The teacher {self.name} returned actions of shape {tuple(actions.shape)},"
                f" expected {(len(obs), self._num_actions)}: one row per environment."
            )
        device = next(values.device for values in obs.values() if isinstance(values, torch.Tensor))
        return actions.to(device, torch.get_default_dtype())

    def reset(self, dones: torch.Tensor | None = None, hidden_state: HiddenState = None) -> None:
        """Tell the controller which episodes ended, (N,); without ``dones`` nothing happens."""
        reset = getattr(self._controller[0], "reset", None)
        if reset is not None and dones is not None:
            reset(dones.bool())

    def get_hidden_state(self) -> HiddenState:
        """Return None: its state is its own."""
        return None

    def detach_hidden_state(self, dones: torch.Tensor | None = None) -> None:
        """Do nothing, since no gradient reaches a teacher. ``dones``: (N,)."""

    def update_normalization(self, obs: TensorDict) -> None:
        """Do nothing: it has no statistics."""


def is_model(model: Any) -> bool:
    """Return whether a model, or its class, follows rsl_rl's interface; others are controllers."""
    return hasattr(model, "get_hidden_state")


def has_parameters(model: nn.Module) -> bool:
    """Return whether a teacher's parameters have to come from a checkpoint."""
    return next(model.parameters(), None) is not None


def as_teacher(teacher: Any, num_actions: int) -> Any:
    """Return a teacher that follows rsl_rl's interface, given one or a controller."""
    return teacher if is_model(teacher) else Controller(teacher, num_actions)


OF_NETWORKS = {
    name for model in OWN_MODELS for name in inspect.signature(model.__init__).parameters
}
"""Arguments of rsl_rl's models: with another ``class_name`` a config still has them."""


def with_controllers(cfg: Mapping[str, Any], env: Any) -> dict[str, Any]:
    """Return a teacher's config with which rsl_rl builds a :class:`Controller` where one is named.

    ``"class_name"`` names a class, whose objects are controllers, or a function. Both get the other
    entries of the config, except those of networks that they do not name, and the environment if
    they name ``env``.

    Args:
        cfg: Config of a teacher.
        env: The runner's environment.
    """
    named: Any = resolve_callable(cfg["class_name"])
    if is_model(named):
        return {**cfg}

    def build(
        obs: TensorDict, _: Any, obs_set: str, num_actions: int, **arguments: Any
    ) -> Controller:
        return Controller(_controller(named, arguments, env), num_actions)

    return {**cfg, "class_name": build}


def _controller(named: Any, arguments: Mapping[str, Any], env: Any) -> Callable[..., Any]:
    """Build a controller.

    Raises:
        ValueError: If it cannot be built.
    """
    signature = inspect.signature(named)
    taken = signature.parameters
    arguments = {key: v for key, v in arguments.items() if key in taken or key not in OF_NETWORKS}
    if "env" in taken:
        arguments["env"] = env
    try:
        if isinstance(named, type):
            return named(**arguments)
        signature.bind(None, **arguments)
    except Exception as error:  # your class can raise anything
        raise ValueError(
            f"The teacher's class_name is {named!r}, which cannot be built from"
            f" {sorted(arguments)} ({type(error).__name__}: {error}): expected a model of rsl_rl's"
            " interface, or a controller: a class that takes these, or a function of observations."
        ) from error
    return partial(named, **arguments) if arguments else named


@contextlib.contextmanager
def unwritten(name: str, values: Mapping[str, Any]) -> Iterator[None]:
    """Run a user's function inside; what it is given has to stay as it is.

    Args:
        name: The function in the message.
        values: What it is given, by name; only tensors are looked at.

    Raises:
        ValueError: If it writes into a value.
    """
    tensors = {key: value for key, value in values.items() if isinstance(value, torch.Tensor)}
    kept = {key: tensor.clone() for key, tensor in tensors.items()}
    yield
    for key, tensor in tensors.items():
        same = tensor == kept[key]
        if not (same | (tensor != tensor) & (kept[key] != kept[key])).all():  # NaN equals nothing
            raise ValueError(
                f"{name} writes into the '{key}' that it is given, expected a new tensor: training"
                " uses the old one. Begin with .clone()."
            )

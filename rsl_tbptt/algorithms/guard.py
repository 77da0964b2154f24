"""Nothing is lost to a NaN: undo an update that met one, and say where it came from."""

from collections.abc import Callable, Iterable, Mapping

import torch
from tensordict import TensorDict
from torch import nn

_MAX_NAMED = 8


class UpdateGuard:
    """Copy of parameters and optimiser to go back to; its buffers serve one update after another.

    The optimiser must change its tensors in place, as torch's do.
    """

    def __init__(self) -> None:
        """Start without a copy."""
        self._live: list[torch.Tensor] = []
        self._copies: list[torch.Tensor] = []

    @torch.no_grad()
    def keep(self, parameters: Iterable[nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
        """Copy the values of ``parameters`` and the state of ``optimizer`` as they are now."""
        self._optimizer = optimizer
        self._state = {key: dict(entries) for key, entries in optimizer.state.items()}
        self._groups = [dict(group) for group in optimizer.param_groups]
        entries = [value for kept in self._state.values() for value in kept.values()]
        self._live = [*parameters, *(v for v in entries if isinstance(v, torch.Tensor))]
        if _forms(self._copies) != _forms(self._live):
            self._copies = [torch.empty_like(tensor) for tensor in self._live]
        torch._foreach_copy_(self._copies, self._live)  # pyright: ignore[reportPrivateImportUsage]

    @torch.no_grad()
    def restore(self) -> None:
        """Set parameters and optimiser back to what was kept and drop the gradients."""
        torch._foreach_copy_(self._live, self._copies)  # pyright: ignore[reportPrivateImportUsage]
        self._optimizer.state.clear()
        self._optimizer.state.update({key: dict(kept) for key, kept in self._state.items()})
        for group, kept in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.update(kept)
        self._optimizer.zero_grad()


def _forms(tensors: Iterable[torch.Tensor]) -> list[tuple[torch.Size, torch.dtype, torch.device]]:
    return [(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors]


def describe_non_finite(
    observations: TensorDict,
    recorded: Mapping[str, torch.Tensor],
    gradient_is_finite: Callable[[slice], bool],
) -> str:
    """Name the source of a NaN or inf: the first bad input, else the environments of bad gradients.

    Slow, with host synchronisation: only for the error message.

    Args:
        observations: Observations of the rollout, batch size (T, N).
        recorded: What else the update reads, by name, each (T, N, D).
        gradient_is_finite: Whether the gradient of a slice of environments is finite.

    Returns:
        A clause for the error message.
    """
    groups = [(f"observation group '{key}'", value) for key, value in observations.items()]
    for name, values in [*groups, *recorded.items()]:
        bad = ~torch.isfinite(values.flatten(2)).all(-1)
        if bad.any():
            first_step = int(bad.any(1).nonzero()[0])
            return (
                f"{name} of {_environments(bad.any(0).nonzero().flatten().tolist())},"
                f" first at step {first_step} of the rollout"
            )
    envs = _bisect(0, observations.shape[1], gradient_is_finite)
    if envs:
        return f"the gradients of {_environments(envs)} (what was recorded is finite)"
    return (
        "the gradients after an optimiser step of this update: it diverged, so lower"
        " learning_rate or max_grad_norm"
    )


def non_finite_message(source: str) -> str:
    """Say what happened, what was kept and how to go on."""
    return (
        f"The update met NaN or inf in {source}. Parameters and optimiser are as before the update"
        " and the rollout was dropped: repair the source, then call learn() again or resume from"
        " the last checkpoint."
    )


def _bisect(first: int, last: int, is_finite: Callable[[slice], bool]) -> list[int]:
    """Return the environments in [first, last) whose own gradient is not finite."""
    if is_finite(slice(first, last)):
        return []
    if last - first == 1:
        return [first]
    middle = (first + last) // 2
    return _bisect(first, middle, is_finite) + _bisect(middle, last, is_finite)


def _environments(indices: list[int]) -> str:
    more = f" and {len(indices) - _MAX_NAMED} more" if len(indices) > _MAX_NAMED else ""
    return f"environments {indices[:_MAX_NAMED]}{more}"

"""The schedule of truncated BPTT(k1, k2): how far gradients flow and when the optimiser steps.

Names follow Williams and Peng (1990), "An efficient gradient-based algorithm for on-line training
of recurrent network trajectories", Neural Computation 2(4), and Sutskever (2013), section 2.8.6:

- k1, ``update_length``: steps between two optimiser steps.
- k2, ``gradient_length``: steps the gradient flows back.

A rollout of T = 8 steps; ``=`` steps enter the loss, ``-`` steps only carry gradient, ``|`` is an
optimiser step::

    step                   0 1 2 3 4 5 6 7

    k1 = k2 = 3            = = =|
                                 = = =|
                                       = =|     flushed: shorter, the same weight per step

    k1 = 6, k2 = 3         = = =                two windows accumulate into one optimiser step
                                 = = =|
                                       = =|

    k1 = 3, k2 = 5         = = =|
                             - - = = =|         overlapping windows: only new steps enter the loss
                                   - - - = =|
"""

from dataclasses import dataclass, replace
from typing import Literal

Tail = Literal["flush", "drop"]


@dataclass(frozen=True)
class Window:
    """Steps [start, stop) of a rollout that are run forward together and backward together.

    The window starts from the detached state that an earlier window handed over.
    """

    start: int
    """First step. The gradient of the window's loss does not reach back beyond it."""

    loss_start: int
    """First step that enters the loss; equals ``stop`` if none does (a forward pass only)."""

    stop: int
    """One past the last step."""

    carry: int
    """Start of the next window, which receives the state before this step."""

    cuts: tuple[int, ...] = ()
    """Steps where windows were joined, in order: the gradient of the state stops before each."""

    @property
    def num_loss_steps(self) -> int:
        """Number of steps that enter the loss."""
        return self.stop - self.loss_start


Group = tuple[Window, ...]
"""The windows, in time order, whose gradients accumulate into one optimiser step."""


def num_steps_of_full_group(
    num_steps: int, gradient_length: int, update_length: int | None = None
) -> int:
    """Return k1' = min(k1, T), the steps of a full group: the divisor of every group's loss.

    The last, shorter group of a rollout has the same divisor, so that all samples have the same
    weight.

    Args:
        num_steps: Length T of the rollout.
        gradient_length: k2.
        update_length: k1; None means k2.

    Returns:
        k1', at least 1.
    """
    return min(update_length or gradient_length, num_steps)


def tbptt_schedule(
    num_steps: int, gradient_length: int, update_length: int | None = None, tail: Tail = "flush"
) -> list[Group]:
    """Split a rollout into the groups of windows of truncated BPTT(k1, k2).

    Every step enters the loss exactly once. If T is not a multiple of k1, the leftover steps form a
    last, shorter group (``tail="flush"``), or are only run forward to keep the state continuous
    (``tail="drop"``, as in rsl_rl).

    Args:
        num_steps: Length T of the rollout.
        gradient_length: k2, the steps the gradient flows back. More than T means T.
        update_length: k1, the steps between optimiser steps. None means k2; more than T means T.
        tail: What happens to leftover steps.

    Returns:
        Groups in time order, one optimiser step each unless its windows have no loss steps.

    Raises:
        ValueError: If a length is less than 1 or ``tail`` is unknown.
    """
    lengths = {"num_steps": num_steps, "gradient_length": gradient_length}
    for name, value in (lengths | {"update_length": update_length}).items():
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}, expected at least 1: it counts rollout steps.")
    if tail not in ("flush", "drop"):
        raise ValueError(f"tail is {tail!r}, expected 'flush' or 'drop'.")
    k1 = num_steps_of_full_group(num_steps, gradient_length, update_length)
    k2 = min(gradient_length, num_steps)

    groups: list[list[tuple[int, int, int]]] = []
    for first in range(0, num_steps, k1):
        last = min(first + k1, num_steps)
        if last - first < k1 and tail == "drop":
            groups.append([(first, last, last)])
        elif k1 < k2:
            groups.append([(max(0, last - k2), first, last)])
        else:
            groups.append([(s, s, min(s + k2, last)) for s in range(first, last, k2)])

    starts = [start for group in groups for start, _, _ in group]
    carries = iter([*starts[1:], num_steps])
    return [tuple(Window(*span, carry=next(carries)) for span in group) for group in groups]


def joined(group: Group, num_windows: int) -> Group:
    """Join consecutive windows, so that they run as one with the same gradient.

    Short windows of few environments then share the fixed cost of a run. Windows that overlap or
    have no loss are not joined.

    Args:
        group: The windows of an optimiser step.
        num_windows: Most windows that become one.

    Returns:
        The windows, with a cut wherever one was joined to another.
    """
    result: list[Window] = []
    for window in group:
        last = result[-1] if result else window
        follows = last.loss_start < last.stop == last.carry == window.start == window.loss_start
        if follows and len(last.cuts) + 1 < num_windows:
            cuts = (*last.cuts, window.start)
            result[-1] = replace(last, stop=window.stop, carry=window.carry, cuts=cuts)
        else:
            result.append(window)
    return tuple(result)

"""The targets of auxiliary heads, as labels of a rollout."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from rsl_rl.storage import RolloutStorage

from rsl_tbptt.algorithms.auxiliary.options import PREFIX, HeadOptions


class Targets:
    """Finds the targets of heads in the stored rollout."""

    def __init__(
        self,
        heads: Mapping[str, HeadOptions],
        storage: RolloutStorage,
        layers: Mapping[str, torch.Tensor] | None,
    ) -> None:
        """Take where they are, and check that they are there.

        Args:
            heads: Options of the heads by name.
            storage: Where rollouts are stored.
            layers: Outputs of the teacher's layers in the rollout, by name. Shape: (T, N, D) each.
                None without a teacher.

        Raises:
            ValueError: If a target is unknown, or too narrow or too late for what is asked of it.
        """
        self._heads, self._storage, self._layers = heads, storage, layers
        self.widths = {name: self._width(name, head) for name, head in heads.items()}
        """Columns of each target."""
        # On the device once: a copy from the host in every update would wait for the device.
        self._columns = {
            name: torch.tensor(head.columns, device=storage.dones.device)
            for name, head in heads.items()
            if head.columns is not None
        }

    def observed_groups(self) -> set[str]:
        """Return the observation groups that are targets."""
        return {head.target for head in self._heads.values() if head.teacher_layer is None}

    def labels(self, dones: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the targets in the stored rollout, (T, N, D) each.

        Those of a head with a delay stand at the step that predicts them, with a label (T, N) of
        where there is one: neither beyond the rollout nor beyond the end of an episode. Elsewhere
        they are 0, so that nothing of another episode, NaN included, reaches the loss::

            step             0 1 2 3 4 5     delay 2
            dones (after)    . . . x . .
            target of step   2 3 - - - -

        Args:
            dones: Which episodes ended with which step. Shape: (T, N), bool.

        Returns:
            Labels by name.
        """
        found = {}
        for name, head in self._heads.items():
            target = self._source(head).detach()
            if name in self._columns:
                target = target.index_select(-1, self._columns[name])
            if head.delay > 0:
                counts = _same_episode(dones, head.delay)
                later = torch.zeros_like(target)
                later[: -head.delay] = target[head.delay :]
                target = torch.where(counts.unsqueeze(-1), later, 0)
                found[counts_of(name)] = counts
            found[PREFIX + name] = target
        return found

    def _source(self, head: HeadOptions) -> torch.Tensor:
        """Return what a target is taken of, shape (T, N, D)."""
        if head.teacher_layer is None:
            return self._storage.observations[head.target]
        assert self._layers is not None
        return self._layers[head.teacher_layer]

    def _width(self, name: str, head: HeadOptions) -> int:
        """Return the number of a target's columns.

        Raises:
            ValueError: If it cannot be one.
        """
        self._check_known(name, head)
        shape, num_steps = self._source(head).shape, self._storage.num_transitions_per_env
        if len(shape) != 3:
            raise ValueError(
                f"auxiliary.{name}.target is '{head.target}', whose shape is {tuple(shape[2:])},"
                " expected one of vectors."
            )
        if head.columns is not None and max(head.columns) >= shape[-1]:
            raise ValueError(
                f"auxiliary.{name}.columns is {list(head.columns)}, expected at most"
                f" {shape[-1] - 1}: '{head.target}' has {shape[-1]} columns, counted from 0."
            )
        if head.delay >= num_steps:
            raise ValueError(
                f"auxiliary.{name}.delay is {head.delay}, expected less than num_steps_per_env,"
                f" {num_steps}: a target has to lie in the rollout."
            )
        return shape[-1] if head.columns is None else len(head.columns)

    def _check_known(self, name: str, head: HeadOptions) -> None:
        """Check that a target is known.

        Raises:
            ValueError: If it is not.
        """
        groups = list(self._storage.observations.keys())
        if head.target in groups or (head.teacher_layer is not None and self._layers is not None):
            return
        why = "." if head.teacher_layer is None else ": no teacher's layers are recorded here."
        raise ValueError(
            f"auxiliary.{name}.target is '{head.target}', expected one of the observation groups"
            f" {groups}{why}"
        )


def counts_of(name: str) -> str:
    """Return the label of where a head's target is there. Shape: (T, N), bool."""
    return f"{PREFIX}{name}/counts"


def _same_episode(dones: torch.Tensor, delay: int) -> torch.Tensor:
    """Return whether the step so much later is of the same episode and rollout: (T, N), bool."""
    episodes = dones.long().cumsum(0) - dones.long()  # ended before each step
    same = torch.zeros_like(dones)
    same[:-delay] = episodes[:-delay] == episodes[delay:]
    return same

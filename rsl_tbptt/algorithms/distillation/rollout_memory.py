"""A memory of past rollouts: the aggregated data of DAgger (Ross et al. 2011), bounded and uniform.

A rollout is N sequences, one per environment: observations, labels and episode starts of T steps,
and the state of the student before the first. They stand side by side, as environments do::

    column      0 .. C-1                                   C .. C+N-1
                sample of all sequences of the past        the newest rollout
                (empty ones last)

so that a mini-batch is a choice of columns. After an update each sequence of the newest rollout
draws a random key, and the C smallest keys of all times stay: every sequence ever seen is as likely
to be kept as any other (reservoir sampling, Efraimidis and Spirakis 2006, with equal weights).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.rollout import Rollout

NEWEST = "newest"
"""Label: whether a sample is of the newest rollout. Shape: (T, C + N), bool."""


class RolloutMemory:
    """C sequences of past rollouts and the N of the newest one, where the rollouts are."""

    def __init__(self, capacity: int, newest: Rollout, state: HiddenState) -> None:
        """Allocate the columns; those of the past are empty.

        Args:
            capacity: C, the sequences of the past that are kept at most.
            newest: A rollout of N environments, whose shapes and dtypes are kept.
            state: The state before it. Shape: (L, N, H), or a pair of them; None without memory.
        """
        num_columns = capacity + newest.num_envs
        columns = _allocate(num_columns)
        obs = newest.obs.apply(columns, batch_size=[newest.num_steps, num_columns])
        labels = {name: columns(label) for name, label in newest.labels.items()}
        copied = Rollout(obs, labels, columns(newest.episode_starts))
        is_newest = torch.zeros_like(copied.episode_starts)
        is_newest[:, capacity:] = True
        self.capacity = capacity
        self.rollout = replace(copied, labels={**labels, NEWEST: is_newest})
        """All columns, with the label ``NEWEST``. T steps of C + N sequences."""
        self.state = hidden_state.apply(columns, state)
        """The states before them. Shape: (L, C + N, H), or a pair of them."""
        self.num_kept = 0
        """Sequences of the past that are kept, in the first columns."""
        self._copied = copied
        device = newest.episode_starts.device
        self._keys = torch.empty(capacity, dtype=torch.float64, device=device)
        self.clear()

    def clear(self) -> None:
        """Forget the past."""
        self.num_kept = 0
        # Empty columns lose against every key, which are below 1, and the first of them first.
        torch.arange(self.capacity + 1, 1, -1, out=self._keys)

    def put(self, newest: Rollout, state: HiddenState) -> None:
        """Copy a rollout into the columns of the newest one.

        Args:
            newest: The rollout. T steps of N environments.
            state: The state before it. Shape: (L, N, H), or a pair of them; None means zeros.
        """
        columns = slice(self.capacity, None)
        if state is None:
            state = hidden_state.apply(lambda kept: torch.zeros_like(kept[:, columns]), self.state)
        put = [*_tensors(newest), *hidden_state.as_tensors(state)]
        for kept, tensor in zip(self._all_tensors(), put, strict=True):
            kept[:, columns] = tensor

    def keep_newest(self, num_steps: int) -> None:
        """Let the newest rollout take part in the sample, without waiting for the device.

        Args:
            num_steps: Steps that entered the loss. Only they are kept: a NaN would have shown.
        """
        num_envs = self.rollout.num_envs - self.capacity
        num = min(num_envs, self.capacity)
        keys, newest = torch.rand(num_envs, dtype=torch.float64, device=self._keys.device).sort()
        worst, columns = self._keys.topk(num)
        enters = keys[:num] < worst
        source = self.capacity + newest[:num]
        target = torch.where(enters, columns, source)  # onto itself where it does not enter
        self._keys[columns] = torch.where(enters, keys[:num], worst)
        for tensor in _tensors(self._copied):
            for row in tensor[:num_steps]:  # one by one, as copies are made on the way
                row[target] = row[source]
        for tensor in hidden_state.as_tensors(self.state):
            tensor[:, target] = tensor[:, source]
        self.num_kept = min(self.num_kept + num_envs, self.capacity)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the sequences of the past, for a checkpoint."""
        kept = slice(self.num_kept)
        return {
            "keys": self._keys[kept].clone(),
            "sequences": [tensor[:, kept].clone() for tensor in self._all_tensors()],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Replace the past by that of a checkpoint; the smallest keys stay, if it has too many.

        Args:
            state_dict: What :meth:`state_dict` returned.

        Raises:
            ValueError: If the sequences have other shapes. Nothing is changed then.
        """
        tensors, sequences = self._all_tensors(), state_dict["sequences"]
        found, expected = ([_shape_of_one(t) for t in each] for each in (sequences, tensors))
        if found != expected:
            raise ValueError(
                f"The checkpoint's memory of rollouts has sequences of {found}, expected"
                f" {expected} (steps or layers first): set save_memory to False to begin with an"
                " empty one."
            )
        self.clear()
        keys = state_dict["keys"]
        num = min(len(keys), self.capacity)
        chosen = keys.topk(num, largest=False).indices.sort().values
        self._keys[:num] = keys[chosen]
        for tensor, sequence in zip(tensors, sequences, strict=True):
            tensor[:, :num] = sequence[:, chosen]
        self.num_kept = num

    def _all_tensors(self) -> list[torch.Tensor]:
        return [*_tensors(self._copied), *hidden_state.as_tensors(self.state)]


def bytes_per_sequence(rollout: Rollout, state: HiddenState) -> float:
    """Return what a sequence of a rollout takes, with the state before it.

    Args:
        rollout: The rollout. T steps of N environments.
        state: The state before it. Shape: (L, N, H), or a pair of them; None without memory.
    """
    # Of the same size are episode starts and the label NEWEST.
    tensors = [*_tensors(rollout), *hidden_state.as_tensors(state), rollout.episode_starts]
    return sum(tensor.nbytes for tensor in tensors) / rollout.num_envs + torch.float64.itemsize


def _allocate(num_columns: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: tensor.new_empty(len(tensor), num_columns, *tensor.shape[2:])


def _tensors(rollout: Rollout) -> list[torch.Tensor]:
    """Return what a rollout consists of, in one order for all rollouts of the same groups."""
    obs = [rollout.obs[group] for group in sorted(rollout.obs.keys())]
    return [*obs, *rollout.labels.values(), rollout.episode_starts]


def _shape_of_one(tensor: torch.Tensor) -> tuple[int, ...]:
    return (len(tensor), *tensor.shape[2:])

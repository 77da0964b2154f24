"""A memory of past rollouts: the aggregated data of DAgger (Ross et al. 2011), bounded and uniform.

A rollout is N sequences, one per environment: observations, labels and episode starts of T steps,
and the state of the student before the first. They stand side by side, as environments do::

    column      0 .. C-1                                   C .. C+N-1
                sample of all sequences of the past        the newest rollout
                (empty ones last)

so that a mini-batch is a choice of columns. After an update each sequence of the newest rollout
draws a random key, and the C smallest keys of all times stay: every sequence ever seen is as likely
to be kept as any other (reservoir sampling, Efraimidis and Spirakis 2006, with equal weights).

Frames of a camera stand apart, each once, in one pool for all columns, so that what a sequence
takes of it depends on how often it has a new one. Where the pool has no room for those of the
newest rollout, the sequences of the largest keys go, and from then on none of such keys enters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from tensordict import TensorDict

from rsl_tbptt.algorithms.update.frames import FrameObs, frames_of, shown_once, steps_of
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.rollout import Rollout

NEWEST = "newest"
"""Label: whether a sample is of the newest rollout. Shape: (T, C + N), bool."""

_ROWS_AT_ONCE = 256
"""Frames that are copied at once."""


class RolloutMemory:
    """C sequences of past rollouts and the N of the newest one, where the rollouts are."""

    def __init__(
        self,
        capacity: int,
        newest: Rollout,
        state: HiddenState,
        num_frames: Mapping[str, int] | None = None,
    ) -> None:
        """Allocate the columns; those of the past are empty.

        Args:
            capacity: C, the sequences of the past that are kept at most.
            newest: A rollout of N environments, whose shapes and dtypes are kept.
            state: The state before it. Shape: (L, N, H), or a pair of them; None without memory.
            num_frames: Frames that the pool of a group holds, at least T * N; by default as many as
                C + N sequences can have.
        """
        num_columns = capacity + newest.num_envs
        columns = _allocate(num_columns)
        obs = steps_of(newest.obs).apply(columns, batch_size=[newest.num_steps, num_columns])
        frames = frames_of(newest.obs)
        if frames:
            sizes = dict.fromkeys(frames, newest.num_steps * num_columns) | dict(num_frames or {})
            pools = {
                name: each.new_empty(sizes[name], *each.shape[1:]) for name, each in frames.items()
            }
            obs = FrameObs(obs, pools)
        labels = {name: columns(label) for name, label in newest.labels.items()}
        weights = None if newest.weights is None else columns(newest.weights)
        copied = Rollout(obs, labels, columns(newest.episode_starts), weights)
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
        self._frames = frames_of(obs)
        self._shown = {group: steps_of(obs)[group] for group in self._frames}
        device = newest.episode_starts.device
        self._keys = torch.empty(capacity, dtype=torch.float64, device=device)
        self.clear()

    def clear(self) -> None:
        """Forget the past."""
        self._key_limit = 1.0
        self._keep_first(0)

    def put(self, newest: Rollout, state: HiddenState) -> None:
        """Copy a rollout into the columns of the newest one.

        The host waits for the number of its frames where they stand apart.

        Args:
            newest: The rollout. T steps of N environments.
            state: The state before it. Shape: (L, N, H), or a pair of them; None without memory.
        """
        columns = slice(self.capacity, None)
        if isinstance(newest.obs, FrameObs):
            newest = replace(newest, obs=self._put_frames(newest.obs))
        put = [*_tensors(newest), *_weights(newest), *hidden_state.as_tensors(state)]
        for kept, tensor in zip(self._all_tensors(), put, strict=True):
            kept[:, columns] = tensor

    def keep_newest(self, num_steps: int) -> None:
        """Let the newest rollout take part in the sample.

        The device is waited for only once a pool of frames has been full.

        Args:
            num_steps: Steps that entered the loss. Only they are kept: a NaN with weight would have
                shown.
        """
        num_envs = self.rollout.num_envs - self.capacity
        num = min(num_envs, self.capacity)
        keys, newest = torch.rand(num_envs, dtype=torch.float64, device=self._keys.device).sort()
        worst, columns = self._keys.topk(num)
        enters = keys[:num] < worst.clamp(max=self._key_limit)
        source = self.capacity + newest[:num]
        target = torch.where(enters, columns, source)  # onto itself where it does not enter
        self._keys[columns] = torch.where(enters, keys[:num], worst)
        for tensor in (*_tensors(self._copied), *_weights(self._copied)):
            for row in tensor[:num_steps]:  # one by one, as copies are made on the way
                row[target] = row[source]
        for shown in self._shown.values():  # no frame of the steps that are left out
            shown[num_steps:, target] = shown[num_steps - 1, target]
        for tensor in hidden_state.as_tensors(self.state):
            tensor[:, target] = tensor[:, source]
        num_entered = num_envs if self._key_limit == 1.0 else int(enters.sum())
        self.num_kept = min(self.num_kept + num_entered, self.capacity)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the sequences of the past, for a checkpoint."""
        kept = slice(self.num_kept)
        frames, obs = {}, steps_of(self._copied.obs)[:, kept]
        for group, shown in self._shown.items():
            rows, obs[group] = shown_once(shown[:, kept])
            frames[group] = self._frames[group][rows]
        labels = {name: label[:, kept] for name, label in self._copied.labels.items()}
        copied = Rollout(obs, labels, self._copied.episode_starts[:, kept])
        states = [tensor[:, kept] for tensor in hidden_state.as_tensors(self.state)]
        weights = [tensor[:, kept].clone() for tensor in _weights(self._copied)]
        return {
            "keys": self._keys[kept].clone(),
            "key_limit": self._key_limit,
            "sequences": [tensor.clone() for tensor in (*_tensors(copied), *states)],
            "frames": frames,
            **({"weights": weights[0]} if weights else {}),
        }

    def check(self, state_dict: dict[str, Any]) -> None:
        """Check that the past of a checkpoint fits.

        Args:
            state_dict: What :meth:`state_dict` returned.

        Raises:
            ValueError: If the sequences have other shapes.
        """
        tensors = [*_tensors(self._copied), *hidden_state.as_tensors(self.state)]
        sequences, frames = state_dict["sequences"], state_dict.get("frames", {})
        found, expected = (
            [*map(_shape_of_one, each), {name: tuple(f.shape[1:]) for name, f in own.items()}]
            for each, own in ((sequences, frames), (tensors, self._frames))
        )
        if found != expected:
            raise ValueError(
                f"The checkpoint's memory of rollouts has sequences of {found}, expected"
                f" {expected} (steps or layers first, then frames): set save_memory to False to"
                " begin with an empty one."
            )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Replace the past by that of a checkpoint; the smallest keys stay, if it has too many.

        Sequences that were saved without weights weigh 1 at every step, as they did. Where none
        weigh, those with NaN at steps that weighed 0 are left out.

        Args:
            state_dict: What :meth:`state_dict` returned.

        Raises:
            ValueError: If the sequences have other shapes. Nothing is changed then.
        """
        self.check(state_dict)
        tensors = [*_tensors(self._copied), *hidden_state.as_tensors(self.state)]
        sequences, frames = state_dict["sequences"], state_dict.get("frames", {})
        self.clear()
        keys = state_dict["keys"]
        if "weights" in state_dict and self.rollout.weights is None:
            # What weighed 0 may be NaN, and would be trained on.
            finite = [each.isfinite().transpose(0, 1).flatten(1).all(1) for each in sequences]
            keys = torch.where(torch.stack(finite).all(0), keys, torch.inf)
        num = min(int(keys.isfinite().sum()), self.capacity)
        chosen = keys.topk(num, largest=False).indices.sort().values
        self._keys[:num] = keys[chosen]
        for tensor, sequence in zip(tensors, sequences, strict=True):
            tensor[:, :num] = sequence[:, chosen]
        for weights in _weights(self._copied):
            saved = state_dict.get("weights")
            weights[:, :num] = 1.0 if saved is None else saved[:, chosen]
        self.num_kept = num
        self._key_limit = state_dict.get("key_limit", 1.0)
        self._make_room(dict.fromkeys(frames, 0))
        for group, shown in self._shown.items():
            rows, shown[:, : self.num_kept] = shown_once(shown[:, : self.num_kept])
            _copy_rows(
                frames[group],
                rows,
                self._frames[group],
                torch.arange(len(rows), device=rows.device),
            )

    def _put_frames(self, newest: FrameObs) -> TensorDict:
        """Copy a rollout's frames into the pools; return its steps (T, N) with their new rows."""
        steps = newest.steps.copy()
        once = {group: shown_once(steps[group]) for group in self._shown}
        self._make_room({group: len(rows) for group, (rows, _) in once.items()})
        for group, (rows, places) in once.items():
            free = torch.ones(len(self._frames[group]), dtype=torch.bool, device=rows.device)
            free[self._shown[group][:, : self.num_kept].flatten()] = False
            targets = free.nonzero().squeeze(1)[: len(rows)]
            _copy_rows(newest.frames[group], rows, self._frames[group], targets)
            steps[group] = targets[places]
        return steps

    def _make_room(self, needed: Mapping[str, int]) -> None:
        """Forget the sequences of the largest keys until the pools have so many free frames."""
        num_kept = self.num_kept
        keys, order = self._keys[:num_kept].sort()
        for group, number in needed.items():
            shown = self._shown[group][:, : self.num_kept]  # all: their order is of all of them
            taken = 1 + (shown[1:] != shown[:-1]).sum(0)
            room = len(self._frames[group]) - number
            num_kept = min(num_kept, int((taken[order].cumsum(0) <= room).sum()))
        if num_kept == self.num_kept:
            return
        self._key_limit = min(self._key_limit, float(keys[num_kept]))
        stay, go = order[:num_kept], order[num_kept:]
        source, target = stay[stay >= num_kept], go[go < num_kept]
        for tensor in (self._keys.unsqueeze(0), *self._all_tensors()):
            tensor[:, target] = tensor[:, source]
        self._keep_first(num_kept)

    def _keep_first(self, num_kept: int) -> None:
        """Empty all columns of the past but the first."""
        self.num_kept = num_kept
        # Empty columns lose against every key, which are below 1, and the first of them first.
        torch.arange(self.capacity + 1 - num_kept, 1, -1, out=self._keys[num_kept:])

    def _all_tensors(self) -> list[torch.Tensor]:
        states = hidden_state.as_tensors(self.state)
        return [*_tensors(self._copied), *_weights(self._copied), *states]


def bytes_per_sequence(rollout: Rollout, state: HiddenState) -> float:
    """Return what a sequence of a rollout takes, with the state before it, without frames.

    Args:
        rollout: The rollout. T steps of N environments.
        state: The state before it. Shape: (L, N, H), or a pair of them; None without memory.
    """
    # Of the same size are episode starts and the label NEWEST.
    own = [*_tensors(rollout), *_weights(rollout), *hidden_state.as_tensors(state)]
    tensors = [*own, rollout.episode_starts]
    return sum(tensor.nbytes for tensor in tensors) / rollout.num_envs + torch.float64.itemsize


def _copy_rows(
    source: torch.Tensor, rows: torch.Tensor, target: torch.Tensor, places: torch.Tensor
) -> None:
    """Copy rows of one tensor into places of another, few at once as copies are made on the way."""
    for some, theirs in zip(rows.split(_ROWS_AT_ONCE), places.split(_ROWS_AT_ONCE), strict=True):
        target[theirs] = source[some]


def _allocate(num_columns: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: tensor.new_empty(len(tensor), num_columns, *tensor.shape[2:])


def _tensors(rollout: Rollout) -> list[torch.Tensor]:
    """Return what a rollout consists of, in one order for all rollouts of the same groups."""
    steps = steps_of(rollout.obs)
    obs = [steps[group] for group in sorted(steps.keys())]
    return [*obs, *rollout.labels.values(), rollout.episode_starts]


def _weights(rollout: Rollout) -> list[torch.Tensor]:
    """Return the weights of its samples, which memories saved without them lack, if there are."""
    return [] if rollout.weights is None else [rollout.weights]


def _shape_of_one(tensor: torch.Tensor) -> tuple[int, ...]:
    return (len(tensor), *tensor.shape[2:])

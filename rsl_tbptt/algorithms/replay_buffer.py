"""The replay buffer of the distillation, and the mini-batches drawn from it.

The buffer aggregates past rollouts as DAgger does (Ross et al. 2011), bounded and uniform. A
rollout is N sequences, one per environment: observations, labels and episode starts of T steps, and
the state of the student before the first step. Sequences stand side by side, as environments do::

    column      0 .. C-1                                   C .. C+N-1
                sample of all sequences of the past        the newest rollout
                (empty ones last)

so a mini-batch is a choice of columns. After an update each sequence of the newest rollout draws a
random key, and the C smallest keys of all times stay: every sequence ever seen is as likely to be
kept as any other (reservoir sampling, Efraimidis and Spirakis 2006, with equal weights).

Camera frames are deduplicated: each is stored once, in one pool for all columns, so a sequence
takes as many frames as it has new ones. If the pool has no room for the newest rollout's frames,
the sequences with the largest keys are dropped, and no sequence with such a key enters again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from rsl_tbptt.algorithms.behavior_losses import NEWEST, SampleWeights
from rsl_tbptt.algorithms.heads import AuxiliaryHeads
from rsl_tbptt.algorithms.options import DistillationOptions
from rsl_tbptt.algorithms.replay import (
    FrameObs,
    find_held_frames,
    frames_of,
    seen_by,
    shown_once,
    steps_of,
)
from rsl_tbptt.algorithms.teachers import StepLabels
from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.rollout import Rollout, Segments

Sequences = tuple[Rollout | Segments, HiddenState]
"""Sequences as environments of a rollout, n of them, and the states before their first steps."""


class Experience:
    """Sequences of T steps: one per environment of the newest rollout, and those of the buffer."""

    def __init__(
        self,
        student: MLPModel,
        storage: RolloutStorage,
        labels: StepLabels,
        options: DistillationOptions,
        ranks: Ranks,
        heads: AuxiliaryHeads,
        weights: SampleWeights | None,
    ) -> None:
        """Take where the newest rollout is found; the buffer is allocated with the first one.

        Args:
            student: Whose observations the sequences hold.
            storage: Where rollouts are stored.
            labels: The teacher's labels.
            options: Sizes of mini-batches and buffer.
            ranks: The processes that train together.
            heads: The student's auxiliary heads, whose targets are labels, too.
            weights: Those of the samples; None weighs all the same.
        """
        # On every rank as many, as each comes with an exchange.
        self.num_mini_batches = min(options.num_mini_batches, *ranks.gather(storage.num_envs))
        """Mini-batches of a pass, no more than there are environments."""
        self.start_state: HiddenState = None
        """State of the student before the newest rollout. Shape: (L, N, H), or a pair of them."""
        self.buffer: ReplayBuffer | None = None
        """Sequences of past rollouts, from the first update on, if any are to be kept."""
        self._saved: dict[str, Any] | None = None  # of a checkpoint, until the first update
        self.num_drawn = 0
        """Sequences of the past in a pass."""
        self._student, self._storage, self._heads = student, storage, heads
        self._labels, self._weights = labels, weights
        self._options, self._ranks = options, ranks
        self._taken = self.newest()
        self.nothing: Sequences = (self._taken, None)
        """Stands for the sequences of a mini-batch where a process failed to find them."""
        self._whole = self.num_mini_batches == 1 and options.buffer_rollouts == 0

    def begin_rollout(self) -> None:
        """Keep the state that a rollout starts with."""
        self.start_state = hidden_state.clone(self._student.get_hidden_state())

    def newest(self) -> Rollout:
        """View the storage as a rollout."""
        obs = seen_by(self._student, self._storage.observations)
        dones = self.dones()
        labels = {**self._labels.of_rollout(), **self._heads.targets(dones)}
        rollout = Rollout.from_dones(obs, labels, dones)
        return rollout if self._weights is None else replace(rollout, weights=self._weights.values)

    def dones(self) -> torch.Tensor:
        """Return which episodes of the newest rollout ended when. Shape: (T, N), bool."""
        return self._storage.dones.squeeze(-1).bool()

    def take(self) -> None:
        """Complete labels and weights of the newest rollout, and put it beside the past.

        Raises:
            ValueError: If the function that weighs its samples fails, ``buffer_gb`` has no room, or
                what a checkpoint brought does not fit.
        """
        self._labels.complete()
        if self._weights is not None:
            self._weights.complete()
        self._taken = self.newest()
        find_held_frames(self._taken.obs)
        if self.start_state is None:  # of a first rollout
            self.start_state = hidden_state.apply(
                torch.zeros_like, hidden_state.clone(self._student.get_hidden_state())
            )
        if self._options.buffer_rollouts > 0:
            # While it is empty, by the frames of each rollout: a first one may have been dropped.
            if self.buffer is None or (self.buffer.num_kept == 0 and frames_of(self._taken.obs)):
                self.buffer = None  # so that it is given back before
                self.buffer = self._new_buffer()
            self.buffer.put(self._taken, self.start_state)

    def _new_buffer(self) -> ReplayBuffer:
        """Allocate the buffer by how often the rollout has new frames; fill in what was saved."""
        size = self.buffer_size(self._taken)
        buffer = ReplayBuffer(size.capacity, self._taken, self.start_state, size.num_frames)
        if self._saved is not None:
            buffer.load_state_dict(self._saved)
            self._saved = None
        return buffer

    def past(self) -> dict[str, Any] | None:
        """Return what a checkpoint holds of the past, None before there is any."""
        return self._saved if self.buffer is None else self.buffer.state_dict()

    def check(self, saved: dict[str, Any] | None) -> None:
        """Check that the buffer of a checkpoint fits ours, if both are there.

        Args:
            saved: What ``ReplayBuffer.state_dict`` returned.

        Raises:
            ValueError: If it does not.
        """
        if self.buffer is not None and saved is not None:
            self.buffer.check(saved)

    def restore(self, saved: dict[str, Any] | None) -> None:
        """Go on with the buffer of a checkpoint, now or once there is one; None empties it.

        Args:
            saved: What ``ReplayBuffer.state_dict`` returned, checked.
        """
        if self.buffer is not None and saved is not None:
            self.buffer.load_state_dict(saved)
        elif self.buffer is not None:
            self.buffer.clear()
        self._saved = saved if self.buffer is None else None

    def buffer_size(self, rollout: Rollout) -> BufferSize:
        """Return what the buffer takes once it is full of sequences such as those of a rollout.

        Raises:
            ValueError: If ``buffer_gb`` has no room for any sequence of the past.
        """
        if self._options.buffer_rollouts == 0:
            return BufferSize(0, {}, 0.0)
        steps = steps_of(rollout.obs)  # waits for the device
        frames_per_sequence = {
            group: len(shown_once(steps[group])[0]) / rollout.num_envs
            for group in frames_of(rollout.obs)
        }
        if self._saved is not None and (kept := len(self._saved["keys"])):
            saved = self._saved.get("frames", {}).items()
            frames_per_sequence |= {group: len(frames) / kept for group, frames in saved}
        return buffer_size(
            rollout,
            self.start_state,
            max_sequences=self._options.buffer_rollouts * self._storage.num_envs,
            max_gb=self._options.buffer_gb,
            frames_per_sequence=frames_per_sequence,
        )

    def plan(self) -> None:
        """Fix the sizes of an update's mini-batches (one exchange with other processes)."""
        num_envs = self._storage.num_envs
        num_kept = 0 if self.buffer is None else self.buffer.num_kept
        self.num_drawn = min(round(self._options.buffer_share * num_envs), num_kept)
        sizes = mini_batch_sizes(num_envs, self.num_drawn, self.num_mini_batches)
        self._num_sequences: list[int] | torch.Tensor = sizes
        if self._ranks.together:  # filled, not copied: a copy would wait for the device
            own = [torch.full((), size, device=self._storage.dones.device) for size in sizes]
            self._num_sequences = self._ranks.sum_tensor(torch.stack(own))

    def draw(self) -> Iterator[MiniBatch]:
        """Draw one pass: every environment once, and ``num_drawn`` sequences of the past.

        No random number is drawn where there is nothing to choose.
        """
        device = self._storage.dones.device
        num_kept = 0 if self.buffer is None else self.buffer.num_kept
        draw_envs = torch.randperm if self.num_mini_batches > 1 else torch.arange
        draw_kept = torch.randperm if self.num_drawn else torch.arange
        envs = draw_envs(self._storage.num_envs, device=device)
        kept = draw_kept(num_kept, device=device)[: self.num_drawn]
        shares = (indices.tensor_split(self.num_mini_batches) for indices in (envs, kept))
        for drawn_envs, drawn_kept, size in zip(*shares, self._num_sequences, strict=True):
            yield MiniBatch(drawn_envs, drawn_kept, size)

    def num_drawn_of_ranks(self, num_envs_of_ranks: int) -> int | torch.Tensor | None:
        """Return the sequences of the past in a pass of all processes, a number or of shape ().

        None if this process has none.

        Args:
            num_envs_of_ranks: Number of environments of all processes.
        """
        if self.num_drawn == 0:
            return None
        if isinstance(self._num_sequences, torch.Tensor):
            return self._num_sequences.sum() - num_envs_of_ranks
        return self.num_drawn

    def sizes(self) -> list[int]:
        """Return the sequences in each mini-batch once the buffer is full, if all fit in."""
        num_envs = self._storage.num_envs
        num_kept = self._options.buffer_rollouts * num_envs
        num_drawn = min(round(self._options.buffer_share * num_envs), num_kept)
        return mini_batch_sizes(num_envs, num_drawn, self.num_mini_batches)

    def of(self, mini_batch: MiniBatch) -> Sequences:
        """Return sequences of a mini-batch, those of the newest rollout first."""
        if self._whole:
            return self._taken, hidden_state.clone(self.start_state)
        return _columns(*self._source(), self._columns_of(mini_batch))

    def _source(self) -> tuple[Rollout, HiddenState]:
        """Return what the columns of mini-batches are numbers of, and the states before it."""
        if self.buffer is None:
            return self._taken, self.start_state
        return self.buffer.rollout, self.buffer.state

    def _columns_of(self, mini_batch: MiniBatch) -> torch.Tensor:
        """Return the columns of a mini-batch's sequences, the newest rollout's first: (n,)."""
        if self.buffer is None:
            return mini_batch.envs
        return torch.cat((self.buffer.capacity + mini_batch.envs, mini_batch.kept))

    def weights_of(self, mini_batch: MiniBatch, num_steps: int) -> torch.Tensor:
        """Sum up what the first steps of a mini-batch's sequences weigh.

        Args:
            mini_batch: Sequences of the newest rollout and of the past.
            num_steps: Steps that enter the loss.

        Returns:
            The sums over the sequences of the newest rollout and over those of the past, (2,).
        """
        weights = self._source()[0].weights
        assert weights is not None
        of_sequences = weights[:num_steps, self._columns_of(mini_batch)].sum(0)
        newest, past = of_sequences.tensor_split([len(mini_batch.envs)])
        return torch.stack((newest.sum(), past.sum()))

    def of_envs(self, envs: slice) -> Sequences:
        """Return sequences of the newest rollout, in the form that updates have.

        Args:
            envs: The first environments, or all. Beyond the last one they come again, as a
                mini-batch with sequences of the past can be larger than the rollout.
        """
        rollout, num_envs = self.newest(), self._storage.num_envs
        find_held_frames(rollout.obs)
        if self._whole:
            return rollout.envs(envs), hidden_state.select_envs(
                hidden_state.clone(self.start_state), envs
            )
        columns = torch.arange(envs.stop or num_envs, device=self._storage.dones.device)
        return _columns(rollout, self.start_state, columns % num_envs)


def _columns(rollout: Rollout, state: HiddenState, columns: torch.Tensor) -> Sequences:
    """Return some sequences of a rollout by their numbers, shape (n,)."""
    segments = Segments(rollout, torch.zeros_like(columns), columns)
    return segments, hidden_state.select_envs(state, columns)


_ROWS_AT_ONCE = 256
"""Frames that are copied at once."""


class ReplayBuffer:
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

        def columns(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.new_empty(len(tensor), num_columns, *tensor.shape[2:])

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
                f"The checkpoint's replay buffer has sequences of {found}, expected"
                f" {expected} (steps or layers first, then frames): set save_buffer to False to"
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


@dataclass(frozen=True)
class BufferSize:
    """What a replay buffer is allocated for."""

    capacity: int
    """Sequences of the past."""

    num_frames: Mapping[str, int]
    """Frames of the past and of the newest rollout, by group."""

    num_bytes: float
    """Of all, the newest rollout's included."""


def buffer_size(
    newest: Rollout,
    state: HiddenState,
    *,
    max_sequences: int,
    max_gb: float | None,
    frames_per_sequence: Mapping[str, float],
) -> BufferSize:
    """Fit a buffer into the bytes there are.

    Args:
        newest: The newest rollout. T steps of N environments.
        state: The state before it. Shape: (L, N, H), or a pair of them; None without memory.
        max_sequences: Sequences of the past that are to be kept, at least 1.
        max_gb: Gigabytes of 10^9 bytes that may be taken. None does not limit them.
        frames_per_sequence: How many frames of each group a sequence is expected to have, of T at
            most. A buffer holds any, but fewer sequences where there are more.

    Returns:
        The size. There is always room for a newest rollout of nothing but new frames.

    Raises:
        ValueError: If there is no room for a sequence of the past.
    """
    num_steps, num_envs = newest.num_steps, newest.num_envs
    frames = {group: each.nbytes / len(each) for group, each in frames_of(newest.obs).items()}
    own = bytes_per_sequence(newest, state)
    at_most = num_steps * sum(frames.values())
    expected = sum(frames_per_sequence[group] * size for group, size in frames.items())
    capacity, spare = max_sequences, float("inf")
    if max_gb is not None:
        fitting = min(max_gb * 1e9 / (own + expected), (max_gb * 1e9 - num_envs * at_most) / own)
        capacity = min(capacity, int(fitting) - num_envs)
        spare = max_gb * 1e9 - (capacity + num_envs) * own - num_envs * at_most
    if capacity < 1:
        least = (num_envs + 1) * (own + at_most) / 1e9
        raise ValueError(
            f"buffer_gb is {max_gb:g}, expected at least {least:.3g}, for the newest rollout and"
            " one sequence of the past: None does not limit it, and buffer_rollouts=0 keeps"
            " nothing."
        )
    num_frames = {
        group: num_steps * num_envs
        + int(min(num_steps * capacity, spare * frames_per_sequence[group] / expected))
        for group in frames
    }
    taken = sum(num_frames[group] * size for group, size in frames.items())
    return BufferSize(capacity, num_frames, (capacity + num_envs) * own + taken)


@dataclass(frozen=True)
class MiniBatch:
    """The sequences that one optimiser step sees."""

    envs: torch.Tensor
    """Environments of the newest rollout. Shape: (n,)."""

    kept: torch.Tensor
    """Columns of the buffer, distinct. Shape: (m,)."""

    num_sequences: int | torch.Tensor
    """n + m over all processes. Shape: ()."""


def mini_batch_sizes(num_envs: int, num_drawn: int, num_mini_batches: int) -> list[int]:
    """Return the number of sequences in each mini-batch of a pass.

    Args:
        num_envs: Those of the newest rollout.
        num_drawn: Those of the past.
        num_mini_batches: Mini-batches B.
    """
    shares = (torch.arange(n).tensor_split(num_mini_batches) for n in (num_envs, num_drawn))
    return [len(envs) + len(kept) for envs, kept in zip(*shares, strict=True)]

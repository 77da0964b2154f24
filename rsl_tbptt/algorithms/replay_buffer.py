"""The replay buffer of the distillation, and the mini-batches drawn from it.

The buffer aggregates past rollouts as DAgger does (Ross et al. 2011), bounded and uniform. A
rollout is N sequences, one per environment: observations, labels and episode starts of T steps, and
the state of the student before the first step. Sequences are columns, as environments are::

    C columns                                  N columns
    sample of all sequences of the past        the newest rollout
    (empty ones last)

so a mini-batch is a set of columns. After an update each sequence of the newest rollout draws a
random key, and the C smallest keys ever drawn stay: every sequence ever seen is equally likely to
be kept (reservoir sampling, Efraimidis and Spirakis 2006, with equal weights). A sequence that
enters stays in its column, and the next rollout gets the column of the sequence that it replaces.

Camera frames are deduplicated: each is stored once, in one pool for all columns, so a sequence
takes as many frames as it has new ones. If the pool has no room for the newest rollout's frames,
the sequences with the largest keys are dropped, and no sequence with such a key enters again. They
stay dropped if the update is undone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from rsl_tbptt.algorithms.frames import (
    FrameObs,
    deduplicate_frames,
    frames_of,
    steps_of,
    unique_frames,
)
from rsl_tbptt.algorithms.options import DistillationOptions
from rsl_tbptt.algorithms.replay import observations_of
from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.rollout import NEWEST, Labels, Rollout, map_label


class Drawn(NamedTuple):
    """The sequences of a mini-batch."""

    columns: torch.Tensor
    """Columns of the rollout, those of the newest one first. Shape: (n + m,)."""

    envs: torch.Tensor
    """Environments of the newest ones. Shape: (n,)."""

    num_sequences: int | torch.Tensor
    """n + m over all processes. Shape: ()."""


class BufferSize(NamedTuple):
    """The size of a replay buffer."""

    capacity: int
    """Sequences of the past."""

    num_frames: Mapping[str, int]
    """Frames of the past and of the newest rollout, by group."""

    made_for: Sequence[float | None]
    """What it depends on besides the number of new frames: sizes and options."""


class Experience:
    """Sequences of T steps: one per environment of the newest rollout, and those of the buffer."""

    def __init__(
        self,
        student: MLPModel,
        storage: RolloutStorage,
        options: DistillationOptions,
        ranks: Ranks,
        trained: torch.Tensor,
        labels: Callable[[], Labels],
    ) -> None:
        """Take the sources of the newest rollout; the first one allocates the buffer.

        Args:
            student: The student.
            storage: The storage of rollouts.
            options: Sizes of the buffer and of mini-batches.
            ranks: The processes that train together.
            trained: Environments that are drawn and kept, all but the held-out ones. Shape: (M,).
            labels: Returns the labels of the stored rollout.
        """
        self._student, self._storage, self._options = student, storage, options
        self._ranks, self.trained, self._labels = ranks, trained, labels
        num_trained = ranks.gather(len(trained))
        # The same number on every rank, since each mini-batch makes an exchange.
        self.num_mini_batches = min(options.num_mini_batches, *num_trained)
        """Mini-batches of a pass; at most the number of environments that train."""
        self.start_state: HiddenState = None
        """State of the student before the newest rollout. Shape: (L, N, H), or a pair of them."""
        self.buffer: ReplayBuffer | None = None
        """Sequences of past rollouts, from the first update on; None if none are kept."""
        self._saved: dict[str, Any] | None = None  # from a checkpoint, until the next update
        self.num_drawn = 0
        """Sequences of the past in a pass."""

    def begin_rollout(self) -> None:
        """Keep the state at the rollout's start."""
        self.start_state = hidden_state.clone(self._student.get_hidden_state())

    def newest(self) -> Rollout:
        """View the storage as a rollout."""
        if self.start_state is None:  # the first rollout: zeros, of the size that is known now
            state = hidden_state.clone(self._student.get_hidden_state())
            self.start_state = hidden_state.apply(torch.zeros_like, state)
        obs = observations_of(self._student, self._storage.observations)
        return Rollout.from_dones(obs, self._labels(), self._storage.dones.squeeze(-1).bool())

    def take(self) -> tuple[Rollout, HiddenState]:
        """Put the newest rollout into the buffer.

        Returns:
            The rollout that ``draw`` chooses columns of, which has the past with a buffer, and the
            states before it.

        Raises:
            ValueError: If ``buffer_gb`` is too small, or a checkpoint's buffer does not fit.
        """
        self._taken = self.newest()
        deduplicate_frames(self._taken.obs)
        if self._options.buffer_rollouts > 0:
            # Resized for each rollout while it is empty: the first rollout may have been dropped.
            if self.buffer is None or (self.buffer.num_kept == 0 and frames_of(self._taken.obs)):
                self.buffer = None  # frees its memory before the new one is allocated
                self.buffer = self._new_buffer()
            self.buffer.put(self._taken, self.start_state)
        self._plan()
        if self.buffer is None:
            return self._taken, self.start_state
        return self.buffer.rollout, self.buffer.state

    def _new_buffer(self) -> ReplayBuffer:
        """Allocate the buffer for the rollout's rate of new frames; load the saved sequences."""
        size = self._size = self._buffer_size(self._taken)
        buffer = ReplayBuffer(size.capacity, self._taken, self.start_state, size.num_frames)
        if self._saved is not None:
            buffer.load_state_dict(self._saved)
            self._saved = None
        return buffer

    def _buffer_size(self, rollout: Rollout) -> BufferSize:
        """Return the size of a buffer of sequences like a rollout's that fits ``buffer_gb``.

        There is always room for a newest rollout in which all frames are new. Past sequences are
        expected to have as many frames as the saved ones, or as those of the rollout. Saved
        sequences keep the size of their buffer, unless an option that it depends on has changed.

        Raises:
            ValueError: If ``buffer_gb`` has no room for a single past sequence.
        """
        options, num_envs = self._options, rollout.num_envs
        frames = {
            group: values.nbytes / len(values) for group, values in frames_of(rollout.obs).items()
        }
        num_steps = steps_of(rollout.obs).batch_size.numel() // num_envs
        size_of_one, at_most = self._bytes_per_sequence(rollout)
        num_trained = len(self.trained)
        made_for = [num_envs, size_of_one, at_most, options.buffer_rollouts, options.buffer_gb]
        made_for += [num_trained] if num_trained < num_envs else []
        saved = self._saved or {}
        size = saved.get("size", {})
        if len(saved.get("keys", ())) and size.get("made_for") == made_for:
            return BufferSize(size["capacity"], size["num_frames"], made_for)
        per_sequence = self._frames_per_sequence(rollout)
        expected = sum(per_sequence[group] * size for group, size in frames.items())
        capacity, spare = options.buffer_rollouts * num_trained, math.inf
        if options.buffer_gb is not None:
            limit = options.buffer_gb * 1e9
            fitting = min(
                limit / (size_of_one + expected), (limit - num_envs * at_most) / size_of_one
            )
            capacity = min(capacity, int(fitting) - num_envs)
            spare = limit - (capacity + num_envs) * size_of_one - num_envs * at_most
        if capacity < 1:
            least = (num_envs + 1) * (size_of_one + at_most) / 1e9
            raise ValueError(
                f"buffer_gb is {options.buffer_gb:g}, expected at least {least:.3g}, for the newest"
                " rollout and one sequence of the past: None sets no limit, and buffer_rollouts=0"
                " disables the buffer."
            )
        num_frames = {
            group: num_steps * num_envs
            + int(min(num_steps * capacity, spare * per_sequence[group] / expected))
            for group in frames
        }
        return BufferSize(capacity, num_frames, made_for)

    def _bytes_per_sequence(self, rollout: Rollout) -> tuple[float, float]:
        """Return the bytes of a sequence without its frames, and those of frames that are new."""
        tensors = [*_tensors(rollout, self.start_state).values(), rollout.episode_starts]
        # The last term is the label NEWEST.
        size_of_one = (
            sum(values.nbytes for values in tensors) / rollout.num_envs + torch.float64.itemsize
        )
        frames = frames_of(rollout.obs).items()
        per_step = sum(values.nbytes / len(values) for _, values in frames)
        num_steps = steps_of(rollout.obs).batch_size.numel() // rollout.num_envs
        return size_of_one, num_steps * per_step

    def _frames_per_sequence(self, rollout: Rollout) -> dict[str, float]:
        """Return the expected number of frames in a past sequence, by group."""
        steps = steps_of(rollout.obs)  # waits for the device
        numbers = {
            group: len(unique_frames(steps[group])[0]) / rollout.num_envs
            for group in frames_of(rollout.obs)
        }
        if self._saved is not None and (kept := len(self._saved["keys"])):
            saved = self._saved.get("frames", {}).items()
            numbers |= {group: len(frames) / kept for group, frames in saved}
        return numbers

    def keep_newest(self, num_steps: int) -> None:
        """Let the newest rollout compete for places in the buffer; see ``ReplayBuffer``."""
        if self.buffer is not None:
            self.buffer.keep_newest(num_steps, self.trained)

    def past(self) -> dict[str, Any] | None:
        """Return the past sequences for a checkpoint, or None if there are none yet."""
        if self.buffer is None:
            return self._saved
        return {**self.buffer.state_dict(), "size": self._size._asdict()}

    def check(self, saved: dict[str, Any] | None) -> None:
        """Check that the buffer of a checkpoint fits this one, if both exist.

        Args:
            saved: The result of ``ReplayBuffer.state_dict``.

        Raises:
            ValueError: If it does not fit.
        """
        if self.buffer is not None and saved is not None:
            self.buffer.check(saved)

    def restore(self, saved: dict[str, Any] | None) -> None:
        """Continue with the buffer of a checkpoint from the next update on; None empties it.

        Args:
            saved: The result of ``ReplayBuffer.state_dict``, checked.
        """
        self.buffer, self._saved = None, saved

    def _num_drawn_of(self, num_kept: int) -> int:
        """Return the number of past sequences in a pass, if ``num_kept`` are kept."""
        return min(round(self._options.buffer_share * len(self.trained)), num_kept)

    @property
    def largest_mini_batch(self) -> int:
        """Sequences in the largest mini-batch once the buffer is full, if all fit in."""
        num_envs = len(self.trained)
        num_drawn = self._num_drawn_of(self._options.buffer_rollouts * num_envs)
        return sum(-(-number // self.num_mini_batches) for number in (num_envs, num_drawn))

    def _plan(self) -> None:
        """Fix the sizes of an update's mini-batches (one exchange with other processes)."""
        self.num_drawn = self._num_drawn_of(self.buffer.num_kept if self.buffer else 0)
        numbers, parts = (len(self.trained), self.num_drawn), self.num_mini_batches
        sizes = [sum(n // parts + (i < n % parts) for n in numbers) for i in range(parts)]
        self._sizes: list[int] | torch.Tensor = sizes
        if self._ranks.together:  # filled, not copied: a copy would wait for the device
            counts = [torch.full((), size, device=self._storage.dones.device) for size in sizes]
            self._sizes = self._ranks.sum_tensor(torch.stack(counts))
        self.num_sequences: int | torch.Tensor = sum(self._sizes)
        """Sequences in a pass over all processes. Shape: ()."""

    def draw(self, num_passes: int) -> Iterator[Drawn]:
        """Draw passes: each has every training environment once, and ``num_drawn`` past sequences.

        If there is nothing to choose, no random number is drawn.
        """
        device, buffer = self._storage.dones.device, self.buffer
        draw_envs = torch.randperm if self.num_mini_batches > 1 else torch.arange
        draw_kept = torch.randperm if self.num_drawn else torch.arange
        for _ in range(num_passes):
            envs = self.trained[draw_envs(len(self.trained), device=device)]
            newest, past = self.columns_of(envs), envs[:0]
            if buffer is not None:
                kept = draw_kept(buffer.num_kept, device=device)[: self.num_drawn]
                past = buffer.past[kept]
            parts = self.num_mini_batches
            pairs = [*zip(newest.tensor_split(parts), past.tensor_split(parts), strict=True)]
            columns = torch.cat([part for pair in pairs for part in pair])
            drawn = columns.split([len(of_newest) + len(of_past) for of_newest, of_past in pairs])
            yield from map(Drawn, drawn, envs.tensor_split(parts), self._sizes)

    def columns_of(self, envs: torch.Tensor) -> torch.Tensor:
        """Return the columns, (n,), of environments, (n,), in what ``take`` returned."""
        return envs if self.buffer is None else self.buffer.newest[envs]


def _tensors(rollout: Rollout, state: HiddenState) -> dict[str, torch.Tensor]:
    """Name the tensors of sequences, in the order of checkpoints. Shape: (T or L, N, ...) each."""
    steps = steps_of(rollout.obs)
    states = enumerate(hidden_state.as_tensors(state))
    return {
        **{f"obs/{group}": steps[group] for group in sorted(steps.keys())},
        **{f"label/{name}": label for name, label in _flat(rollout.labels)},
        "episode_starts": rollout.episode_starts,
        **{f"state/{index}": tensor for index, tensor in states},
    }


def _flat(labels: Labels) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of labels with their names."""
    for name, label in labels.items():
        parts = label if isinstance(label, tuple) else (label,)
        yield from ((f"{name}/{i}" if i else name, part) for i, part in enumerate(parts))


_ROWS_AT_ONCE = 256
"""Frames that are copied at once."""


class ReplayBuffer:
    """C sequences of past rollouts and the N of the newest one, on the device of the rollouts."""

    def __init__(
        self, capacity: int, newest: Rollout, state: HiddenState, num_frames: Mapping[str, int]
    ) -> None:
        """Allocate the columns; those of the past start empty.

        Args:
            capacity: C, the most past sequences that are kept.
            newest: A rollout of N environments, whose shapes and dtypes are used.
            state: The state before it. Shape: (L, N, H), or a pair of them; None without memory.
            num_frames: Capacity of each group's pool in frames, at least T * N.
        """
        num_columns = capacity + newest.num_envs

        def columns(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.new_empty(len(tensor), num_columns, *tensor.shape[2:])

        sizes = [newest.num_steps, num_columns, *steps_of(newest.obs).batch_size[2:]]
        obs: Any = steps_of(newest.obs).apply(columns, batch_size=sizes)
        self._frames = {
            group: values.new_empty(num_frames[group], *values.shape[1:])
            for group, values in frames_of(newest.obs).items()
        }
        self._shown = {group: obs[group] for group in self._frames}
        if self._frames:
            obs = FrameObs(obs, self._frames)
        labels = {name: map_label(columns, label) for name, label in newest.labels.items()}
        copied = Rollout(obs, labels, columns(newest.episode_starts))
        self._is_newest = torch.zeros_like(copied.episode_starts)
        self.capacity = capacity
        self.rollout = replace(copied, labels={**labels, NEWEST: self._is_newest})
        """All columns, with the label ``NEWEST``. T steps of C + N sequences."""
        self.state = hidden_state.apply(columns, state)
        """The states before them. Shape: (L, C + N, H), or a pair of them."""
        self._tensors = _tensors(copied, self.state)
        device = newest.episode_starts.device
        self.newest = torch.arange(capacity, num_columns, device=device)
        """Columns of the newest rollout, by environment. Shape: (N,)."""
        self._past = torch.arange(capacity, device=device)  # the empty ones last
        self._key_limit = 1.0
        self.num_kept = 0
        """Sequences of the past that are kept."""
        self._keys = self._with_empty(torch.empty(0, dtype=torch.float64, device=device))

    @property
    def past(self) -> torch.Tensor:
        """Columns of the past sequences that are kept. Shape: (num_kept,)."""
        return self._past[: self.num_kept]

    def _with_empty(self, keys: torch.Tensor) -> torch.Tensor:
        """Complete keys of kept sequences, (n,), by those of empty columns, to (C,)."""
        # Keys are below 1, so empty columns are replaced before all others, the first one first.
        first = self.capacity + 1 - len(keys)
        return torch.cat((keys, torch.arange(first, 1, -1, dtype=keys.dtype, device=keys.device)))

    def put(self, newest: Rollout, state: HiddenState) -> None:
        """Copy a rollout into the columns of the newest one.

        If frames are separate, the host waits for their number.

        Args:
            newest: The rollout. T steps of N environments.
            state: The state before it. Shape: (L, N, H), or a pair of them; None without memory.
        """
        if isinstance(newest.obs, FrameObs):
            newest = replace(newest, obs=self._put_frames(newest.obs))
        put = _tensors(newest, state).values()
        for kept, tensor in zip(self._tensors.values(), put, strict=True):
            kept.index_copy_(1, self.newest, tensor)
        self._is_newest.zero_().index_fill_(1, self.newest, True)

    def keep_newest(self, num_steps: int, envs: torch.Tensor) -> None:
        """Let sequences of the newest rollout compete for places in the sample.

        The host waits for the device only if a pool of frames has been full. Until the last lines
        nothing has changed, so an error or Ctrl+C leaves the sample as it was.

        Args:
            num_steps: Steps that entered the loss. Later ones are never read again, as a NaN in
                them would not have been found.
            envs: The environments that compete. Shape: (M,).
        """
        num_all, device = len(envs), self._keys.device
        num = min(num_all, self.capacity)
        keys, order = torch.rand(num_all, dtype=torch.float64, device=device).sort()
        keys, envs = keys[:num], envs[order[:num]]
        worst, places = self._keys.topk(num)
        enters = keys < worst.clamp(max=self._key_limit)
        num_entered = num_all if self._key_limit == 1.0 else int(enters.sum())
        for shown in self._shown.values():  # steps that are left out refer to no frame of their own
            shown[num_steps:, self.newest] = shown[num_steps - 1, self.newest]
        entering, leaving = self.newest[envs], self._past[places]
        all_keys = self._keys.index_copy(0, places, torch.where(enters, keys, worst))
        past = self._past.index_copy(0, places, torch.where(enters, entering, leaving))
        newest = self.newest.index_copy(0, envs, torch.where(enters, leaving, entering))
        num_kept = min(self.num_kept + num_entered, self.capacity)
        self._keys, self._past, self.newest, self.num_kept = all_keys, past, newest, num_kept

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the past sequences, for a checkpoint."""
        kept = {name: values[:, self.past] for name, values in self._tensors.items()}
        frames = {}
        for group, pool in self._frames.items():
            rows, kept[f"obs/{group}"] = unique_frames(kept[f"obs/{group}"])
            frames[group] = pool[rows]
        return {
            "keys": self._keys[: self.num_kept].clone(),
            "key_limit": self._key_limit,
            "sequences": list(kept.values()),
            "frames": frames,
        }

    def check(self, state_dict: dict[str, Any]) -> None:
        """Check that the past sequences of a checkpoint fit.

        Args:
            state_dict: The result of :meth:`state_dict`.

        Raises:
            ValueError: If the sequences have other shapes.
        """
        numbers, expected = (
            [
                *((len(tensor), *tensor.shape[2:]) for tensor in sequences),
                {group: tuple(pool.shape[1:]) for group, pool in frames.items()},
            ]
            for sequences, frames in (
                (state_dict["sequences"], state_dict.get("frames", {})),
                (self._tensors.values(), self._frames),
            )
        )
        if numbers != expected:
            raise ValueError(
                f"The checkpoint's replay buffer has sequences of {numbers}, expected"
                f" {expected} (steps or layers first, then frames): set save_buffer to False to"
                " begin with an empty one."
            )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Replace the past by that of a checkpoint; if it has too many, the smallest keys stay.

        Args:
            state_dict: The result of :meth:`state_dict`.

        Raises:
            ValueError: If the sequences have other shapes. Nothing is changed then.
        """
        self.check(state_dict)
        keys, sequences = state_dict["keys"], state_dict["sequences"]
        num = min(len(keys), self.capacity)
        chosen = keys.topk(num, largest=False).indices.sort().values
        for tensor, sequence in zip(self._tensors.values(), sequences, strict=True):
            tensor[:, self._past[:num]] = sequence[:, chosen].to(tensor)
        self._key_limit, self.num_kept = state_dict.get("key_limit", 1.0), num
        self._keys = self._with_empty(keys[chosen].to(self._keys.device))
        self._make_room(dict.fromkeys(self._frames, 0))
        for group, shown in self._shown.items():
            rows, shown[:, self.past] = unique_frames(shown[:, self.past])
            places = torch.arange(len(rows), device=rows.device)
            _copy_rows(
                state_dict["frames"][group].to(rows.device), rows, self._frames[group], places
            )

    def _put_frames(self, newest: FrameObs) -> TensorDict:
        """Copy a rollout's frames into the pools; return its steps (T, N) with their new rows."""
        steps = newest.steps.copy()
        once = {group: unique_frames(steps[group]) for group in self._shown}
        self._make_room({group: len(rows) for group, (rows, _) in once.items()})
        for group, (rows, places) in once.items():
            free = torch.ones(len(self._frames[group]), dtype=torch.bool, device=rows.device)
            free[self._shown[group][:, self.past].flatten()] = False
            targets = free.nonzero().squeeze(1)[: len(rows)]
            _copy_rows(newest.frames[group], rows, self._frames[group], targets)
            steps[group] = targets[places]
        return steps

    def _make_room(self, needed: Mapping[str, int]) -> None:
        """Drop the sequences with the largest keys until the pools have the needed free frames."""
        num_kept = self.num_kept
        keys, order = self._keys[:num_kept].sort()
        for group, number in needed.items():
            shown = self._shown[group][:, self.past]
            taken = (1 + (shown[1:] != shown[:-1]).sum(0)).unsqueeze(-1).flatten(1).sum(1)
            room = len(self._frames[group]) - number
            num_kept = min(num_kept, int((taken[order].cumsum(0) <= room).sum()))
        if num_kept == self.num_kept:
            return
        limit = min(self._key_limit, float(keys[num_kept]))
        stay, go = order[:num_kept].sort().values, order[num_kept:]
        past = torch.cat((self._past[stay], self._past[go], self._past[self.num_kept :]))
        keys = self._with_empty(self._keys[stay])
        self._keys, self._past, self.num_kept, self._key_limit = keys, past, num_kept, limit


def _copy_rows(
    source: torch.Tensor, rows: torch.Tensor, target: torch.Tensor, places: torch.Tensor
) -> None:
    """Copy rows of one tensor into places of another, a few at a time: indexing makes copies."""
    for some, theirs in zip(rows.split(_ROWS_AT_ONCE), places.split(_ROWS_AT_ONCE), strict=True):
        target[theirs] = source[some]

"""All-or-nothing updates on all ranks: the code around an algorithm's loop.

::

    @whole_or_nothing                 # keeps everything that an update changes
    def update(self):
        ...
        return metrics                # fetched in one transfer; then self._advance(fetched)

After an error or Ctrl+C, or NaN or inf in the result of any rank, everything is as before the
update and the rollout is dropped. After out of memory the update is made again, in smaller pieces.
"""

from __future__ import annotations

import contextlib
import functools
import math
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from rsl_tbptt.algorithms.find_nan import Source, find_source
from rsl_tbptt.algorithms.health import HealthWatch
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.distributed import Ranks

OUT_OF_MEMORY = (
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "Triton Error [CUDA]: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",  # no memory for its handle
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
)
"""Messages of CUDA and its libraries, which torch raises as a RuntimeError."""


Metrics = Mapping[str, torch.Tensor]
"""Metrics of an update by name, on the device. Shape: () each."""


def whole_or_nothing(update: Callable[[Any], Metrics]) -> Callable[[Any], dict[str, float]]:
    """Make a method of an algorithm an update that happens completely or not at all.

    The method trains and returns its metrics. Around it, the algorithm's ``transaction`` keeps
    everything, fetches the metrics in the update's only transfer, and calls ``_advance`` with them,
    which advances the schedules and returns the metrics to log. ``_advance`` may end with changes
    that cannot be undone, since nothing after it fails. The storage is cleared in any case.

    Args:
        update: The method.

    Returns:
        A method that returns what the runner logs, the result of ``_conclude``.
    """

    @functools.wraps(update)
    def whole_update(algorithm: Any) -> dict[str, float]:
        transaction: Transaction = algorithm.transaction
        is_made = not transaction.has_rollout()
        while not is_made:
            transaction.keep()
            try:
                is_made = transaction.conclude(update(algorithm))
            except BaseException as error:
                transaction.restore_after(error)  # raises, unless the update is to be made again
        return algorithm._conclude()

    return whole_update


class Transaction:
    """Keeps what an update changes, and undoes an update that fails."""

    def __init__(
        self, algorithm: Any, modules: Sequence[nn.Module], max_micro_batches: int
    ) -> None:
        """Register what an update may change.

        Args:
            algorithm: The algorithm, with its extensions and optimisers.
            modules: The modules that an update may change.
            max_micro_batches: Sequences in the largest mini-batch.
        """
        self._algorithm, self._storage, options = algorithm, algorithm.storage, algorithm.options
        self._ranks: Ranks = algorithm.ranks
        self.modules: Sequence[nn.Module] = modules
        self.optimizers: Sequence[torch.optim.Optimizer] = algorithm.optimizers
        self._rollback = Rollback(modules, self.optimizers, algorithm.kept_objects)
        self._skips, self._max_in_a_row = options.non_finite == "skip", options.max_skipped_updates
        self._num_skipped = self._num_in_a_row = 0
        self._warned: set[str] = set()
        self._watch = HealthWatch()
        self._max_micro_batches = max_micro_batches
        self._before_rollout: list[dict[str, Any]] = []
        self.num_micro_batches = options.num_micro_batches
        """Minimum number of micro-batches that a mini-batch is split into."""
        self.logged: dict[str, float] = {}
        """Metrics of the last update; only ``skipped_updates`` (total so far) if it was undone."""

    def begin_rollout(self) -> None:
        """Keep the states of extensions, which a dropped rollout restores."""
        self._before_rollout = self._states_of_extensions()

    def has_rollout(self) -> bool:
        """Return whether a rollout is complete; drop one that is not, with a warning.

        After an error or Ctrl+C in the midst of a rollout, the next iteration completes that one
        and begins another.
        """
        step, num_steps = self._storage.step, self._storage.num_transitions_per_env
        if step == num_steps:
            return True
        warnings.warn(
            f"The rollout has {step} of {num_steps} steps, since an earlier one broke off: it is"
            " dropped without an update.",
            stacklevel=4,
        )
        self.drop_rollout()
        self._num_skipped += 1
        self.logged = {"skipped_updates": float(self._num_skipped)}
        return False

    def keep(self) -> None:
        """Copy everything that an update may change."""
        models = self._algorithm.stateful_models().values()
        self._states = [(model, model.get_hidden_state()) for model in models]
        self._before_update = self._states_of_extensions()
        self._rollback.keep()

    def restore(self) -> None:
        """Restore everything from the copy."""
        self._rollback.restore()
        self._restore_extensions(self._before_update)
        for model, state in self._states:
            model.reset(hidden_state=state)

    @contextlib.contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Restore everything if the work inside, such as loading a checkpoint, fails."""
        self.keep()
        try:
            yield
        except BaseException:
            self.restore()
            raise

    def conclude(self, metrics: Metrics) -> bool:
        """Fetch the metrics and advance, or undo an update with NaN or inf; clear the storage.

        Returns:
            True: the update has ended.

        Raises:
            ValueError: If the update met NaN or inf and must not be skipped.
        """
        fetched = self._fetch(metrics)
        if fetched is not None:
            derived = {**self._watch(fetched), "skipped_updates": float(self._num_skipped)}
            self.logged = {**self._algorithm._advance(fetched), **derived}
            self._num_in_a_row = 0
            self._storage.clear()
            return True
        self.restore()
        self._skip(self._source())
        self.drop_rollout()
        return True

    def restore_after(self, error: BaseException) -> None:
        """Undo an update that has failed; return if it is to be made again, in smaller pieces.

        Raises:
            torch.OutOfMemoryError: If one sequence at a time takes too much memory, or if several
                ranks train together.
            BaseException: Any other error.
        """
        out_of_memory = is_out_of_memory(error)
        if out_of_memory:  # first, as the frames hold the activations
            traceback.clear_frames(error.__traceback__)
        self.restore()
        more = min(2 * self.num_micro_batches, self._max_micro_batches)
        can_be_smaller = more > self.num_micro_batches
        if out_of_memory and can_be_smaller and not self._ranks.together:
            self.num_micro_batches = more
            warnings.warn(
                f"The update ran out of memory and is made again with {more} micro-batches:"
                " set num_micro_batches to that.",
                stacklevel=3,
            )
            self._algorithm.recorder.forget()  # recordings hold memory, too
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            return
        self.drop_rollout()
        if not out_of_memory:
            raise error
        advice = (
            ", and only a single process makes it again with more: set num_micro_batches"
            f" to {more}."
            if can_be_smaller
            else ", one sequence at a time: lower gradient_length, num_steps_per_env or"
            " num_envs, or buffer_gb in distillation."
        )
        failed = f"The update ran out of memory with {self.num_micro_batches} micro-batches"
        raise torch.OutOfMemoryError(failed + advice) from error

    def _states_of_extensions(self) -> list[dict[str, Any]]:
        own = self._algorithm.own_extensions  # whose tensors an update may place elsewhere
        return [
            tree_map_only(torch.Tensor, torch.clone, extension.state)
            if extension in own
            else dict(extension.state)
            for extension in self._algorithm.extensions
        ]

    def _restore_extensions(self, states: Sequence[Mapping[str, Any]]) -> None:
        for extension, state in zip(self._algorithm.extensions, states, strict=False):
            extension.state = dict(state)

    def _fetch(self, metrics: Metrics) -> dict[str, float] | None:
        """Fetch metrics from the device, in the update's only transfer.

        Returns:
            The metrics as numbers; None on all ranks if they, or the results of the update, are
            not finite on some rank.
        """
        values = torch.stack(list(metrics.values()))
        size = self._ranks.sum_tensor(self._rollback.size() + values.abs().sum())
        *fetched, size = torch.cat((values, size.view(1))).tolist()
        return dict(zip(metrics, fetched, strict=True)) if math.isfinite(size) else None

    def _source(self) -> Source:
        """Find the source of NaN or inf in an update that was undone, on all ranks together."""
        # The rollout is larger than a mini-batch; its micro-batches are to be as small as there.
        num_mini_batches = -(-self._storage.num_envs // self._max_micro_batches)
        parts = self.num_micro_batches * num_mini_batches
        return find_source(
            self._storage.observations,
            self._algorithm._inputs(),
            lambda: self._algorithm._add_gradients_of(slice(None), parts),
            self._ranks,
        )

    def _skip(self, source: Source) -> None:
        """Count an update that met NaN or inf and was undone; warn once per kind of source.

        Raises:
            ValueError: If none may be skipped, or too many in a row were.
        """
        undone = "Parameters, optimiser and normaliser are as before the update and the rollout was"
        resume = "repair the source, then call learn() again or resume from the last checkpoint."
        if not self._skips:
            raise ValueError(f"The update {source}. {undone} dropped: {resume}")
        self._num_skipped += 1
        self._num_in_a_row += 1
        if self._num_in_a_row >= self._max_in_a_row:
            self._num_in_a_row = 0
            raise ValueError(
                f"{self._max_in_a_row} updates in a row met values they cannot use, as many as"
                f" max_skipped_updates allows. The last {source}. {undone} dropped: {resume}"
            )
        if source.kind not in self._warned:
            self._warned.add(source.kind)
            warnings.warn(
                f"An update {source}. It is skipped. {undone} dropped; training goes on."
                f" {self._max_in_a_row} skipped in a row end it (max_skipped_updates).",
                stacklevel=5,
            )
        self.logged = {"skipped_updates": float(self._num_skipped)}

    def drop_rollout(self) -> None:
        """Drop the stored steps, if any, without an update.

        All robots continue from their states, which are cleared if they are not finite.
        """
        if self._storage.step == 0:
            return
        self._restore_extensions(self._before_rollout)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        for model in self._algorithm.stateful_models().values():
            model.reset(hidden_state=hidden_state.clear_non_finite(model.get_hidden_state()))
        self._storage.clear()


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error says that the device is out of memory."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in OUT_OF_MEMORY)


class Rollback:
    """Copy of all that an update changes, to restore it; every update reuses its memory.

    Optimisers must change their tensors in place, as torch's do.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        others: Callable[[], Iterable[Any]],
    ) -> None:
        """Register what an update may change.

        Args:
            modules: Modules whose parameters and buffers are kept.
            optimizers: Optimisers whose state and options are kept.
            others: Returns other objects, whose attributes are kept, or None in place of some.
        """
        self.modules, self.optimizers, self._others = modules, optimizers, others
        # rsl_rl's distributions hold their last mean, with a graph behind it.
        self._distributions = [getattr(module, "distribution", None) for module in modules]
        self._copies: list[torch.Tensor] = []

    @torch.no_grad()
    def keep(self) -> None:
        """Copy the current state."""
        others = [part for part in (*self._distributions, *self._others()) if part is not None]
        self._attributes = [(part, dict(vars(part))) for part in others]
        self._states = [_two_levels(optimizer.state) for optimizer in self.optimizers]
        self._groups = [[dict(g) for g in optimizer.param_groups] for optimizer in self.optimizers]
        live = self._live()
        if _forms(self._copies) != _forms(live):
            self._copies = [torch.empty_like(tensor) for tensor in live]
        torch._foreach_copy_(self._copies, live)

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the copied state; drop the gradients, and the graphs in distributions."""
        for part, kept in self._attributes:
            vars(part).update(kept)
        torch._foreach_copy_(self._live(), self._copies)
        kept_of_each = zip(self.optimizers, self._states, self._groups, strict=True)
        for optimizer, state, groups in kept_of_each:
            optimizer.state.clear()
            optimizer.state.update(_two_levels(state))
            for group, kept in zip(optimizer.param_groups, groups, strict=True):
                group.update(kept)
            optimizer.zero_grad()

    @torch.no_grad()
    def size(self) -> torch.Tensor:
        """Return a number that is finite if the current state is. Shape: ().

        Entries of buffers that were not finite before the update do not count: a constant, such as
        the mask of an attention, may hold -inf.
        """
        states = _tensors(_entries(optimizer.state for optimizer in self.optimizers))
        # Step counts, which have no dimension, may be on another device.
        tensors, buffers = [tensor for tensor in states if tensor.dim() > 0], []
        for live, kept in zip(self._of_modules(), self._copies, strict=False):
            if isinstance(live, nn.Parameter):
                tensors.append(live)
            elif live.is_floating_point():
                buffers.append((live.flatten(), kept.flatten()))
        if buffers:
            now, before = map(torch.cat, zip(*buffers, strict=True))
            tensors.append(now.masked_fill(~before.isfinite(), 0))
        # A norm shows NaN and inf as well as each element does; without squares, which overflow.
        return torch.stack(torch._foreach_norm(tensors, 1)).sum()

    def _live(self) -> list[torch.Tensor]:
        """Return the tensors of modules and those that the optimisers had when they were kept."""
        groups = chain.from_iterable(self._groups)
        return [*self._of_modules(), *_tensors(_entries(self._states)), *_tensors(groups)]

    def _of_modules(self) -> list[torch.Tensor]:
        """Return parameters and buffers; those of a shared encoder appear once."""
        parameters = chain.from_iterable(module.parameters() for module in self.modules)
        buffers = chain.from_iterable(module.buffers() for module in self.modules)
        return list(dict.fromkeys([*parameters, *buffers]))


def _two_levels(state: Mapping[Any, Mapping[str, Any]]) -> dict[Any, dict[str, Any]]:
    """Copy the state of an optimiser without its tensors."""
    return {parameter: dict(entries) for parameter, entries in state.items()}


def _entries(states: Iterable[Mapping[Any, Mapping[str, Any]]]) -> Iterator[Mapping[str, Any]]:
    """Return what optimisers know of each parameter."""
    return (entry for state in states for entry in state.values())


def _tensors(entries: Iterable[Mapping[str, Any]]) -> list[torch.Tensor]:
    """Return the tensors in mappings, such as moments in a parameter's entry, a rate in a group."""
    values = (value for entry in entries for value in entry.values())
    return [value for value in values if isinstance(value, torch.Tensor)]


def _forms(tensors: Iterable[torch.Tensor]) -> list[tuple[torch.Size, torch.dtype, torch.device]]:
    return [(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors]

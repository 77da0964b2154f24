"""All-or-nothing updates on all ranks: the code around an algorithm's loop.

::

    for update in transaction:           # repeated only after out of memory
        with update:                     # keeps everything that an update changes
            ...
            with update.alone():         # work of one rank between two exchanges
                ...
            logged = update.commit(...)  # the one transfer; all ranks learn of any rank's error
            ...                          # schedules advance

The end of the inner block decides. After an error or Ctrl+C inside, or NaN or inf in the result of
any rank, everything is as before the update and the rollout is dropped.
"""

from __future__ import annotations

import contextlib
import math
import traceback
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.algorithms.health import HealthWatch
from rsl_tbptt.algorithms.options import Options
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.memory import MemoryPlan, Sizes, plan_memory

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


class UpdateUndoneError(Exception):
    """Raised to leave an update that is not finite on some rank, or has failed there."""


class Transaction:
    """Runs the updates of an algorithm and undoes those that fail."""

    def __init__(
        self,
        storage: RolloutStorage,
        modules: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        options: Options,
        ranks: Ranks,
        *,
        others: Callable[[], Iterable[Any]],
        stateful_models: Callable[[], Iterable[Any]],
        add_gradients: Callable[[slice, int], None],
        inputs: Callable[[], Inputs],
        max_micro_batches: int,
        on_drop: Callable[[int], None],
    ) -> None:
        """Take everything that an update changes.

        Args:
            storage: The storage of rollouts; cleared when an update ends.
            modules: Modules whose parameters and buffers are kept.
            optimizers: Optimisers whose state and options are kept.
            options: Options of the algorithm.
            ranks: The processes that train together.
            others: Returns other objects that an update changes. It may replace their attributes,
                and must not change them in place.
            stateful_models: Returns models whose states continue after an update that was undone.
            add_gradients: Computes the gradient of this rank on some environments, in a number of
                micro-batches.
            inputs: Returns the inputs of the update, to find the source of NaN or inf.
            max_micro_batches: Sequences in the largest mini-batch.
            on_drop: Is called with the number of steps of a dropped rollout, to undo its other
                changes and to let other states continue.
        """
        self._storage, self.optimizers, self._ranks = storage, optimizers, ranks
        self.modules, self._rollback = modules, Rollback(modules, optimizers, others)
        self.stateful_models, self._on_drop = stateful_models, on_drop
        self._add_gradients, self._inputs = add_gradients, inputs
        self._skips, self._max_in_a_row = options.non_finite == "skip", options.max_skipped_updates
        self._num_skipped = self._num_in_a_row = 0
        self._warned: set[str] = set()
        self._watch = HealthWatch()
        self._error: Exception | None = None
        self._max_micro_batches = max_micro_batches
        self._budget_gb, self._has_updated = options.memory_budget_gb, False
        self.num_micro_batches = options.num_micro_batches
        """Minimum number of micro-batches that a mini-batch is split into."""
        self.logged: dict[str, float] = {}
        """Metrics of the last update; only ``skipped_updates`` (total so far) if it was undone."""

    def __iter__(self) -> Iterator[Transaction]:
        """Yield itself for one update, and again each time that ran out of memory."""
        self._again = True
        while self._again:
            self._again = False
            yield self

    def __enter__(self) -> Transaction:
        """Copy everything that the update may change."""
        self._error, self._committed, self._has_updated = None, False, True
        self._states = [(model, model.get_hidden_state()) for model in self.stateful_models()]
        self._rollback.keep()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        """Clear the storage; undo the update first, unless it was committed without an error.

        Returns:
            Whether the error is handled: the update is skipped or repeated.

        Raises:
            ValueError: If the update met NaN or inf and must not be skipped.
            torch.OutOfMemoryError: If one sequence at a time takes too much memory.
            RuntimeError: If the update failed on another rank; it names the rank and the reason.
        """
        if error is None and self._committed:
            self._num_in_a_row = 0
            self._storage.clear()
            return True
        for each in (error, self._error):
            if each and is_out_of_memory(each):  # first, as the frames hold the activations
                traceback.clear_frames(each.__traceback__)
        self._rollback.restore()
        for model, state in self._states:
            model.reset(hidden_state=state)
        try:
            if isinstance(error, UpdateUndoneError):
                self._explain()
            elif is_out_of_memory(error) and not self._ranks.together:
                self._make_smaller(error)
            else:
                return False
        finally:
            if not self._again:
                self.drop_rollout()
        return True

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Run work of this rank alone between two exchanges; nothing inside may exchange.

        With several ranks, a rank that fails continues as if it had not, so that no rank waits for
        it; ``commit`` tells all of them.
        """
        try:
            yield
        except Exception as error:
            if not self._ranks.together:
                raise
            self._error = self._error or error

    def commit(self, metrics: Mapping[str, torch.Tensor]) -> dict[str, float]:
        """Fetch metrics from the device, in the update's only transfer.

        Args:
            metrics: Metrics by name. Shape: () each.

        Returns:
            The same as numbers.

        Raises:
            UpdateUndoneError: If any rank failed, or its metrics or results are not finite.
        """
        values = torch.stack(list(metrics.values()))
        finite = self._rollback.is_finite() & torch.isfinite(values).all()
        broken = torch.full_like(finite, self._error is not None) | ~finite
        broken = self._ranks.sum_tensor(broken.to(values.dtype).view(1))
        *fetched, broken = torch.cat((values, broken)).tolist()
        if broken:
            raise UpdateUndoneError
        self._committed = True
        return dict(zip(metrics, fetched, strict=True))

    def log(self, metrics: Mapping[str, float]) -> None:
        """Report metrics, those derived from them, and the number of skipped updates so far."""
        skipped = float(self._num_skipped)
        self.logged = {**metrics, **self._watch(metrics), "skipped_updates": skipped}

    def plan_memory(self, sizes: Sizes, parameters: Sequence[nn.Parameter]) -> MemoryPlan:
        """Predict the memory of an update from the gradient on parts of the last rollout.

        Args:
            sizes: Sizes of mini-batches and replay buffer.
            parameters: Trained parameters.

        Raises:
            ValueError: If there has been no complete rollout yet.
        """
        step, num_steps = self._storage.step, self._storage.num_transitions_per_env
        if step not in (0, num_steps) or not (step or self._has_updated):
            raise ValueError(
                f"memory_plan() was called at step {step} of {num_steps}, expected after a whole"
                " rollout: the plan is made from what is stored."
            )
        with self._nothing_changes():
            return plan_memory(
                lambda num_envs, parts: self._add_gradients(slice(0, num_envs), parts),
                sizes,
                parameters,
            )

    def fit_budget(self, make_plan: Callable[[], MemoryPlan]) -> None:
        """Choose the micro-batches for ``memory_budget_gb``, before the first update.

        Raises:
            ValueError: If the budget is too small on some rank.
        """
        budget = self._budget_gb
        if budget is not None:
            self.num_micro_batches = self._ranks.run_together(
                lambda: make_plan().num_micro_batches(budget * 1e9)
            )
            self._budget_gb = None  # only now: a refused budget is to be refused again

    @contextlib.contextmanager
    def _nothing_changes(self) -> Iterator[None]:
        """Restore everything that changes inside, random numbers included; drop gradients."""
        devices = {p.device for module in self._rollback.modules for p in module.parameters()}
        self._rollback.keep()
        try:
            with torch.random.fork_rng([device for device in devices if device.type == "cuda"]):
                yield
        finally:
            self._rollback.restore()

    def _explain(self) -> None:
        """Raise or warn on all ranks why the update was undone.

        Raises:
            Exception: The error of this rank.
            RuntimeError: If another rank failed; it names that rank's error.
        """
        self.logged = {}
        own = self._error and f"{type(self._error).__name__}: {self._error}"
        failed, out_of_memory = zip(
            *self._ranks.gather((own, is_out_of_memory(self._error))), strict=True
        )
        if any(out_of_memory):
            self._make_smaller(self._error)
            return
        if self._error is not None:
            raise self._error
        for rank, reason in enumerate(failed):
            if reason is not None:
                raise RuntimeError(
                    f"Rank {rank} could not compute its part of the update ({reason}), which was"
                    " undone on all ranks."
                )
        # The rollout is larger than a mini-batch; its micro-batches are to be as small as there.
        num_mini_batches = -(-self._storage.num_envs // self._max_micro_batches)
        num_micro_batches = self.num_micro_batches * num_mini_batches
        source = find_source(
            self._storage.observations,
            self._inputs(),
            lambda: self._add_gradients(slice(None), num_micro_batches),
            self._ranks,
        )
        self._skip(source)
        self.logged = {"skipped_updates": float(self._num_skipped)}

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
                stacklevel=4,
            )

    def _make_smaller(self, error: BaseException | None) -> None:
        """Repeat the update with twice the micro-batches.

        Args:
            error: The error for lack of memory, or None if it was on another rank.

        Raises:
            torch.OutOfMemoryError: If micro-batches cannot be smaller.
        """
        if self.num_micro_batches >= self._max_micro_batches:
            raise torch.OutOfMemoryError(
                f"The update ran out of memory with {self.num_micro_batches} micro-batches, one"
                " sequence at a time: lower gradient_length, num_steps_per_env or num_envs, or"
                " buffer_gb in distillation."
            ) from error
        self.num_micro_batches = min(2 * self.num_micro_batches, self._max_micro_batches)
        self._again = True
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        warnings.warn(
            f"The update ran out of memory and is made again with {self.num_micro_batches}"
            " micro-batches: set num_micro_batches to that, or memory_budget_gb to what is free.",
            stacklevel=4,
        )

    def drop_rollout(self) -> None:
        """Drop the stored steps, if any, without an update.

        All robots continue from their states, which are cleared if they are not finite.
        """
        if self._storage.step == 0:
            return
        self._on_drop(self._storage.step)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        for model in self.stateful_models():
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
        """Take everything that an update changes.

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
        others = [each for each in (*self._distributions, *self._others()) if each is not None]
        self._attributes = [(each, dict(vars(each))) for each in others]
        self._states = [_two_levels(optimizer.state) for optimizer in self.optimizers]
        self._groups = [[dict(g) for g in optimizer.param_groups] for optimizer in self.optimizers]
        live = [*self._of_modules(), *_tensors(self._states)]
        if _forms(self._copies) != _forms(live):
            self._copies = [torch.empty_like(tensor) for tensor in live]
        torch._foreach_copy_(self._copies, live)

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the copied state; drop the gradients, and the graphs in distributions."""
        for each, kept in self._attributes:
            vars(each).update(kept)
        # Buffers are listed again: rsl_rl's normaliser replaces its tensors.
        live = [*self._of_modules(), *_tensors(self._states)]
        torch._foreach_copy_(live, self._copies)
        kept_of_each = zip(self.optimizers, self._states, self._groups, strict=True)
        for optimizer, state, groups in kept_of_each:
            optimizer.state.clear()
            optimizer.state.update(_two_levels(state))
            for group, kept in zip(optimizer.param_groups, groups, strict=True):
                group.update(kept)
            optimizer.zero_grad()

    @torch.no_grad()
    def is_finite(self) -> torch.Tensor:
        """Return whether the current state is finite. Shape: (), bool.

        Entries of buffers that were not finite before the update do not count: a constant, such as
        the mask of an attention, may hold -inf.
        """
        of_modules = [
            live if isinstance(live, nn.Parameter) else live.masked_fill(~kept.isfinite(), 0)
            for live, kept in zip(self._of_modules(), self._copies, strict=False)
        ]
        states = _tensors(optimizer.state for optimizer in self.optimizers)
        # Step counts, which have no dimension, may be on another device.
        tensors = [*of_modules, *(tensor for tensor in states if tensor.dim() > 0)]
        # A sum shows NaN and inf as well as each element does, and takes a tenth of the time.
        sums = [tensor.sum() for tensor in tensors if tensor.is_floating_point()]
        return torch.isfinite(torch.stack(sums)).all()

    def _of_modules(self) -> list[torch.Tensor]:
        """Return parameters and buffers; those of a shared encoder appear once."""
        parameters = chain.from_iterable(module.parameters() for module in self.modules)
        buffers = chain.from_iterable(module.buffers() for module in self.modules)
        return list(dict.fromkeys([*parameters, *buffers]))


def _two_levels(state: Mapping[Any, Mapping[str, Any]]) -> dict[Any, dict[str, Any]]:
    """Copy the state of an optimiser without its tensors."""
    return {parameter: dict(entries) for parameter, entries in state.items()}


def _tensors(states: Iterable[Mapping]) -> list[torch.Tensor]:
    """Return the tensors in the states of optimisers."""
    entries = (entry for state in states for entry in state.values())
    values = (value for entry in entries for value in entry.values())
    return [value for value in values if isinstance(value, torch.Tensor)]


def _forms(tensors: Iterable[torch.Tensor]) -> list[tuple[torch.Size, torch.dtype, torch.device]]:
    return [(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors]


_MAX_NAMED = 8


@dataclass(frozen=True)
class Source:
    """The source of a NaN or inf."""

    kind: str
    """Name of the value that was not finite, such as "observation group 'policy'"."""

    details: str = ""
    """Environments, first step, and the fix."""

    event: str = "met NaN or inf in"
    """What happened to the update, the words before ``kind``."""

    def __str__(self) -> str:
        """Return a clause for a message."""
        return f"{self.event} {self.kind}{self.details}"


def check_nan(obs: TensorDict, rewards: torch.Tensor, dones: torch.Tensor) -> None:
    """Check the results of an environment step (waits for the device, as rsl_rl's check does).

    Args:
        obs: Observations, batch size (N,).
        rewards: Shape (N,).
        dones: Which episodes ended. Shape: (N,).

    Raises:
        ValueError: If anything is NaN; it names the value and the environments.
    """
    groups = {f"observation group '{key}'": value for key, value in obs.items()}
    for name, values in {**groups, "rewards": rewards, "dones": dones}.items():
        bad = torch.isnan(values)
        if bad.any():
            raise ValueError(
                f"The step of the environment gave NaN in {name} of"
                f" {_environments(bad[None])}: repair the environment, or let"
                " non_finite 'skip' drop such rollouts."
            )


@dataclass(frozen=True)
class Inputs:
    """Values of a rollout that an update reads."""

    groups: Container[str]
    """Observation groups."""

    recorded: Mapping[str, torch.Tensor]
    """Other values by name, each (T, N, D); values derived from others come after them."""

    weights: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Weights of samples, by option, each (T, N)."""


def find_source(
    observations: TensorDict,
    inputs: Inputs,
    add_gradients: Callable[[], object],
    ranks: Ranks,
) -> Source:
    """Find the source of an update's NaN or inf: first in its inputs, then in gradients.

    Slow, with host synchronisation and one more gradient of the whole rollout: only for messages.
    Several processes search together and find the same.

    Args:
        observations: Observations of the rollout, batch size (T, N).
        inputs: The update's inputs.
        add_gradients: Computes the gradient of the update's loss on the whole rollout.
        ranks: The processes that search together.

    Returns:
        The first of: a value that is not finite, one too large to be squared, one that cannot be a
        weight, environments whose own gradients are not finite, divergence.
    """
    seen = {key: value for key, value in observations.items() if key in inputs.groups}
    named = {f"observation group '{key}'": value for key, value in seen.items()}
    read = _in_what_was_read({**named, **inputs.recorded})
    found = _of_any_rank(read or _in_weights(inputs.weights), ranks)
    if found is None:  # on all ranks, so that all compute gradients, which exchange sums
        found = _of_any_rank(_in_gradients(list(seen.values()), add_gradients), ranks)
    return found or _DIVERGENCE


_DIVERGENCE = Source(
    "the gradients after an optimiser step of this update",
    ": it diverged, so lower learning_rate or max_grad_norm",
)


def _of_any_rank(source: Source | None, ranks: Ranks) -> Source | None:
    """Return the finding of the first rank that found something, with the rank's number."""
    of_ranks = ranks.gather(source)
    found = [(rank, source) for rank, source in enumerate(of_ranks) if source is not None]
    if not found or len(of_ranks) == 1:
        return source
    rank, source = found[0]
    return replace(source, details=f"{source.details}, on rank {rank}")


def _in_what_was_read(named: Mapping[str, Any]) -> Source | None:
    """Return the first value that is not finite, otherwise the first that is too large."""
    for name, values in named.items():
        bad = ~torch.isfinite(values)
        if bad.any():
            return Source(name, _where(bad))
    for name, values in named.items():
        if values.is_floating_point():
            bad = values.abs() > math.sqrt(torch.finfo(values.dtype).max / values.numel())
            if bad.any():
                value = values[bad][0].item()
                return Source(name, f"{_where(bad)} ({value:g}, too large to be squared)")
    return None


def _in_weights(named: Mapping[str, torch.Tensor]) -> Source | None:
    """Return the first weight that is not finite or below 0."""
    for name, values in named.items():
        bad = ~(torch.isfinite(values) & (values >= 0))
        if bad.any():
            rule = f"is {values[bad][0].item():g}, expected a finite number of at least 0,"
            in_envs = _where(bad).replace(" of", " in", 1)
            return Source(name, f" {rule}{in_envs}", "was refused:")
    return None


def _in_gradients(observations: list[Any], add_gradients: Callable[[], object]) -> Source | None:
    """Return the environments whose gradient is not finite.

    The gradient with respect to the observations shows all of them at once, since no environment
    contributes to another one's gradient.
    """
    leaves = [value for value in observations if value.is_floating_point()]
    try:
        for leaf in leaves:
            leaf.requires_grad_()
        add_gradients()
        gradients = [
            leaf.grad.reshape(*leaf.shape[:2], -1) for leaf in leaves if leaf.grad is not None
        ]
    finally:
        for leaf in leaves:
            leaf.requires_grad_(False).grad = None
    bad = ~torch.isfinite(torch.cat(gradients, dim=-1)) if gradients else torch.zeros(1, 1, 1)
    if not bad.any():
        return None
    return Source("the gradients", f" of {_environments(bad)} (what was recorded is finite)")


def _where(bad: torch.Tensor) -> str:
    """Describe where ``bad`` (T, N, ...), bool, is True."""
    first_step = int(bad.flatten(1).any(1).nonzero()[0])
    return f" of {_environments(bad)}, first at step {first_step} of the rollout"


def _environments(bad: torch.Tensor) -> str:
    envs = bad.reshape(*bad.shape[:2], -1).any(-1).any(0).nonzero().flatten().tolist()
    more = f" and {len(envs) - _MAX_NAMED} more" if len(envs) > _MAX_NAMED else ""
    return f"environments {envs[:_MAX_NAMED]}{more}"

"""What an update of either algorithm goes through, whatever it computes.

::

    keep -> gradients (``attempt``) and steps -> normalisers -> fetch metrics -> conclude
                                                                  |
                            NaN, inf or an error: undo, drop the rollout, say where from

With several processes none leaves in the middle, as the others would wait for it: one whose
gradient fails goes on with what it has, and all of them learn of it with the metrics.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import torch
from rsl_rl.storage import RolloutStorage
from torch import nn

from rsl_tbptt.algorithms.update.health import Watch
from rsl_tbptt.algorithms.update.memory_plan import MemoryPlan, Sizes, plan_memory
from rsl_tbptt.algorithms.update.non_finite import NonFiniteUpdates, find_source
from rsl_tbptt.algorithms.update.options import Options
from rsl_tbptt.algorithms.update.out_of_memory import explain, is_out_of_memory
from rsl_tbptt.algorithms.update.rollback import Rollback
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.distributed import Ranks

Result = TypeVar("Result")

Metrics = Mapping[str, torch.Tensor]
"""What an update reports, by name, on the device. Shape: () each."""


class Learner(Protocol):
    """What an algorithm computes in an update."""

    num_micro_batches: int
    """At least so many parts of a mini-batch are run one after the other."""

    def train(self, session: UpdateSession) -> Metrics | None:
        """Go through all epochs and step the optimisers; None if anything turned out NaN.

        What only this process does between two exchanges with others goes through ``attempt``.
        """
        ...

    def conclude(self, metrics: dict[str, float]) -> dict[str, float]:
        """Take over what follows from an update that holds; return what is logged of it.

        What may fail comes first: the update is then undone.
        """
        ...

    def drop_rollout(self) -> None:
        """Take back what the rollout changed beside the models' states."""
        ...

    def add_gradients(self, envs: slice, num_micro_batches: int) -> None:
        """Compute the current parameters' gradient on some environments, into ``.grad``."""
        ...

    def begin_training(self) -> None:
        """Make what playing does not need; ValueError if an option does not suit the sizes."""
        ...

    def stateful_models(self) -> Sequence[Any]:
        """Return the models whose hidden states live through updates."""
        ...

    def observed_groups(self) -> set[str]:
        """Return the observation groups that an update reads."""
        ...

    def recorded(self) -> dict[str, torch.Tensor]:
        """Return what else it reads, by name, (T, N, D) each; what follows from others is last."""
        ...

    def weights(self) -> dict[str, torch.Tensor]:
        """Return what samples weigh, by option, (L, N) each for the first L steps."""
        ...

    def modules(self) -> list[nn.Module]:
        """Return modules whose parameters and buffers an update changes."""
        ...

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return what steps them."""
        ...

    def trained_parameters(self) -> list[nn.Parameter]:
        """Return what the optimisers step."""
        ...

    def sizes(self) -> Sizes:
        """Return what decides on the memory of an update, with a rollout inside."""
        ...

    def as_if_rolled_out(self) -> AbstractContextManager[None]:
        """Have a blank rollout inside where there is none yet."""
        ...


class UpdateSession:
    """Runs the updates of a learner; each is whole or not at all, on all ranks."""

    def __init__(
        self,
        learner: Learner,
        storage: RolloutStorage,
        options: Options,
        ranks: Ranks,
    ) -> None:
        """Take what is trained.

        Args:
            learner: What computes.
            storage: Where rollouts are stored.
            options: Of the algorithm; those that all algorithms share.
            ranks: The processes that come to the same end.
        """
        self._learner, self._storage, self._ranks = learner, storage, ranks
        self._memory_budget_gb = options.memory_budget_gb
        self._rollback = Rollback(learner.modules(), learner.optimizers())
        self._non_finite = NonFiniteUpdates(options.non_finite, options.max_skipped_updates)
        self._watch = Watch()
        self._error: Exception | None = None
        self.started = False
        """Whether training has begun; a policy that only plays never gets there."""

    def start(self) -> None:
        """Check what playing does not need, and fix the micro-batches of every update.

        Raises:
            ValueError: If an option does not suit the number of environments, on any rank.
            Exception: What else stopped one rank; on the others a RuntimeError that names it.
        """
        budget = self._memory_budget_gb
        with torch.inference_mode(False):  # the runner's rollout has no gradients
            with self._left_alone():
                self._ranks.run_together(self._learner.begin_training)
            if budget is not None:
                self._learner.num_micro_batches = self._ranks.run_together(
                    lambda: self.plan_memory().num_micro_batches(budget * 1e9)
                )
        self.started = True

    def run(self) -> dict[str, float]:
        """Train on the stored rollout and clear the storage.

        Returns:
            What is logged: the learner's metrics and ``skipped_updates`` (all so far), which comes
            alone where this update is one.

        Raises:
            ValueError: If a loss, gradient or result is NaN or inf and that is not to be skipped.
                Everything is then as before the update.
            torch.OutOfMemoryError: If the device's memory does not suffice. Everything is then as
                before, too, and the message names the ``memory_budget_gb`` that would have done.
        """
        self._error = None
        self._rollback.keep()
        try:
            metrics = self._learner.train(self)
            fetched = None if metrics is None else self._fetch(metrics)
            logged = None if fetched is None else self._learner.conclude(fetched)
        except BaseException as error:
            if is_out_of_memory(error):  # first, as the frames hold the activations
                traceback.clear_frames(error.__traceback__)
            self._rollback.restore()
            self._drop_rollout()
            if is_out_of_memory(error):
                raise self._out_of_memory(error) from error
            raise
        if logged is None:
            return self._skip()
        self._storage.clear()
        self._non_finite.passed()
        logged |= self._watch(logged)
        if "done_rate" in logged:
            logged["episode_start_rate"] = logged["done_rate"]  # its name in release 0.1
        return {**logged, "skipped_updates": float(self._non_finite.num_skipped)}

    def attempt(self, compute: Callable[[], Result], otherwise: Result) -> Result:
        """Run what only this process does between two exchanges with others.

        Args:
            compute: Adds to the gradients.
            otherwise: What stands for its result if it fails and others have to be told first.

        Returns:
            Its result.

        Raises:
            Exception: What ``compute`` raised, in one process.
        """
        if not self._ranks.together:
            return compute()
        try:
            return compute()
        except Exception as error:
            if self._error is None:
                self._error = self._out_of_memory(error) if is_out_of_memory(error) else error
            return otherwise

    def is_finite(self) -> bool:
        """Return whether all that an update changes is finite in this process (waits for it)."""
        return bool(self._rollback.is_finite())

    def plan_memory(self) -> MemoryPlan:
        """Predict what an update will take, from its gradient on a few environments.

        Parameters, buffers, optimisers, states, storage and random numbers are left as they are;
        gradients are dropped.
        """
        with self._left_alone(), self._learner.as_if_rolled_out():
            return plan_memory(
                lambda first, parts: self._learner.add_gradients(slice(0, first), parts),
                self._learner.sizes(),
                self._learner.trained_parameters(),
            )

    @contextlib.contextmanager
    def _left_alone(self) -> Iterator[None]:
        """Leave everything as it was, apart from gradients."""
        devices = {p.device for p in self._learner.trained_parameters() if p.is_cuda}
        self._rollback.keep()
        try:
            with torch.random.fork_rng(list(devices)):
                yield
        finally:
            self._rollback.restore()

    def _fetch(self, metrics: Metrics) -> dict[str, float] | None:
        """Fetch metrics from the device, in the update's one transfer.

        Returns:
            The metrics; None if in any process they or what the update changed is not finite.
        """
        values = torch.stack(list(metrics.values()))
        finite = self._rollback.is_finite() & torch.isfinite(values).all()
        broken = torch.full_like(finite, self._error is not None) | ~finite
        broken = self._ranks.sum_tensor(broken.to(values.dtype).view(1))
        *fetched, broken = torch.cat((values, broken)).tolist()
        return None if broken else dict(zip(metrics, fetched, strict=True))

    def _skip(self) -> dict[str, float]:
        """Undo the update, drop the rollout, and say where NaN or inf came from.

        Raises:
            ValueError: If training shall not go on.
        """
        self._rollback.restore()
        learner = self._learner
        try:
            self._raise_error()
            source = find_source(
                self._storage.observations,
                learner.observed_groups(),
                learner.recorded(),
                learner.weights(),
                lambda: learner.add_gradients(slice(None), learner.num_micro_batches),
                self._ranks,
            )
        finally:
            self._drop_rollout()
        self._non_finite.met(source)
        return {"skipped_updates": float(self._non_finite.num_skipped)}

    def _raise_error(self) -> None:
        """Raise on every rank what stopped the update on one, if anything did.

        Raises:
            Exception: What stopped it on this rank.
            RuntimeError: Naming what stopped it on another one.
        """
        reason = f"{type(self._error).__name__}: {self._error}" if self._error else None
        reasons = self._ranks.gather(reason)
        if self._error is not None:
            raise self._error
        for rank, other in enumerate(reasons):
            if other is not None:
                raise RuntimeError(
                    f"Rank {rank} could not compute its part of the update ({other}), which was"
                    " undone on all ranks."
                )

    def _out_of_memory(self, error: BaseException) -> torch.OutOfMemoryError:
        """Return an error that says with which budget an update would fit."""
        learner = self._learner
        device = learner.trained_parameters()[0].device
        numbers = (learner.num_micro_batches, self._memory_budget_gb)
        # A plan exchanges sums, for which the others do not wait.
        make_plan = None if self._ranks.together else self.plan_memory
        return explain(error, make_plan, *numbers, device)

    def _drop_rollout(self) -> None:
        """Let the environments go on from the states they are in, cleared if not finite."""
        self._learner.drop_rollout()
        for optimizer in self._learner.optimizers():
            optimizer.zero_grad()
        for model in self._learner.stateful_models():
            model.reset(hidden_state=hidden_state.clear_non_finite(model.get_hidden_state()))
        self._storage.clear()

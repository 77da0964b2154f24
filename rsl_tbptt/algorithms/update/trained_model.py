"""A model as an update trains it: replayed over windows, cut into micro-batches."""

from __future__ import annotations

import torch
from torch import nn

from rsl_tbptt.algorithms.auxiliary.heads import AuxiliaryHeads
from rsl_tbptt.algorithms.update.health import FirstReplay
from rsl_tbptt.algorithms.update.options import Options
from rsl_tbptt.algorithms.update.replay import Head, make_replay
from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.accumulate import Loss, Outputs, accumulate_group
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.micro_batches import (
    best_num_micro_batches,
    best_num_windows,
    bytes_per_sample,
)
from rsl_tbptt.core.rollout import Rollout, Segments
from rsl_tbptt.core.scan import recordings_aside, unchanged_weights
from rsl_tbptt.core.windows import Group
from rsl_tbptt.models.protocol import parts_of


class TrainedModel:
    """A model, how it is replayed, and what becomes of its gradients."""

    def __init__(
        self,
        model: MLPModel,
        head: Head,
        options: Options,
        *,
        num_envs: int,
        heads: AuxiliaryHeads | None = None,
        sees_single_steps: bool = False,
        first_replay: FirstReplay | None = None,
    ) -> None:
        """Choose how the model is replayed.

        Args:
            model: A model that follows rsl_rl's interface.
            head: What of it the loss sees, a head of ``replay.py``.
            options: Of the algorithm: scan engine, precision and memory.
            num_envs: Environments of the largest mini-batch.
            heads: Auxiliary heads that are trained with the model.
            sees_single_steps: Whether its rollouts are single steps, which are best run at once.
            first_replay: Looks at what the memory says.
        """
        self.model = model
        self.parameters: list[nn.Parameter] = list(model.parameters())
        operand_dtype = torch.bfloat16 if options.use_mixed_precision else None
        self._replay = make_replay(
            model,
            head=head,
            scan_engine=options.scan_engine,
            operand_dtype=operand_dtype,
            sparing=options.memory_budget_gb is not None,
            further=self._further,
        )
        self._heads = heads
        self._sample_bytes = bytes_per_sample(model)
        parts = parts_of(model)
        has_memory = parts is not None and parts.cell is not None
        self._first_replay = first_replay if has_memory else None
        self._sees_frames = parts is not None and bool(parts.encoders)
        self._sees_single_steps = sees_single_steps
        self._num_envs = num_envs
        self._spares_memory = options.memory_budget_gb is not None or self._sees_frames

    def _further(self, latent: torch.Tensor) -> Outputs:
        """Return what auxiliary heads say of what the model's head reads, shape (rows, H)."""
        if self._first_replay is not None:
            self._first_replay.see_memory(latent)
        return () if self._heads is None else self._heads.outputs(latent)

    def accumulate(
        self,
        group: Group,
        rollout: Rollout | Segments,
        state: HiddenState,
        loss: Loss,
        divisor: float | torch.Tensor,
        *,
        window_length: int,
        num_micro_batches: int,
        coef: float = 1.0,
    ) -> tuple[HiddenState, dict[str, torch.Tensor]]:
        """Add the gradient of one optimiser step's loss; see ``core.accumulate``.

        Args:
            group: Windows of the optimiser step, in time order.
            rollout: The rollout, or segments of one.
            state: State before the first window. Shape: (L, N, H), or a pair of them.
            loss: The loss.
            divisor: M, what the weighted sum of per-sample losses is divided by. Shape: ().
            window_length: Steps of the windows, at most.
            num_micro_batches: At least so many parts are run one after the other.
            coef: What the loss counts beside others.

        Returns:
            The detached state after the group, and the sums of what the loss reports.
        """
        least = self.least_micro_batches(rollout.num_envs, window_length)
        num_parts = max(num_micro_batches, least)
        replay, loss = self._replay, loss if self._heads is None else self._heads.beside(loss)
        with unchanged_weights():
            return accumulate_group(
                group,
                rollout,
                state,
                replay,
                loss,
                divisor,
                num_micro_batches=num_parts,
                coef=coef,
                windows_at_once=self._windows_at_once(window_length),
            )

    def _windows_at_once(self, window_length: int) -> int:
        """Return how many windows of so many steps are run as one, whatever the mini-batch.

        The same for small ones, so that memory is linear in the environments that are run.
        """
        if self._spares_memory:
            return 1
        largest = -(-self._num_envs // self.least_micro_batches(self._num_envs, window_length))
        return best_num_windows(largest, window_length, self.parameters[0].device)

    def least_micro_batches(self, num_envs: int, window_length: int) -> int:
        """Return the micro-batches that windows of so many steps are cut into in any case."""
        if self._sees_single_steps:
            return 1
        device = self.parameters[0].device
        return best_num_micro_batches(
            num_envs, window_length, self._sample_bytes, device, sees_frames=self._sees_frames
        )

    @torch.no_grad()
    def first_step(self, rollout: Rollout) -> tuple[tuple[torch.Tensor, ...], HiddenState]:
        """Return outputs of a rollout's first step, (1, N, ...), and a state like the one after.

        The state is zero, as before a rollout of all environments.
        """
        first = rollout.steps(0, 1)
        with recordings_aside():
            outputs, state = self._replay(first.obs, None, first.episode_starts)
        return outputs, hidden_state.apply(torch.zeros_like, state)

"""The rows of the benchmark as data: what is measured, how often, and what is aimed at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from _benchmark_case import Case


@dataclass(frozen=True, kw_only=True)
class SpeedRow:
    """Time of an update beside rsl_rl's."""

    name: str
    case: Case
    pairs: int
    """Updates of each library: few where one of them takes seconds."""
    target: float | None = None
    """The ratio to reach."""
    figure_only: bool = False
    """A further point of a figure, not of the table."""


@dataclass(frozen=True, kw_only=True)
class DonesRow:
    """Time of our update beside that of our update on a rollout without dones."""

    name: str
    case: Case
    pairs: int
    target: float
    """The ratio to stay below."""


@dataclass(frozen=True, kw_only=True)
class MemoryRow:
    """Memory of our process as a share of rsl_rl's."""

    name: str
    case: Case
    target: float | None = None
    """The share to stay below."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """What one run measures."""

    speed: list[SpeedRow]
    dones: list[DonesRow]
    memory: list[MemoryRow]

    def names(self) -> list[str]:
        """Return the names of all rows."""
        return [row.name for row in (*self.speed, *self.dones, *self.memory)]

    def select(self, part: str) -> Rows:
        """Keep the rows whose name contains ``part``.

        Raises:
            ValueError: If there are none.
        """
        kept = Rows(
            speed=[row for row in self.speed if part in row.name],
            dones=[row for row in self.dones if part in row.name],
            memory=[row for row in self.memory if part in row.name],
        )
        if not kept.names():
            raise ValueError(f"--rows is {part!r}, expected a part of one of {self.names()}.")
        return kept

    def on(self, device: str) -> Rows:
        """Return the same rows on a device."""
        return self._changed(lambda case: replace(case, device=device))

    def quick(self) -> Rows:
        """Return rows of the same names that take no time: to test, not to measure."""
        return self._changed(_tiny, pairs=2)

    def _changed(self, change: Callable[[Case], Case], **options: int) -> Rows:
        return Rows(
            speed=[replace(row, case=change(row.case), **options) for row in self.speed],
            dones=[replace(row, case=change(row.case), **options) for row in self.dones],
            memory=[replace(row, case=change(row.case)) for row in self.memory],
        )


def _tiny(case: Case) -> Case:
    return replace(
        case,
        # With one environment in a mini-batch rsl_rl's losses broadcast over the wrong axis.
        num_envs=max(case.num_envs // 32, 2 * case.num_mini_batches),
        num_steps=case.num_steps // 8,
        gradient_length=case.gradient_length // 8,
        rnn_hidden_dim=8,
    )


def _distillation(num_envs: int, **options: Any) -> Case:
    lengths = {"num_steps": 24, "gradient_length": 24}
    return Case(algorithm="distillation", num_envs=num_envs, **lengths, **options)


def _ppo(
    num_envs: int,
    num_steps: int,
    gradient_length: int,
    **options: Any,
) -> Case:
    lengths = {"num_steps": num_steps, "gradient_length": gradient_length}
    return Case(algorithm="ppo", num_envs=num_envs, **lengths, **options)


def _variants(name: str, case: Case, pairs: int, target: float) -> Iterator[SpeedRow]:
    """Yield a case with an LSTM in both precisions and with a GRU."""
    yield SpeedRow(name=f"{name}-lstm-float32", case=case, pairs=pairs, target=target)
    bfloat16 = replace(case, use_mixed_precision=True)
    yield SpeedRow(name=f"{name}-lstm-bfloat16", case=bfloat16, pairs=pairs, target=1.0)
    gru = replace(case, rnn_type="gru")
    yield SpeedRow(name=f"{name}-gru-float32", case=gru, pairs=pairs)


def _point(name: str, case: Case) -> SpeedRow:
    return SpeedRow(name=f"{name}-lstm-float32", case=case, pairs=2, figure_only=True)


ROWS = Rows(
    speed=[
        *_variants("distillation-64", _distillation(64), pairs=15, target=2.8),
        _point("distillation-256", _distillation(256)),
        *_variants("distillation-512", _distillation(512), pairs=7, target=1.5),
        _point("distillation-1024", _distillation(1024)),
        *_variants("distillation-4096", _distillation(4096), pairs=3, target=1.7),
        *_variants("ppo-1024-dones-0", _ppo(1024, 24, 24, done_rate=0.0), pairs=5, target=1.4),
        _point("ppo-1024-dones-0.02", _ppo(1024, 24, 24, done_rate=0.02)),
        *_variants("ppo-1024-dones-0.05", _ppo(1024, 24, 24, done_rate=0.05), pairs=3, target=2.5),
        _point("ppo-1024-dones-0.1", _ppo(1024, 24, 24, done_rate=0.1)),
        *_variants("ppo-1024-dones-0.2", _ppo(1024, 24, 24, done_rate=0.2), pairs=3, target=5.8),
        *_variants("ppo-256x128", _ppo(256, 128, 32), pairs=3, target=7.5),
    ],
    dones=[
        DonesRow(
            name="ppo-cost-of-dones", case=_ppo(1024, 24, 24, done_rate=0.2), pairs=5, target=1.1
        ),
    ],
    memory=[
        MemoryRow(name="distillation-memory", case=_distillation(4096), target=0.2),
        MemoryRow(name="ppo-memory-24", case=_ppo(1024, 24, 24)),
        MemoryRow(name="ppo-memory-48", case=_ppo(1024, 48, 24)),
        MemoryRow(name="ppo-memory-96", case=_ppo(1024, 96, 24), target=0.08),
    ],
)
"""LSTM-256 or GRU-256, MLP of 256, 128 and 64, 48 observations, 12 actions, one epoch."""

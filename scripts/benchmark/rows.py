"""The rows of the benchmark as data: what is measured, how often, and what is aimed at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rsl_tbptt.bench.case import Case


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement."""

    name: str
    case: Case
    measure: Literal["speed", "dones", "memory"] = "speed"
    """Time of an update beside rsl_rl's; time of ours beside that of ours on a rollout without
    dones; or memory of a process beside that of rsl_rl's."""
    pairs: int = 2
    """Updates of each library: few where one of them takes seconds."""
    target: float | None = None
    """For speed the ratio to reach; otherwise the ratio to stay below."""
    figure_only: bool = False
    """A further point of a figure, not of the table."""

    def reached(self, ratio: float) -> bool | None:
        """Return whether a ratio is as good as the target, None without a target."""
        if self.target is None:
            return None
        return ratio >= self.target if self.measure == "speed" else ratio <= self.target


def select(rows: Sequence[Row], part: str, device: str, *, quick: bool = False) -> list[Row]:
    """Keep the rows whose name contains ``part``.

    Args:
        rows: All rows.
        part: Part of a name.
        device: Where they are measured.
        quick: Whether rows of the same names are meant that take no time: to test only.

    Returns:
        The rows, on the device.

    Raises:
        ValueError: If there are none.
    """
    kept = [replace(r, case=replace(r.case, device=device)) for r in rows if part in r.name]
    if not kept:
        names = [row.name for row in rows]
        raise ValueError(f"--rows is {part!r}, expected a part of one of {names}.")
    return [replace(r, case=_tiny(r.case), pairs=2) for r in kept] if quick else kept


def _tiny(case: Case) -> Case:
    return replace(
        case,
        # With one environment in a mini-batch rsl_rl's losses broadcast over the wrong axis.
        num_envs=max(case.num_envs // 32, 2 * case.num_mini_batches),
        num_steps=case.num_steps // 8,
        gradient_length=case.gradient_length // 8,
        rnn_hidden_dim=8,
    )


def _distillation(num_envs: int) -> Case:
    return Case(algorithm="distillation", num_envs=num_envs, num_steps=24, gradient_length=24)


def _ppo(num_envs: int, num_steps: int, gradient_length: int, **options: Any) -> Case:
    lengths = {"num_steps": num_steps, "gradient_length": gradient_length}
    return Case(algorithm="ppo", num_envs=num_envs, **lengths, **options)


def _variants(name: str, case: Case, pairs: int, target: float) -> Iterator[Row]:
    """Yield a case with an LSTM in both precisions and with a GRU."""
    yield Row(name=f"{name}-lstm-float32", case=case, pairs=pairs, target=target)
    bfloat16 = replace(case, use_mixed_precision=True)
    yield Row(name=f"{name}-lstm-bfloat16", case=bfloat16, pairs=pairs, target=1.0)
    yield Row(name=f"{name}-gru-float32", case=replace(case, rnn_type="gru"), pairs=pairs)


def _point(name: str, case: Case) -> Row:
    return Row(name=f"{name}-lstm-float32", case=case, figure_only=True)


def _memory(name: str, case: Case, target: float | None = None) -> Row:
    return Row(name=name, case=case, measure="memory", target=target)


COST_OF_DONES = _ppo(1024, 24, 24, done_rate=0.2)
ROWS = (
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
    Row(name="ppo-cost-of-dones", case=COST_OF_DONES, measure="dones", pairs=5, target=1.1),
    _memory("distillation-memory", _distillation(4096), target=0.2),
    _memory("ppo-memory-24", _ppo(1024, 24, 24)),
    _memory("ppo-memory-48", _ppo(1024, 48, 24)),
    _memory("ppo-memory-96", _ppo(1024, 96, 24), target=0.08),
)
"""LSTM-256 or GRU-256, MLP of 256, 128 and 64, 48 observations, 12 actions, one epoch."""

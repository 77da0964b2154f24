"""The benchmark's results as Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from _benchmark_case import title
from _benchmark_limit import DTYPES
from _benchmark_results import Results, SpeedResult

HOW = (
    "One update of each library in turn, after one to warm up; medians, and the ratio's median,"
    " lowest and highest pair. Before, both left equal parameters on small copies of every row. T"
    " steps, N environments, gradient_length K (rsl_rl's PPO cannot truncate and takes all T)."
    " Products: what the update's matrix products alone would take at the highest rate below."
)
BFLOAT16_NOTE = (
    "In bfloat16 rsl_rl's Distillation leaves its hidden state in bfloat16, at which the next"
    " rollout of an LSTM stops with an error. The benchmark casts it back to float32 between its"
    " updates, outside the timing."
)
MEMORY_HOW = (
    "Peaks of a process of its own beyond its imports: models, storage, rollout and update; and of"
    " update() alone beyond models, optimiser and storage; and what memory_plan() expected of it."
)


def format_report(results: Results, figures: dict[str, str]) -> str:
    """Write the report.

    Args:
        results: What was measured.
        figures: Files beside the report by title.

    Returns:
        Markdown.
    """
    parts = [_heading(results)]
    if results.speed:
        parts += ["## Time of an update", HOW, _speed_table(results)]
        if any(_casts_state(result) for result in results.speed):
            parts.append(BFLOAT16_NOTE)
        parts += ["## Dones and GRU", *_relations(results), "## Matrix products", _rates(results)]
    if results.memory:
        parts += ["## Memory", MEMORY_HOW, _memory_table(results)]
    parts += ["## Targets", _targets(results)]
    parts += [f"![{name}]({file})" for name, file in figures.items()]
    return "\n\n".join(part for part in parts if part) + "\n"


def _heading(results: Results) -> str:
    about = results.about
    names = ("rsl-tbptt", "rsl-rl-lib", "torch", "python")
    versions = ", ".join(f"{name} {about['versions'][name]}" for name in names)
    machine = ", ".join(about["machine"].values())
    return (
        f"# Benchmark\n\n{about['finished']}, {about['minutes']:.1f} minutes, {about['threads']}"
        f" threads: {machine}. {versions}."
    )


def _speed_table(results: Results) -> str:
    rows = [
        (
            title(result.row.case),
            _milliseconds(result.rsl_rl),
            _milliseconds(result.ours),
            f"{result.speed.ratio:.2f}",
            f"{min(result.speed.ratios):.2f} to {max(result.speed.ratios):.2f}",
            _mark(result.row.target, "at least", result.reached),
            f"{_milliseconds(result.products_seconds)}, {result.products_share:.0%}",
        )
        for result in results.speed
        if not result.row.figure_only
    ]
    heads = ("update", "rsl_rl", "rsl_tbptt", "ratio", "pairs", "target", "products, of our time")
    return markdown_table(heads, rows)


def _relations(results: Results) -> list[str]:
    """Say what dones cost us, and what a GRU brings beside an LSTM."""
    lines = [
        f"Our update takes {result.ratio:.2f} times as long at a done rate of"
        f" {result.row.case.done_rate:g} as without dones ({title(result.row.case)}; target"
        f" {_mark(result.row.target, 'at most', result.reached)})."
        for result in results.dones
    ]
    by_name = {result.row.name: result for result in results.speed}
    rows = []
    for name, gru in by_name.items():
        lstm = by_name.get(name.replace("-gru-", "-lstm-"))
        if lstm is not None and lstm is not gru:
            ratio, beside = gru.speed.ratio, lstm.speed.ratio
            rows.append((title(gru.row.case), f"{ratio:.2f}", f"{beside:.2f}"))
            rows[-1] = (*rows[-1], f"{ratio / beside:.2f}")
    if rows:
        heads = ("update", "GRU's ratio", "LSTM's ratio", "GRU's of LSTM's")
        lines.append(markdown_table(heads, rows))
    return lines


def _rates(results: Results) -> str:
    shapes = results.rates[next(iter(DTYPES))]
    rows = [
        (shape, *(f"{results.rates[name][shape] / 1e9:.0f}" for name in DTYPES)) for shape in shapes
    ]
    return markdown_table(("product, 10^9 operations per second", *DTYPES), rows)


def _memory_table(results: Results) -> str:
    rows = [
        (
            title(result.row.case),
            f"{result.rsl_rl.process_peak:.0f} MB",
            f"{result.ours.process_peak:.0f} MB",
            f"{result.share:.3f}",
            _mark(result.row.target, "at most", result.reached),
            f"{result.rsl_rl.update_peak:.0f} MB",
            f"{result.ours.update_peak:.0f} MB",
            "-" if result.ours.predicted is None else f"{result.ours.predicted:.0f} MB",
        )
        for result in results.memory
    ]
    heads = ("process", "rsl_rl", "rsl_tbptt", "share", "target")
    return markdown_table((*heads, "update(): rsl_rl", "update(): rsl_tbptt", "predicted"), rows)


def _targets(results: Results) -> str:
    judged = [r for r in (*results.speed, *results.dones, *results.memory) if r.reached is not None]
    missed = [result.row.name for result in judged if not result.reached]
    counted = f"{len(judged) - len(missed)} of {len(judged)} reached."
    return f"{counted} Missed: {', '.join(missed)}." if missed else counted


def _mark(target: float | None, bound: str, reached: bool | None) -> str:
    if target is None:
        return "-"
    return f"{bound} {target:g}" + ("" if reached else ", **missed**")


def _casts_state(result: SpeedResult) -> bool:
    case = result.row.case
    return case.algorithm == "distillation" and case.use_mixed_precision


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.{0 if seconds >= 0.1 else 1}f} ms"


def markdown_table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Write a Markdown table.

    Args:
        heads: Titles of the columns.
        rows: Cells by row.

    Returns:
        Lines without a line break at the end.
    """
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)

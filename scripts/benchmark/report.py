"""The benchmark's results as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from rsl_tbptt.bench.case import title
from rsl_tbptt.bench.limit import DTYPES
from rsl_tbptt.bench.tables import markdown, milliseconds
from scripts.benchmark.results import DonesResult, MemoryResult, Results, SpeedResult

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
        parts += ["## Time of an update", HOW, _speed_table(results.speed)]
        cases = [result.row.case for result in results.speed]
        if any(case.algorithm == "distillation" and case.use_mixed_precision for case in cases):
            parts.append(BFLOAT16_NOTE)
        parts += ["## Dones and GRU", *map(_cost, results.dones), _gru_table(results.speed)]
        parts += ["## Matrix products", _rates(results.rates)]
    if results.memory:
        parts += ["## Memory", MEMORY_HOW, _memory_table(results.memory)]
    parts += ["## Targets", _targets([*results.speed, *results.dones, *results.memory])]
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


def _speed_table(results: list[SpeedResult]) -> str:
    heads = ("update", "rsl_rl", "rsl_tbptt", "ratio", "pairs", "target", "products, of our time")
    rows = []
    for result in results:
        ours, theirs = result.medians
        pairs = f"{min(result.speed.ratios):.2f} to {max(result.speed.ratios):.2f}"
        products = f"{milliseconds(result.products_seconds)}, {result.products_seconds / ours:.0%}"
        times = (milliseconds(theirs), milliseconds(ours), f"{result.ratio:.2f}", pairs)
        if not result.row.figure_only:
            rows.append((title(result.row.case), *times, _target(result), products))
    return markdown(heads, rows)


def _cost(result: DonesResult) -> str:
    """Say what dones cost us."""
    case = result.row.case
    return (
        f"Our update takes {result.ratio:.2f} times as long at a done rate of {case.done_rate:g} as"
        f" without dones ({title(case)}; target {_target(result)})."
    )


def _gru_table(results: list[SpeedResult]) -> str:
    """Say what a GRU brings beside an LSTM; return nothing without any."""
    ratios = {result.row.name: result.ratio for result in results}
    rows = []
    for gru in results:
        lstm = ratios.get(gru.row.name.replace("-gru-", "-lstm-"))
        if gru.row.case.rnn_type == "gru" and lstm is not None:
            numbers = (gru.ratio, lstm, gru.ratio / lstm)
            rows.append((title(gru.row.case), *(f"{number:.2f}" for number in numbers)))
    heads = ("update", "GRU's ratio", "LSTM's ratio", "GRU's of LSTM's")
    return markdown(heads, rows) if rows else ""


def _rates(rates: dict[str, dict[str, float]]) -> str:
    shapes = rates[next(iter(DTYPES))]
    rows = [(shape, *(f"{rates[name][shape] / 1e9:.0f}" for name in DTYPES)) for shape in shapes]
    return markdown(("product, 10^9 operations per second", *DTYPES), rows)


def _memory_table(results: list[MemoryResult]) -> str:
    heads = ("process", "rsl_rl", "rsl_tbptt", "share", "target")
    further = ("update(): rsl_rl", "update(): rsl_tbptt", "predicted")
    rows = []
    for result in results:
        process = (_mb(result.rsl_rl.process_peak), _mb(result.ours.process_peak))
        update = (result.rsl_rl.update_peak, result.ours.update_peak, result.ours.predicted)
        share = (f"{result.ratio:.3f}", _target(result))
        rows.append((title(result.row.case), *process, *share, *map(_mb, update)))
    return markdown((*heads, *further), rows)


def _targets(results: Sequence[SpeedResult | DonesResult | MemoryResult]) -> str:
    reached = [result.row.reached(result.ratio) for result in results]
    missed = [r.row.name for r, well in zip(results, reached, strict=True) if well is False]
    counted = f"{reached.count(True)} of {len(reached) - reached.count(None)} reached."
    return f"{counted} Missed: {', '.join(missed)}." if missed else counted


def _target(result: SpeedResult | DonesResult | MemoryResult) -> str:
    row = result.row
    if row.target is None:
        return "-"
    bound = "at least" if row.measure == "speed" else "at most"
    return f"{bound} {row.target:g}" + ("" if row.reached(result.ratio) else ", **missed**")


def _mb(megabytes: float | None) -> str:
    return "-" if megabytes is None else f"{megabytes:.0f} MB"

"""The benchmark's results as Markdown."""

from pathlib import Path

from rsl_tbptt.bench.case import title
from rsl_tbptt.bench.limit import DTYPES
from rsl_tbptt.bench.tables import markdown, milliseconds
from scripts.benchmark.results import CostResult, MemoryResult, Results, SpeedResult
from scripts.templates import fill

TEMPLATE = Path(__file__).with_name("report.md.j2")


def format_report(results: Results, figures: dict[str, str]) -> str:
    """Write the report.

    Args:
        results: What was measured.
        figures: Files beside the report by title.

    Returns:
        Markdown.
    """
    judged = [r for r in (*results.speed, *results.cost, *results.memory) if r.row.target]
    return fill(
        TEMPLATE,
        results=results,
        figures=figures,
        title=title,
        target=_target,
        num_targets=len(judged),
        missed=[r.row.name for r in judged if not r.row.reached(r.ratio)],
        speed_table=_speed_table(results.speed),
        rates_table=_rates_table(results.rates),
        memory_table=_memory_table([r for r in results.memory if not r.row.beside]),
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


def _rates_table(rates: dict[str, dict[str, float]]) -> str:
    shapes = rates[next(iter(DTYPES))]
    rows = [(shape, *(f"{rates[name][shape] / 1e9:.0f}" for name in DTYPES)) for shape in shapes]
    return markdown(("product, 10^9 operations per second", *DTYPES), rows)


def _memory_table(results: list[MemoryResult]) -> str:
    heads = ("process", "rsl_rl", "rsl_tbptt", "share", "target")
    further = ("update(): rsl_rl", "update(): rsl_tbptt", "predicted")
    rows = []
    for result in results:
        process = (_mb(result.other.process_peak), _mb(result.ours.process_peak))
        update = (result.other.update_peak, result.ours.update_peak, result.ours.predicted)
        share = (f"{result.ratio:.3f}", _target(result))
        rows.append((title(result.row.case), *process, *share, *map(_mb, update)))
    return markdown((*heads, *further), rows)


def _target(result: SpeedResult | CostResult | MemoryResult) -> str:
    row = result.row
    if row.target is None:
        return "-"
    bound = "at least" if row.measure == "speed" else "at most"
    return f"{bound} {row.target:g}" + ("" if row.reached(result.ratio) else ", **missed**")


def _mb(megabytes: float | None) -> str:
    return "-" if megabytes is None else f"{megabytes:.0f} MB"

"""The benchmark's results as Markdown."""

from pathlib import Path

from rsl_tbptt.bench.case import title
from rsl_tbptt.bench.growth import SECONDS
from rsl_tbptt.bench.limit import DTYPES
from rsl_tbptt.bench.tables import milliseconds
from scripts.benchmark.results import Results
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
        seconds=SECONDS,
        num_targets=len(judged),
        missed=[r.row.name for r in judged if not r.row.reached(r.ratio)],
        dtypes=[*DTYPES],
        ms=milliseconds,
    )

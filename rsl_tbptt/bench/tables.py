"""What ``rsl-tbptt bench`` prints of one case: Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from tabulate import tabulate

from rsl_tbptt.bench.case import Case, title
from rsl_tbptt.bench.limit import product_rates, update_flops
from rsl_tbptt.bench.speed import LIBRARIES, measure_speed
from rsl_tbptt.tools.doctor import machine, versions

SECONDS_PER_SHAPE = 0.1
"""Spent on the rate of each matrix product."""


def heading(case: Case) -> str:
    """Say what is measured and on what."""
    where, found = machine(case.device), versions()
    what = [f"{name} {found[name]}" for name in ("rsl-tbptt", "rsl-rl-lib", "torch")]
    return f"{title(case)}; {', '.join((where['device'], where['processor'], *what))}"


def time(case: Case, num_pairs: int) -> str:
    """Compare times, and say what the matrix products alone would take of ours.

    Args:
        case: What is measured.
        num_pairs: Updates of each library.

    Returns:
        A Markdown table: medians, and of the ratios the median, the lowest and the highest.

    Raises:
        ValueError: If the libraries do not compute the same, or there are no pairs.
    """
    speed = measure_speed(case, num_pairs)
    rates = product_rates(case.device, SECONDS_PER_SHAPE)[case.precision]
    products = update_flops(case) / max(rates.values())
    ours, rsl_rl = median(speed.ours), median(speed.theirs)
    ratios = (speed.ratio, min(speed.ratios), max(speed.ratios))
    times = (milliseconds(rsl_rl), milliseconds(ours), *(f"{ratio:.2f}" for ratio in ratios))
    heads = ("rsl_rl", "rsl_tbptt", "ratio", "lowest", "highest", "products, of our time")
    return markdown(heads, [(*times, f"{milliseconds(products)}, {products / ours:.0%}")])


def memory(case: Case) -> str:
    """Compare peaks in memory, of the process beyond its imports and of ``update()`` alone.

    Args:
        case: What is measured, in a process of its own for each library.

    Returns:
        A Markdown table.

    Raises:
        ImportError: If psutil is missing.
        OSError: On another system than Linux.
    """
    from rsl_tbptt.bench.memory import measure_in_own_process

    rows = []
    for library in reversed(LIBRARIES):
        used = measure_in_own_process(case, library)
        peaks = (used.process_peak, used.update_peak, used.storage)
        rows.append((library, *(f"{megabytes:.0f} MB" for megabytes in peaks)))
    return markdown(("library", "process", "`update()`", "storage"), rows)


def profile(case: Case) -> str:
    """Say where the time of our update goes.

    Args:
        case: What is updated.

    Returns:
        A Markdown table.
    """
    from rsl_tbptt.bench.profile import profile_update

    shares = [(kind, f"{share:.0%}", calls) for kind, share, calls in profile_update(case)]
    return markdown(("operations", "of the time", "calls"), shares)


def milliseconds(seconds: float) -> str:
    """Write a time with three digits or more."""
    return f"{seconds * 1e3:.{0 if seconds >= 0.1 else 1}f} ms"


def markdown(heads: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Write a Markdown table whose cells stay as they are.

    Args:
        heads: Titles of the columns.
        rows: Cells by row.

    Returns:
        Lines without a line break at the end.
    """
    return tabulate(rows, heads, tablefmt="github", disable_numparse=True)

"""Lay out the lines, dots and ticks of a report's charts; ``report.html.j2`` draws them as SVG."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 400, 230, 48, 10, 10, 36
"""Size of a chart and its margins. It is as wide as a phone, so that its text stays readable."""
ROW_HEIGHT = 40
"""Height of a policy's dots and its name."""
MOST_POINTS = 300
"""Most points of a curve; longer curves are averaged."""
NUM_COLOURS, NUM_PATTERNS = 8, 5
"""Numbers of colours and of line patterns in ``report.html.j2``; they share no factor."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart in its own coordinates; y grows downwards."""

    title: str
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]] = field(default_factory=list)
    lines: list[dict[str, Any]]
    """``style``, see :func:`style`, and ``d``, an SVG path; dots also have ``name``, ``y`` and
    ``interval``."""
    note: str = ""
    x_label: str = "iteration"
    height: int = HEIGHT


def style(number: int) -> str:
    """Return the CSS classes of a line's colour and pattern; numbers 0 to 39 all look different."""
    pattern = (number + number // NUM_COLOURS) % NUM_PATTERNS
    return f"c{number % NUM_COLOURS} d{pattern}"


def curve_chart(
    title: str,
    curves: Mapping[int, tuple[Sequence[int], Sequence[float]]],
    *,
    log: bool = False,
    x_label: str = "iteration",
) -> Chart | None:
    """Lay out curves over iterations.

    Args:
        title: Title of the chart.
        curves: Iterations and values by the number of the line's style. Values that are not finite
            leave a gap.
        log: Whether to draw values that are all positive and span a factor of 20 logarithmically.
        x_label: What the curves go over, if not over iterations.

    Returns:
        The chart, or None if no value is finite.
    """
    thin = {number: thinned(*curve) for number, curve in curves.items()}
    points = [point for curve in thin.values() for point in curve if math.isfinite(point[1])]
    if not points:
        return None
    xs, ys = zip(*points, strict=True)
    is_log = log and min(ys) > 0 and max(ys) >= 20 * min(ys)
    bent: Callable[[float], float] = math.log10 if is_log else float
    x = _scale(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    y = _scale(bent(min(ys)), bent(max(ys)), HEIGHT - BOTTOM, TOP)
    longest = max(len(steps) for steps, _ in curves.values())
    size = -(-longest // MOST_POINTS)
    return Chart(
        title=title,
        x_ticks=[(x(tick), f"{tick:g}") for tick in ticks(min(xs), max(xs))],
        y_ticks=[
            (y(bent(tick)), f"{tick:g}")
            for tick in (log_ticks if is_log else ticks)(min(ys), max(ys))
        ],
        lines=[
            {"style": style(number), "d": _path(curve, x, lambda value: y(bent(value)))}
            for number, curve in thin.items()
        ],
        note=f"means of {size} {x_label}s" if size > 1 else "",
        x_label=x_label,
    )


def return_chart(evaluations: Sequence[tuple[str, int, Mapping[str, Any]]]) -> Chart:
    """Lay out every episode's return, with the mean's interval.

    Args:
        evaluations: Name, number of the style, and result of ``rsl-tbptt evaluate``.
    """
    values = [value for _, _, found in evaluations for value in found["returns"]]
    ends = [end for _, _, found in evaluations for end in found["confidence_interval"]]
    low, high = min(*values, *ends), max(*values, *ends)
    x = _scale(low, high, RIGHT, WIDTH - RIGHT)
    lines, height = [], ROW_HEIGHT * len(evaluations) + BOTTOM
    for row, (name, number, found) in enumerate(evaluations):
        middle = ROW_HEIGHT * (row + 0.7)
        # Spread vertically in a fixed pattern, so that equal returns remain visible.
        dots = [
            f"M{x(value):.1f} {middle + 7 * math.sin(37.0 * index):.1f}h0"
            for index, value in enumerate(found["returns"][: 2 * MOST_POINTS])
        ]
        interval = [x(end) for end in found["confidence_interval"]]
        known = {"name": name, "y": middle, "interval": interval}
        lines.append({"style": style(number), "d": "".join(dots), **known})
    return Chart(
        title="Return of each episode, and 95 % interval of the mean",
        x_ticks=[(x(tick), f"{tick:g}") for tick in ticks(low, high)],
        lines=lines,
        height=height,
    )


def thinned(steps: Sequence[int], values: Sequence[float]) -> list[tuple[float, float]]:
    """Return the points of a curve; averages neighbours if there are too many."""
    size = -(-len(steps) // MOST_POINTS) or 1
    return [
        (sum(steps[at : at + size]) / len(steps[at : at + size]), sum(part) / len(part))
        for at in range(0, len(steps), size)
        if (part := values[at : at + size])
    ]


def ticks(low: float, high: float) -> list[float]:
    """Return three to six round numbers within a range."""
    if not high > low:
        return [low]
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first = math.ceil(low / step - 1e-9)
    return [round(n * step, 12) for n in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten within a range; for a short range also their multiples by 2 and 5."""
    powers = [
        10.0**power
        for power in range(math.floor(math.log10(low)), 1 + math.floor(math.log10(high)))
    ]
    inside = [power for power in powers if power >= low]
    if len(inside) < 3:
        inside = [f * p for p in powers for f in (1, 2, 5) if low <= f * p <= high]
    return inside[:: -(-len(inside) // 6)]


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Return the linear function from a range to positions, or to the middle if low equals high."""
    if not high > low:
        return lambda _: (start + end) / 2
    return lambda value: round(start + (value - low) / (high - low) * (end - start), 1)


def _path(
    points: Sequence[tuple[float, float]],
    x: Callable[[float], float],
    y: Callable[[float], float],
) -> str:
    """Return an SVG path with gaps at values that are not finite; a single point becomes a dot."""
    parts = []
    for is_finite, group in groupby(points, key=lambda point: math.isfinite(point[1])):
        if is_finite:
            places = [f"{x(step):g} {y(value):g}" for step, value in group]
            parts.append(f"M{'L'.join(places)}" + "h0" * (len(places) == 1))
    return "".join(parts)

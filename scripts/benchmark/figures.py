"""Figures of the benchmark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from scripts.benchmark.results import Results, SpeedResult
from scripts.figure_style import PALETTE, STYLE

OURS, RSL_RL, LIMIT = PALETTE[0], PALETTE[2], "0.4"


def save_figures(results: Results, folder: Path) -> dict[str, str]:
    """Draw what was measured.

    Args:
        results: What was measured; a figure whose rows are missing is left out.
        folder: Where the SVG files go.

    Returns:
        File names by title.
    """
    figures: dict[str, tuple[str, Callable[[Axes, Results], bool]]] = {
        "Time of an update over the number of environments": ("time.svg", draw_time),
        "Times as fast as rsl_rl over the done rate": ("done_rate.svg", draw_done_rate),
        "Memory of the process over the length of the rollout": ("memory.svg", draw_memory),
    }
    saved = {}
    for name, (file, draw) in figures.items():
        # Text stays text, which keeps the file small.
        with mpl.rc_context(STYLE), mpl.rc_context({"svg.fonttype": "none"}):
            figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
            if draw(axes, results):
                axes.set(title=name)
                axes.legend(frameon=False)
                figure.savefig(folder / file, format="svg", metadata={"Date": None})
                saved[name] = file
            plt.close(figure)
    return saved


def draw_time(axes: Axes, results: Results) -> bool:
    """Draw the times of distillation and the limit; return whether there are any."""
    points = _series(results, "distillation-")
    num_envs = [point.row.case.num_envs for point in points]
    for label, colour, style, values in (
        ("rsl_rl", RSL_RL, "o-", [point.medians[1] for point in points]),
        ("rsl_tbptt", OURS, "o-", [point.medians[0] for point in points]),
        ("matrix products alone", LIMIT, "--", [point.products_seconds for point in points]),
    ):
        axes.loglog(
            num_envs, [1e3 * seconds for seconds in values], style, color=colour, label=label
        )
    axes.set(xlabel="environments (distillation, LSTM, float32)", ylabel="ms")
    axes.set_xticks(num_envs, [str(number) for number in num_envs])
    axes.minorticks_off()
    return bool(points)


def draw_done_rate(axes: Axes, results: Results) -> bool:
    """Draw the ratio of PPO with its spread; return whether there is any."""
    points = _series(results, "ppo-1024-dones-")
    rates = [point.row.case.done_rate for point in points]
    medians = [point.speed.ratio for point in points]
    spread = [
        [point.speed.ratio - min(point.speed.ratios) for point in points],
        [max(point.speed.ratios) - point.speed.ratio for point in points],
    ]
    label = "median, lowest and highest pair"
    axes.errorbar(rates, medians, spread, fmt="o-", color=OURS, capsize=3, label=label)
    axes.axhline(1.0, color=LIMIT, lw=1, ls="--", label="rsl_rl")
    axes.set(xlabel="done rate (PPO, LSTM, float32)", ylim=(0, None))
    return bool(points)


def draw_memory(axes: Axes, results: Results) -> bool:
    """Draw the peaks of PPO; return whether there are any."""
    points = [result for result in results.memory if result.row.name.startswith("ppo-")]
    steps = [point.row.case.num_steps for point in points]
    for label, colour, peaks in (
        ("rsl_rl", RSL_RL, [point.rsl_rl.process_peak for point in points]),
        ("rsl_tbptt", OURS, [point.ours.process_peak for point in points]),
    ):
        axes.plot(steps, peaks, "o-", color=colour, label=label)
    axes.set(xlabel="steps per rollout (PPO, LSTM, float32)", ylabel="MB", ylim=(0, None))
    axes.set_xticks(steps)
    return bool(points)


def _series(results: Results, name: str) -> list[SpeedResult]:
    """Return the rows of a figure from left to right."""
    return [
        result
        for result in results.speed
        if result.row.name.startswith(name) and result.row.name.endswith("-lstm-float32")
    ]

"""Figures of the benchmark."""

from fnmatch import fnmatchcase
from pathlib import Path

from matplotlib.axes import Axes

from scripts.benchmark.results import MemoryResult, Results, TimeResult
from scripts.figures import PALETTE, drawn_svg

OURS, RSL_RL, LIMIT = PALETTE[0], PALETTE[2], "0.4"


def save_figures(results: Results, folder: Path) -> dict[str, str]:
    """Draw what was measured.

    Args:
        results: What was measured; a figure whose rows are missing is left out.
        folder: Where the SVG files go.

    Returns:
        File names by title.
    """
    saved = {}
    for title, (file, draw, part, name) in FIGURES.items():
        points = [r for r in getattr(results, part) if fnmatchcase(r.row.name, name)]
        if points:
            with drawn_svg(folder / file, figsize=(6, 4)) as axes:
                draw(axes, points)
                axes.set(title=title)
                axes.legend(frameon=False)
            saved[title] = file
    return saved


def draw_time(axes: Axes, points: list[TimeResult]) -> None:
    """Draw the times of distillation and the limit."""
    num_envs = [point.row.case.num_envs for point in points]
    limit = [1e3 * point.products_seconds for point in points]
    ours, rsl_rl = ([1e3 * point.medians[i] for point in points] for i in (0, 1))
    axes.set(xscale="log", yscale="log", ylabel="ms")
    axes.set(xlabel="environments (distillation, LSTM, float32)")
    axes.plot(num_envs, limit, "--", color=LIMIT, label="matrix products alone")
    draw_lines(axes, num_envs, {"rsl_rl": rsl_rl, "rsl_tbptt": ours})


def draw_done_rate(axes: Axes, points: list[TimeResult]) -> None:
    """Draw the ratio of PPO with its spread."""
    rates = [point.row.case.done_rate for point in points]
    medians = [point.ratio for point in points]
    below = [point.ratio - min(point.speed.ratios) for point in points]
    above = [max(point.speed.ratios) - point.ratio for point in points]
    label = "median, lowest and highest pair"
    axes.errorbar(rates, medians, [below, above], fmt="o-", color=OURS, capsize=3, label=label)
    axes.axhline(1.0, color=LIMIT, lw=1, ls="--", label="rsl_rl")
    axes.set(xlabel="done rate (PPO, LSTM, float32)", ylim=(0, None))


def draw_memory(axes: Axes, points: list[MemoryResult]) -> None:
    """Draw the peaks of PPO."""
    rsl_rl, ours = ([getattr(p, of).process_peak for p in points] for of in ("other", "ours"))
    axes.set(xlabel="steps per rollout (PPO, LSTM, float32)", ylabel="MB", ylim=(0, None))
    steps = [point.row.case.num_steps for point in points]
    draw_lines(axes, steps, {"rsl_rl": rsl_rl, "rsl_tbptt": ours})


def draw_long(axes: Axes, points: list[TimeResult]) -> None:
    """Draw our time with one window over the whole rollout, and with shorter ones."""
    case, steps = points[0].row.case, [point.row.case.num_steps for point in points]
    cut, whole = ([point.medians[i] for point in points] for i in (0, 1))
    short = points[0].row.beside["gradient_length"]
    axes.set(xscale="log", yscale="log", ylabel="s")
    axes.set(xlabel=f"steps per rollout (PPO, {case.num_envs} environments)")
    lengths = {"gradient_length: all of it": whole, f"gradient_length: {short}": cut}
    draw_lines(axes, steps, lengths)


def draw_lines(axes: Axes, places: list[int], lines: dict[str, list[float]]) -> None:
    """Draw values by label over places, which are named."""
    for (label, values), color in zip(lines.items(), (RSL_RL, OURS), strict=True):
        axes.plot(places, values, "o-", color=color, label=label)
    axes.set_xticks(places, [str(place) for place in places])
    axes.minorticks_off()


OVER_ENVS = ("time.svg", draw_time, "speed", "distillation-*-lstm-float32")
OVER_DONES = ("done_rate.svg", draw_done_rate, "speed", "ppo-1024-dones-*-lstm-float32")
OVER_STEPS = ("memory.svg", draw_memory, "memory", "ppo-*")
FIGURES = {
    "Time of an update over the number of environments": OVER_ENVS,
    "Times as fast as rsl_rl over the done rate": OVER_DONES,
    "Memory of the process over the length of the rollout": OVER_STEPS,
    "Time of an update over the length of the rollout": ("long.svg", draw_long, "cost", "long-*"),
}
"""By title: the file, what draws it, and which results, by kind and name of their rows."""

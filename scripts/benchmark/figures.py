"""Figures of the benchmark."""

from pathlib import Path
from statistics import median

from matplotlib.axes import Axes

from scripts.benchmark.results import CostResult, MemoryResult, Results, SpeedResult
from scripts.figure_style import PALETTE, drawn_svg

OURS, RSL_RL, LIMIT = PALETTE[0], PALETTE[2], "0.4"


def save_figures(results: Results, folder: Path) -> dict[str, str]:
    """Draw what was measured.

    Args:
        results: What was measured; a figure whose rows are missing is left out.
        folder: Where the SVG files go.

    Returns:
        File names by title.
    """
    lstm = [result for result in results.speed if result.row.name.endswith("-lstm-float32")]
    times = [result for result in lstm if result.row.name.startswith("distillation-")]
    ratios = [result for result in lstm if result.row.name.startswith("ppo-1024-dones-")]
    peaks = [result for result in results.memory if result.row.name.startswith("ppo-")]
    long = [result for result in results.cost if result.row.name.startswith("long-")]
    figures = {
        "Time of an update over the number of environments": ("time.svg", draw_time, times),
        "Times as fast as rsl_rl over the done rate": ("done_rate.svg", draw_done_rate, ratios),
        "Memory of the process over the length of the rollout": ("memory.svg", draw_memory, peaks),
        "Time of an update over the length of the rollout": ("long.svg", draw_long, long),
    }
    saved = {}
    for title, (file, draw, points) in figures.items():
        if points:
            with drawn_svg(folder / file, figsize=(6, 4)) as axes:
                draw(axes, points)
                axes.set(title=title)
                axes.legend(frameon=False)
            saved[title] = file
    return saved


def draw_time(axes: Axes, points: list[SpeedResult]) -> None:
    """Draw the times of distillation and the limit."""
    num_envs = [point.row.case.num_envs for point in points]
    limit = [1e3 * point.products_seconds for point in points]
    ours, rsl_rl = ([1e3 * point.medians[i] for point in points] for i in (0, 1))
    axes.loglog(num_envs, rsl_rl, "o-", color=RSL_RL, label="rsl_rl")
    axes.loglog(num_envs, ours, "o-", color=OURS, label="rsl_tbptt")
    axes.loglog(num_envs, limit, "--", color=LIMIT, label="matrix products alone")
    axes.set(xlabel="environments (distillation, LSTM, float32)", ylabel="ms")
    axes.set_xticks(num_envs, [str(number) for number in num_envs])
    axes.minorticks_off()


def draw_done_rate(axes: Axes, points: list[SpeedResult]) -> None:
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
    steps = [point.row.case.num_steps for point in points]
    rsl_rl = [point.other.process_peak for point in points]
    axes.plot(steps, rsl_rl, "o-", color=RSL_RL, label="rsl_rl")
    axes.plot(steps, [p.ours.process_peak for p in points], "o-", color=OURS, label="rsl_tbptt")
    axes.set(xlabel="steps per rollout (PPO, LSTM, float32)", ylabel="MB", ylim=(0, None))
    axes.set_xticks(steps)


def draw_long(axes: Axes, points: list[CostResult]) -> None:
    """Draw our time of one window over the whole rollout, and of shorter ones."""
    steps = [point.row.case.num_steps for point in points]
    (beside,) = {point.row.beside["gradient_length"] for point in points}
    whole, cut = ([median(getattr(p, which)) for p in points] for which in ("times", "without"))
    axes.loglog(steps, whole, "o-", color=RSL_RL, label="gradient_length: the rollout")
    axes.loglog(steps, cut, "o-", color=OURS, label=f"gradient_length: {beside}")
    axes.set(xlabel=f"steps per rollout ({points[0].row.case.num_envs} environments)", ylabel="s")
    axes.set_xticks(steps, [str(number) for number in steps])
    axes.minorticks_off()
